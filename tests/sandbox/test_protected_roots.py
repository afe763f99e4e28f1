"""A root that is or is in a protected folder is judged by that folder's rules. Each row is tried at both levels of the
sandbox with a command, and without a sandbox with Write, once as an added directory and once as the working directory.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from ralph.machine import own_programs
from ralph.machine.files.trees import remove_tree
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings
from tests.git.repositories import committed
from tests.places.test_one_table import LEVELS, tools_in
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.tools.conftest import Tools


# A directory below the home that is given as a root, a protected file in it, and a command that changes the file there.
ATTACKS = {
    "the user's settings for agents": (".claude", "settings.json", "echo evil >settings.json"),
    "new settings for agents": (".claude", "settings.local.json", "echo evil >settings.local.json"),
    "a new file of settings, renamed": (".claude", "settings.json", "echo evil >x; mv -f x settings.json"),
    "through a link": ("link", "settings.json", "echo evil >settings.json"),
    "a project's settings": ("other/.claude", "settings.json", "echo evil >settings.json"),
    "SSH keys": (".ssh", "config", "echo evil >config"),
    "new SSH keys": (".ssh", "authorized_keys", "echo evil >authorized_keys"),
    "a folder in that of SSH keys": (".ssh/keys", "one", "echo evil >one"),
    "a keyring that is a repository": (".password-store", ".git/HEAD", "echo evil >.git/HEAD"),
    "ralph's configuration": (".config/ralph", "config.toml", "echo evil >config.toml"),
    "above ralph's configuration": (".config", "ralph/config.toml", "echo evil >ralph/config.toml"),
    "sessions": (".local/state/ralph/sessions", "x.jsonl", "echo evil >x.jsonl"),
    "ralph's state": (".local/state/ralph", "loop.key", "echo evil >loop.key"),
    "hooks": ("other/.git/hooks", "pre-commit", "echo evil >pre-commit"),
    "git's configuration": ("other/.git", "config", "echo evil >config"),
    "git's attributes": ("other/.git/info", "attributes", "echo evil >attributes"),
    "the git directory of a submodule": ("other/.git/modules/part", "config", "echo evil >config"),
    "hooks of a bare repository": ("bare.git/hooks", "pre-receive", "echo evil >pre-receive"),
    "a folder with a protected name": ("other/.mcp.json", "x", "echo evil >x"),
}
# Those whose file neither commands nor Read and searches may read.
SECRETS = [
    "SSH keys",
    "a folder in that of SSH keys",
    "a keyring that is a repository",
    "ralph's configuration",
    "sessions",
    "ralph's state",
]
MINE = "canary of mine"


@pytest.fixture(scope="module")
def made_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home with its repositories, which takes a dozen calls of git. There is a copy of it beside it."""
    home = tmp_path_factory.mktemp("place") / "home"
    for name in ("work", ".password-store", "other"):
        committed(home / name, home)
    made = committed(home / "source", home)
    made.git("clone", "-q", "--bare", ".", "../bare.git")
    made.git("-C", str(home / "other"), "submodule", "add", "-q", "../source", "part")
    for name in (
        ".claude .ssh/keys .config/ralph .local/state/ralph/sessions other/.claude other/.mcp.json "
        "other/.git/hooks other/.git/info"
    ).split():
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / "link").symlink_to(".claude")
    state = ".local/state/ralph"
    for name in (
        *(".claude/settings.json", "other/.claude/settings.json", ".ssh/config", ".ssh/keys/one"),
        *(".config/ralph/config.toml", f"{state}/sessions/x.jsonl", f"{state}/loop.key"),
    ):
        (home / name).write_text(MINE)
    subprocess.run(["cp", "-a", home, home.with_name("kept")], check=True)
    return home


@pytest.fixture
def home(made_home: Path) -> Path:
    remove_tree(made_home)
    own_programs._named_again_in.cache_clear()  # a process looks once
    subprocess.run(["cp", "-a", made_home.with_name("kept"), made_home], check=True)
    return made_home


def tools_with(home: Path, root: Path, level: str | None, *, is_added: bool) -> Iterator[Tools]:
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    work, writable = (home / "work", (root,)) if is_added else (root, ())
    yield from tools_in(work, environment, level, writable=writable)


def content_of(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_command_changes_a_protected_file_and_nothing_reads_a_secret(home, level, attack) -> None:
    root, name, command = ATTACKS[attack]
    place, file = home / root, home / root / name
    if attack in SECRETS:
        file.write_text(MINE)
    before = content_of(file)
    for is_added in (True, False):
        for tools in tools_with(home, place, level, is_added=is_added):
            tools.call("Bash", {"command": f"cd {place} && {command}"})
            assert content_of(file) == before, is_added
            if attack not in SECRETS:
                continue
            for tool, arguments in (
                ("Bash", {"command": f"cat {file}; cp {file} {home}/work/x; cat {home}/work/x"}),
                ("Read", {"file_path": str(file)}),
                ("Grep", {"pattern": "canary", "path": str(place), "output_mode": "content"}),
            ):
                assert MINE not in tools.call(tool, arguments).content, (tool, is_added)


@every_row(("root", "name"), [row[:2] for row in ATTACKS.values()])
def test_write_refuses_it_without_a_sandbox_too(home, root, name) -> None:
    file = home / root / name
    before = content_of(file)
    for is_added in (True, False):
        for tools in tools_with(home, home / root, None, is_added=is_added):
            said = tools.call("Write", {"file_path": str(file), "content": "evil"})
            assert said.is_error
            assert "is not written" in said.content
            assert content_of(file) == before, is_added


@pytest.mark.parametrize("level", LEVELS)
def test_the_rest_of_such_a_folder_is_for_the_work(home, level) -> None:
    root = home / ".claude"
    for tools in tools_with(home, root, level, is_added=True):
        said = tools.call("Bash", {"command": f"mkdir {root}/skills && echo x >{root}/skills/x && echo done"})
        assert said.content == "done"
        assert not tools.call("Write", {"file_path": str(root / "notes.md"), "content": "x"}).is_error


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("root", "is_added", "allowed"),
    [(".ssh", True, "the working directory, $TMPDIR"), ("other/.git/hooks", False, "$TMPDIR]")],
)
def test_the_model_is_told_what_the_sandbox_denies_and_where_it_may_write(
    home, level, root, is_added, allowed
) -> None:
    file = home / root / "new"
    for tools in tools_with(home, home / root, level, is_added=is_added):
        said = tools.call("Bash", {"command": f"echo evil >{file}"}).content
        assert f"the sandbox denies writing {file}; allowed for writing: {allowed}" in said


@every_row(
    ("root", "named"),
    [(".claude", ".claude/.credentials.json"), (".local", ".local/state/ralph"), (".ssh", None)],
)
def test_secrets_in_a_root_are_named(home, root, named) -> None:
    (home / ".claude/.credentials.json").write_text(MINE)
    plan = plan_box(SandboxSettings(), {"HOME": str(home)}, (home / "work", home / root))
    told = [notice.text for notice in plan.notices if "read secrets" in notice.text]
    why = "commands may read secrets, because they are where commands may write"
    assert told == ([f"{why}: {home}/{named}"] if named else [])


# Where commands make or change protected files below the top, and the files that are named at the end.
PLANTED = {
    "servers": ("mkdir x; echo evil >x/.mcp.json", "x/.mcp.json"),
    "settings": ("mkdir -p x/.claude; echo evil >x/.claude/settings.json", "x/.claude/settings.json"),
    "changed settings": ("echo evil >dir/ralph.toml", "dir/ralph.toml"),
}


@pytest.mark.parametrize(("level", "planted"), list(zip([*LEVELS, None], PLANTED, strict=True)))
def test_the_end_of_a_run_names_what_commands_made_below(home, level, planted) -> None:
    command, name = PLANTED[planted]
    (home / "work/dir/ralph.toml").write_text(MINE)
    time.sleep(0.05)  # the times of files are as coarse as a tick of the kernel
    for tools in tools_with(home, home / "other", level, is_added=True):
        file = str(home / "work" / name)
        for tool, arguments in (
            ("Write", {"file_path": file, "content": "evil"}),
            ("Edit", {"file_path": file, "old_string": MINE, "new_string": "evil"}),
        ):
            assert tools.call(tool, arguments).is_error
        tools.call("Bash", {"command": command})
        note = tools.box.close()
        assert "agents and later runs obey" in note
        assert note.endswith(f"made or changed: {name}")
