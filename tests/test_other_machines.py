"""The machines of `tests/other_machines.py`: what their PATH has and has not, and which tests would not stand them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import other_machines
from tests.other_machines import MACHINES, PROGRAMS, ROOT, Machine, command_of, search_path
from tests.rows import every_row

PAGE = ROOT / "CONTRIBUTING.md"
BEHIND = re.compile(
    r"""\bPATH["']\] \+=|\bPATH["']\]? ?[:=] f["'][^\n{]*(\{[^\n]*PATH["']\]\}|/usr/bin)[^\n]*:\{"""
)
"""Code that puts a program of its own behind those of the system, where one of the same name may be installed."""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "node", "tmux", "bwrap"):
        (folder / name).write_text("#!/bin/sh\necho here\n")
        (folder / name).chmod(0o755)
    return folder


def found_on(machine: Machine, programs: Path, tmp_path: Path) -> dict[str, str | None]:
    path = ":".join(search_path(machine, tmp_path / "made", [str(programs), str(tmp_path / "none")]))
    return {name: shutil.which(name, path=path) for name in ("git", "node", "tmux", "docker", "bwrap")}


def test_a_machine_without_the_programs_has_all_others(programs, tmp_path) -> None:
    found = found_on(Machine("m", "", has_programs=False), programs, tmp_path)
    assert {name for name, place in found.items() if place} == {"git"}
    assert Path(found["git"] or "").resolve() == programs / "git"
    assert (programs / "node").exists()


def test_a_machine_with_all_programs_has_those_of_here_and_others_that_refuse(programs, tmp_path) -> None:
    found = found_on(Machine("m", "", has_programs=True), programs, tmp_path)
    assert (found["tmux"], found["node"]) == (str(programs / "tmux"), str(programs / "node"))
    assert found["docker"] == str(tmp_path / "made/added/docker"), "it precedes those that tests append"


def test_an_old_bubblewrap_refuses_what_is_newer_and_does_the_rest(programs, tmp_path) -> None:
    found = found_on(Machine("m", "", has_old_bubblewrap=True), programs, tmp_path)
    ran = [
        subprocess.run([found["bwrap"] or "", *words], capture_output=True, text=True, check=False)
        for words in (["--version"], ["--add-seccomp-fd", "9"], ["--ro-bind", "/", "/", "--", "--overlay"])
    ]
    assert [(one.returncode, one.stdout) for one in ran] == [
        (0, "bubblewrap 0.4.1\n"),
        (1, ""),
        (0, "here\n"),
    ]


def test_the_page_names_six_machines_and_each_program_is_there_and_is_not() -> None:
    page = PAGE.read_text()
    named = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert named == [machine.name for machine in MACHINES]
    assert len(MACHINES) == 6
    assert {machine.has_programs for machine in MACHINES} >= {True, False}
    users = {(machine.is_of_ordinary_user, machine.is_below_tmp) for machine in MACHINES}
    assert users == {(False, False), (False, True), (True, False), (True, True)}
    assert all(name in page for name in PROGRAMS)


@every_row("machine", [machine for machine in MACHINES if not machine.is_of_ordinary_user])
def test_a_home_lies_where_the_machine_says_and_has_what_the_user_told_git(
    machine: Machine, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(other_machines, "PLACE", tmp_path)
    monkeypatch.setattr(other_machines, "_real_bubblewrap", lambda _path: "/usr/bin/bwrap")
    command, directory, environment = command_of(machine, ["tests/git"])
    assert command[1:] == ["quickstart.py", "test", "tests/git"]
    assert directory == ROOT
    assert environment["HOME"].startswith("/tmp/") == (
        machine.is_below_tmp or tmp_path.is_relative_to("/tmp")
    )
    assert "CI" not in environment
    assert Path(environment["HOME"], ".gitconfig").exists() == bool(machine.has_programs)


def test_no_test_puts_its_own_program_behind_those_of_the_system() -> None:
    places = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    found = [str(path.relative_to(ROOT)) for path in places if BEHIND.search(path.read_text())]
    assert not found
