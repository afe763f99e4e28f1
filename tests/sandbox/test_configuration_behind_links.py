"""ralph's own configuration, and the settings of agents, lie in a root behind links, as in a repository of dotfiles, or in a
folder of a root. Each row is tried at both levels of the sandbox with a command, and without one with Write.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ralph.sandbox.sandbox_settings import SandboxSettings
from tests.places.test_one_table import LEVELS, tools_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.tools.conftest import Tools

MINE = "canary of mine"
# A link in the home and what it leads to in the dotfiles, the file there, and where the user finds it.
LAYOUTS = {
    "the folder": (".config/ralph", "ralph/.config/ralph", "config.toml"),
    "the file": (".config/ralph/config.toml", "config.toml", ""),
    "above the folder": (".config", "config", "ralph/config.toml"),
    "agents": (".claude", "claude", "settings.json"),
    "one file of agents": (".claude/settings.json", "settings.json", ""),
    "the file of --config": ("mine.toml", "named/mine.toml", ""),
    "a file of --mcp-config": ("m.json", "named/m.json", ""),
}
# $D is the folder of the real file, which is not the root itself.
FOLDERS = {
    "a link in its place": "cp -r $D x; echo evil >x/$N; mv $D old; ln -s $PWD/x $D",
    "another folder in its place": "cp -r $D x; echo evil >x/$N; mv $D old; mv x $D",
    "a file in its place": "mv $D old; echo evil >$D",
    "nothing in its place": "mv $D old",
}


def made(tmp_path: Path, layout: str) -> tuple[Path, Path, Path]:
    """Makes a home. Returns it, the file as the user names it, and the real file."""
    home, (link, target, rest) = tmp_path / "home", LAYOUTS[layout]
    real = home / "dotfiles" / target / rest
    for directory in (real.parent, (home / link).parent, home / "work"):
        directory.mkdir(parents=True, exist_ok=True)
    real.write_text(MINE)
    (home / link).symlink_to(home / "dotfiles" / target)
    return home, home / link / rest, real


def tools_with(
    home: Path, level: str | None, named: str = "mine.toml", *, is_in_settings: bool = False
) -> Iterator[Tools]:
    environment, dotfiles = {"HOME": str(home), "PATH": os.environ["PATH"]}, home / "dotfiles"
    wanted = SandboxSettings(write=(str(dotfiles),) if is_in_settings else ())
    own = {"configuration": (home / named,), "agents": (home / "m.json",)}
    yield from tools_in(
        home / "work", environment, level, wanted, () if is_in_settings else (dotfiles,), **own
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_command_changes_a_settings_file_behind_a_link(tmp_path, layout, level) -> None:
    home, file, real = made(tmp_path, layout)
    for tools in tools_with(home, level):
        for change in ("echo evil >$F", "echo evil >x; mv -f x $F", "rm -f $F"):
            tools.call("Bash", {"command": f"cd {home}/dotfiles; F={real}; {change}"})
            assert file.read_text() == MINE, change


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["agents", "above the folder"])
def test_no_command_makes_a_settings_file_behind_a_link(tmp_path, layout, level) -> None:
    home, file, real = made(tmp_path, layout)
    real.unlink()
    for tools in tools_with(home, level):
        tools.call("Bash", {"command": f"echo evil >{real}; echo evil >{real.parent}/settings.local.json"})
        assert not file.exists()
        assert layout != "agents" or not (file.parent / "settings.local.json").exists()


@pytest.mark.parametrize(("level", "is_in_settings"), list(zip(LEVELS, [False, True], strict=True)))
@pytest.mark.parametrize("layout", ["the file", "one file of agents", "a file of --mcp-config"])
def test_no_command_replaces_a_link_on_the_way(tmp_path, layout, is_in_settings, level) -> None:
    """The user's link leads to another link, in an added directory or one of sandbox.write."""
    home, file, real = made(tmp_path, layout)
    real.rename(real.parent / "real")
    real.symlink_to("real")
    for tools in tools_with(home, level, is_in_settings=is_in_settings):
        tools.call("Bash", {"command": f"cd {real.parent}; echo evil >x; ln -sfn x {real}"})
        assert file.read_text() == MINE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_tools_refuse_it_too(tmp_path, layout) -> None:
    home, file, real = made(tmp_path, layout)
    for tools in tools_with(home, None):
        assert "is not written" in tools.call("Write", {"file_path": str(real), "content": "evil"}).content
        assert file.read_text() == MINE
        is_shown = MINE in tools.call("Read", {"file_path": str(real)}).content
        assert is_shown == ("agents" in layout or "mcp" in layout)  # those of a project may be read too


@pytest.mark.parametrize("level", LEVELS)
def test_a_folder_that_did_not_exist_may_be_made_and_a_link_in_its_place_may_not(tmp_path, level) -> None:
    home = made(tmp_path, "the file")[0]
    for tools in tools_with(home, level, named="dotfiles/new/r.toml"):
        undone, *_ = [
            tools.call("Bash", {"command": f"cd {home}/dotfiles; {command}"}).content
            for command in (
                "mkdir new; echo x >new/x",
                "test -e new/x || exit; echo evil >new/r.toml; rm -r new; touch was-there",
                "rm -rf new; mkdir x; echo evil >x/r.toml; ln -s x new",
            )
        ]
        assert "undone" not in undone
        assert (home / "dotfiles/was-there").exists()
        assert not (home / "dotfiles/new/r.toml").exists()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", FOLDERS)
@pytest.mark.parametrize("layout", ["the folder", "agents"])
def test_a_folder_around_a_settings_file_stays_what_it_is(tmp_path, layout, change, level) -> None:
    home, file, real = made(tmp_path, layout)
    for folder in (real.parent, *(one for one in real.parent.parents if one.parent.name == "dotfiles")):
        for tools in tools_with(home, level):
            script = f"cd {home}/dotfiles; D={folder}; N={real.relative_to(folder)}; {FOLDERS[change]}"
            tools.call("Bash", {"command": script})
            assert file.read_text() == MINE


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("link", "file"),
    [(".claude", "settings.json"), (".claude/settings.json", ""), ("ralph.toml", ""), (".mcp.json", "")],
)
def test_no_command_changes_the_projects_own_settings_behind_a_link(tmp_path, link, file, level) -> None:
    work, real = tmp_path / "work", tmp_path / "work/kept" / (file or "x.json")
    for directory in (real.parent, (work / link).parent, work / ".git", work / "sub"):
        directory.mkdir(parents=True, exist_ok=True)
    real.write_text(MINE)
    (work / link).symlink_to(real if not file else real.parent)
    environment = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    for tools in tools_in(work, environment, level, SandboxSettings()):
        for change in (
            "echo evil >$F",
            "echo evil >x; mv -f x $F",
            "rm -f $F",
            f"rm {link}; cp -r kept {link}",
        ):
            tools.call("Bash", {"command": f"cd {work}; F={real}; {change}"})
            assert (work / link / file).read_text() == MINE, change
            assert real.read_text() == MINE, change
