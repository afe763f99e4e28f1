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
from ralph.sandbox.box_plan import Means
from ralph.sandbox.landlock import Support
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings
from tests.sandbox.boxes import LEVELS, box_of, means_of, shell_in

if TYPE_CHECKING:
    from pathlib import Path


PACKAGES = "lib/python3.11/site-packages"
ALWAYS = (
    f"{PACKAGES}/ralph/__init__.py",
    f"{PACKAGES}/x.pth",
    f"{PACKAGES}/sitecustomize.py",
    "bin/ralph",
    "pyvenv.cfg",
)
ONLY_WITH_MOUNTS = (f"{PACKAGES}/ralph/cli/main.py", f"{PACKAGES}/new.pth")


def run_scripts(
    level: str, work: Path, scripts: list[str], path: str = "", *, is_in_settings: bool = False
) -> None:
    """Runs commands at this level, and undoes what they changed. The work is the root or a place of `sandbox.write`."""
    environment = {"HOME": str(work.parent), "PATH": f"{path}:/usr/bin:/bin"}
    root, write = (work.parent / "other", (str(work),)) if is_in_settings else (work, ())
    root.mkdir(exist_ok=True)
    with box_of(means_of(level), [root], environment, write=write) as box:
        protected = box.protected()
        protected.look()
        for script in scripts:
            ran = shell_in(box, root, f"cd {work}; {script}")
            assert ran.returncode == 0, ran.stderr
        protected.undo_changes()


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
    change = "echo evil > .venv/{}; mv .venv other; mv other .venv; echo done > made"
    scripts = [change.format(name) for name in (*ALWAYS, *ONLY_WITH_MOUNTS)]
    run_scripts(level, work, scripts, is_in_settings=is_in_settings)
    kept = (*ALWAYS, *(ONLY_WITH_MOUNTS if level == "namespaces" else ()))
    files = [work / ".venv" / name for name in kept]
    assert [file for file in files if file.exists() and file.read_text() != "mine"] == []
    assert not files[2].exists()
    assert (work / "made").exists()


# What is written, where $V is the virtual environment, and what must stay what it was.
WAYS = {
    "the link to the environment": ("cp -r $V evil; rm .venv; ln -s evil .venv", ".venv"),
    "what the first link leads to": (
        "(cd $V/bin; rm python3.11; echo evil >python3.11)",
        ".venv/bin/python3",
    ),
    "a link on PATH": ("rm tools/ralph; echo evil >tools/ralph", "tools/ralph"),
}


@pytest.mark.parametrize(("level", "is_in_settings"), list(zip(LEVELS, [False, True], strict=True)))
@pytest.mark.parametrize("way", WAYS)
def test_commands_do_not_change_the_way_to_it(work, monkeypatch, way, is_in_settings, level) -> None:
    """The environment is found through a link, and its interpreter through two."""
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
    script = f"V=envs; {command}; echo done > made"
    run_scripts(level, work, [script], f"{work}/tools", is_in_settings=is_in_settings)
    assert (work / "made").exists()
    assert ((work / kept).resolve(), (work / kept).is_symlink()) == before


# What is done in the work, and what is there afterwards.
MADE = "echo evil >{0}/ralph; chmod +x {0}/ralph"
BEFORE_IT = {
    "a new one": (MADE.format(".venv/bin"), [".venv/bin"]),
    "in a new directory": (f"mkdir tools; {MADE.format('tools')}", [".venv/bin", "tools"]),
    "in another environment": (
        f"mv .venv x; mkdir -p .venv/bin; {MADE.format('.venv/bin')}",
        [".venv/bin", "x/bin"],
    ),
    "by a link": (
        "mkdir -p x/bin; echo evil >x/bin/ralph; rm -r .venv; ln -s x .venv",
        [".venv", "x/bin/ralph"],
    ),
    "in the work itself": (MADE.format("."), []),
    "no environment": ("rm -r .venv", []),
    "a new environment": ("rm -r .venv; mkdir -p .venv/bin; echo x >.venv/bin/python", [".venv/bin/python"]),
}


@pytest.mark.parametrize("way", BEFORE_IT)
@pytest.mark.parametrize(
    ("level", "path"),
    [
        ("namespaces", "{work}/tools:{work}/.venv/bin:{elsewhere}/bin"),
        ("landlock", "tools:./.venv/bin::{shims}:{elsewhere}/bin"),
    ],
)
def test_commands_make_no_other_ralph_that_would_start_in_its_place(
    tmp_path, monkeypatch, way, path, level
) -> None:
    """Ralph is installed elsewhere, also found by a shim, and the environment of the work comes first on PATH."""
    elsewhere, work, shims = tmp_path / "pipx", tmp_path / "work", tmp_path / "shims"
    for directory in (elsewhere / "bin", work / ".venv/bin", shims):
        directory.mkdir(parents=True)
    for ralph in (elsewhere / "bin/ralph", shims / "ralph"):
        ralph.write_text("mine")
        ralph.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(elsewhere))
    monkeypatch.setattr(gather, "PACKAGE", str(elsewhere / PACKAGES / "ralph"))
    found = path.format(work=work, elsewhere=elsewhere, shims=shims)
    places = gather.gather_places([str(work)], {"HOME": str(tmp_path), "PATH": found})
    assert places.why_not_written(f"{work}/.venv/bin/ralph") is not None, "the tool Write makes none either"
    assert places.why_not_written(f"{work}/.venv/bin/other") is None
    script, left = BEFORE_IT[way]
    run_scripts(level, work, [script], found)
    assert not [one for one in (work / "tools/ralph", work / ".venv/bin/ralph") if one.exists()]
    ends = [one for one in work.rglob("*") if not one.is_dir() or not [*one.iterdir()]]
    if way == "in the work itself":
        left = [".venv/bin", *([] if "::" in path else ["ralph"])]
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
    tmp_path, monkeypatch, path, made, is_guarded
) -> None:
    monkeypatch.setattr(gather, "PACKAGE", str(tmp_path / "pipx/ralph"))
    made = f"mkdir -p work/tools shims; : >shims/ralph; chmod +x shims/ralph; {made}"
    subprocess.run(["sh", "-ec", made], cwd=tmp_path, check=True)
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
    def told(means: Means, root: Path = work, write: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr(planning, "find_means", lambda *_arguments, **_options: means)
        environment = {"HOME": str(work.parent / "home"), "PATH": "/usr/bin"}
        return " ".join(
            one.line for one in plan_box(SandboxSettings(write=write), environment, (root,)).notices
        )

    means = Means(Support(7), why_no_namespaces="no bubblewrap")
    elsewhere = work.parent / "elsewhere"
    elsewhere.mkdir()
    said = told(means, elsewhere, write=(str(work),))
    assert f"ralph itself is in {work}, where commands may change it" in said
    assert "ralph itself is in the working directory, where commands may change it; install it" in told(means)
    said = told(replace(means, bwrap="bwrap"))
    assert f"commands cannot change {work}/.venv, and install nothing there" in said
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    assert "ralph itself" not in told(means)
