"""Tests that commands cannot change the ralph that runs, where it is installed in a root. Without namespaces, only what
starts first is kept, and people are told.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.places import gather
from ralph.places.table import COMPARED
from ralph.sandbox import planning
from ralph.sandbox.kernel.landlock import Support
from ralph.sandbox.levels import Means
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.sandbox.trial.self_test import words_before
from tests.patience import TEST_S
from tests.sandbox.boxes import box_of
from tests.sandbox.test_ordinary_work import LEVELS

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.machine.command_supervisor import Confinement

PACKAGES = "lib/python3.11/site-packages"
ALWAYS = (
    f"{PACKAGES}/ralph/__init__.py",
    f"{PACKAGES}/x.pth",
    f"{PACKAGES}/sitecustomize.py",
    "bin/ralph",
    "pyvenv.cfg",
)
ONLY_WITH_MOUNTS = (f"{PACKAGES}/ralph/cli/main.py", f"{PACKAGES}/new.pth")


def run_confined(confinement: Confinement, script: str, root: Path) -> None:
    words = [*words_before(confinement), "/bin/sh", "-c", script]
    subprocess.run(words, pass_fds=confinement.descriptors, cwd=root, check=True, timeout=TEST_S)


@pytest.fixture
def work(tmp_path: Path, monkeypatch) -> Path:
    """A working directory with ralph in its virtual environment."""
    work = tmp_path / "work"
    for name in (*ALWAYS[:2], *ALWAYS[3:], ONLY_WITH_MOUNTS[0]):
        (work / ".venv" / name).parent.mkdir(parents=True, exist_ok=True)
        (work / ".venv" / name).write_text("mine")
    monkeypatch.setattr(gather, "PACKAGE", str(work / ".venv" / PACKAGES / "ralph"))
    monkeypatch.setattr(sys, "prefix", str(work / ".venv"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(work / ".venv" / PACKAGES)])
    return work


@pytest.mark.parametrize("is_in_settings", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_commands_do_not_change_the_ralph_that_runs(work, level, is_in_settings) -> None:
    means = LEVELS[level]
    if (level == "namespaces" and means.bwrap is None) or means.landlock.abi == 0:
        pytest.skip("this machine cannot make this sandbox")
    root = work.parent / "other" if is_in_settings else work
    root.mkdir(exist_ok=True)
    plan = {"write": (str(work),)} if is_in_settings else {}
    box = box_of(means, [root], {"HOME": str(work.parent)}, **plan)
    protected = box.protected()
    protected.look()
    try:
        for name in (*ALWAYS, *ONLY_WITH_MOUNTS):
            confinement = box.confinement(str(root))
            command = f"cd {work}; echo evil > .venv/{name}; mv .venv other; mv other .venv; echo done > made"
            run_confined(confinement, command, root)
        protected.undo_changes()
    finally:
        box.close()
    kept = (*ALWAYS, *(ONLY_WITH_MOUNTS if level == "namespaces" else ()))
    files = [work / ".venv" / name for name in kept]
    assert [file for file in files if file.exists() and file.read_text() != "mine"] == []
    assert not files[2].exists()
    assert (work / "made").exists()


# What is written, where $V is the virtual environment, and what must stay what it was.
WAYS = {
    "the link to the environment": ("cp -r $V evil; rm .venv; ln -s evil .venv", ".venv"),
    "what the first link leads to": (
        "rm $V/bin/python3.11; echo evil >$V/bin/python3.11",
        ".venv/bin/python3",
    ),
    "a link on PATH": ("rm tools/ralph; echo evil >tools/ralph", "tools/ralph"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_in_settings", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_commands_do_not_change_the_way_to_it(work, monkeypatch, way, is_in_settings, level) -> None:
    """The environment is found through a link, and its interpreter through two. It is in a root or in sandbox.write."""
    means = LEVELS[level]
    if (level == "namespaces" and means.bwrap is None) or means.landlock.abi == 0:
        pytest.skip("this machine cannot make this sandbox")
    (work / ".venv").rename(work / "envs")
    (work / ".venv").symlink_to("envs")
    for name, target in (("python", "python3.11"), ("python3", "python3.11"), ("python3.11", sys.executable)):
        (work / "envs/bin" / name).symlink_to(target)
    (work / "tools").mkdir()
    (work / "tools/ralph").symlink_to("../.venv/bin/ralph")
    (work / "envs/bin/ralph").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(work / ".venv/bin/python"))
    command, kept = WAYS[way]
    before = (work / kept).resolve(), (work / kept).is_symlink()
    root = work.parent / "other" if is_in_settings else work
    root.mkdir(exist_ok=True)
    plan = {"write": (str(work),)} if is_in_settings else {}
    box = box_of(means, [root], {"HOME": str(work.parent), "PATH": f"{work}/tools:/usr/bin:/bin"}, **plan)
    protected = box.protected()
    protected.look()
    try:
        confinement = box.confinement(str(root))
        run_confined(confinement, f"cd {work}; V=envs; {command}; echo done > made", root)
        protected.undo_changes()
    finally:
        box.close()
    assert (work / "made").exists()
    assert ((work / kept).resolve(), (work / kept).is_symlink()) == before


# What is done in the work, and what is there afterwards.
BEFORE_IT = {
    "a new one": ("echo evil >.venv/bin/ralph; chmod +x .venv/bin/ralph", [".venv/bin"]),
    "in a new directory": (
        "mkdir tools; echo evil >tools/ralph; chmod +x tools/ralph",
        [".venv/bin", "tools"],
    ),
    "in another environment": (
        "mv .venv x; mkdir -p .venv/bin; echo evil >.venv/bin/ralph",
        [".venv/bin", "x/bin"],
    ),
    "by a link": (
        "mkdir -p x/bin; echo evil >x/bin/ralph; rm -r .venv; ln -s x .venv",
        [".venv", "x/bin/ralph"],
    ),
    "in the work itself": ("echo evil >ralph; chmod +x ralph", []),
    "no environment": ("rm -r .venv", []),
    "a new environment": ("rm -r .venv; mkdir -p .venv/bin; echo x >.venv/bin/python", [".venv/bin/python"]),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", BEFORE_IT)
@pytest.mark.parametrize(
    "path", ["{work}/tools:{work}/.venv/bin:{elsewhere}/bin", "tools:./.venv/bin::{shims}:{elsewhere}/bin"]
)
def test_commands_make_no_other_ralph_that_would_start_in_its_place(
    tmp_path, monkeypatch, way, path, level
) -> None:
    """Ralph is installed elsewhere, also found by a shim, and the environment of the work comes first on PATH."""
    means = LEVELS[level]
    if (level == "namespaces" and means.bwrap is None) or means.landlock.abi == 0:
        pytest.skip("this machine cannot make this sandbox")
    elsewhere, work, shims = tmp_path / "pipx", tmp_path / "work", tmp_path / "shims"
    for directory in (elsewhere / "bin", work / ".venv/bin", shims):
        directory.mkdir(parents=True)
    for ralph in (elsewhere / "bin/ralph", shims / "ralph"):
        ralph.write_text("mine")
        ralph.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(elsewhere))
    monkeypatch.setattr(gather, "PACKAGE", str(elsewhere / PACKAGES / "ralph"))
    found = f"{path.format(work=work, elsewhere=elsewhere, shims=shims)}:/usr/bin:/bin"
    environment = {"HOME": str(tmp_path), "PATH": found}
    places = gather.gather_places([str(work)], environment)
    assert places.why_not_written(f"{work}/.venv/bin/ralph") is not None, "the tool Write makes none either"
    assert places.why_not_written(f"{work}/.venv/bin/other") is None
    box = box_of(means, [work], environment)
    protected = box.protected()
    protected.look()
    try:
        run_confined(box.confinement(str(work)), f"cd {work}; {BEFORE_IT[way][0]}", work)
        protected.undo_changes()
    finally:
        box.close()
    made = (work / "tools/ralph", work / ".venv/bin/ralph")
    assert not [one for one in made if one.exists()]
    ends = [one for one in work.rglob("*") if not one.is_dir() or not [*one.iterdir()]]
    left = (
        BEFORE_IT[way][1]
        if way != "in the work itself"
        else [".venv/bin", *([] if "::" in path else ["ralph"])]
    )
    assert sorted(str(one.relative_to(work)) for one in ends) == left


# PATH, what is there, and whether a command can make `work/tools/ralph` the one that starts.
ON_PATH = {
    "a link that commands can replace": (
        "work/tools:shims",
        "ln -s ../../shims/ralph work/tools/ralph",
        True,
    ),
    "a link to the directory": ("tools:shims", "ln -s work/tools tools", True),
    "behind the first": ("shims:work/tools", "true", False),
}


@pytest.mark.parametrize(("path", "made", "is_guarded"), ON_PATH.values(), ids=ON_PATH)
def test_each_place_before_the_first_that_commands_cannot_write_is_guarded(
    tmp_path, monkeypatch, path, made, *, is_guarded
) -> None:
    monkeypatch.setattr(gather, "PACKAGE", str(tmp_path / "pipx/ralph"))
    subprocess.run(
        ["sh", "-ec", f"mkdir -p work/tools shims; : >shims/ralph; chmod +x shims/ralph; {made}"],
        cwd=tmp_path,
        check=True,
    )
    found = ":".join(f"{tmp_path}/{one}" for one in path.split(":"))
    environment = {"HOME": str(tmp_path / "home"), "PATH": found}
    guarded = gather.gather_places([str(tmp_path / "work")], environment).guarded(COMPARED, {})
    assert (f"{tmp_path}/work/tools/ralph" in guarded) is is_guarded


def test_a_package_in_the_work_itself_is_the_work(work, monkeypatch) -> None:
    root = str(work)
    assert gather.own_code([root]) == (f"{root}/.venv",)
    assert gather.own_code([root, f"{root}/.venv/src"]) == (f"{root}/.venv/{PACKAGES}/ralph",)
    assert gather.own_code([f"{root}/sub"]) == ()
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert gather.own_code([root]) == (f"{root}/.venv/{PACKAGES}/ralph",), (
        "a system's Python is installed into"
    )
    monkeypatch.setattr(gather, "PACKAGE", f"{root}/ralph")
    assert gather.own_code([root]) == ()


def test_people_are_told_if_commands_may_change_ralph(work, monkeypatch) -> None:
    def told(means: Means) -> str:
        monkeypatch.setattr(planning, "find_means", lambda *_arguments, **_options: means)
        environment = {"HOME": str(work.parent / "home"), "PATH": "/usr/bin"}
        return " ".join(one.line for one in plan_box(SandboxSettings(), environment, (work,)).notices)

    means = Means(Support(7), why_no_namespaces="no bubblewrap")
    elsewhere = work.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(planning, "find_means", lambda *_arguments, **_options: means)
    wanted = SandboxSettings(write=(str(work),))
    [notice] = plan_box(wanted, {"HOME": str(work.parent / "home")}, (elsewhere,)).notices
    assert f"ralph itself is in {work}, where commands may change it" in notice.line
    assert "ralph itself is in the working directory, where commands may change it; install it" in told(means)
    assert f"commands cannot change {work}/.venv, and install nothing there" in told(
        replace(means, bwrap="bwrap")
    )
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    assert "ralph itself" not in told(means)
