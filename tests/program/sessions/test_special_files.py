"""Named pipes, sockets, devices and directories with the name of a journal or a record, and files in the place of a
directory: what is not a file is left out with a line, and nothing waits for it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.machine.own_process import SHARED_MEMORY
from ralph.mock_api import Turn
from ralph.sessions.places import temporary_name
from ralph.sessions.store import SessionStore
from ralph.values.outcome import CannotError
from tests.program.conftest import loop_folder
from tests.program.kept_sessions import HELLO, only_journal
from tests.program.model_answers import calls

if TYPE_CHECKING:
    from collections.abc import Callable

ID = "99999999-0000-4000-8000-000000000000"


def a_socket(path: Path) -> None:
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # the whole path may be too long for a socket
        made.bind(path.name)
    os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": a_socket,
    "a directory": os.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/ptmx"),
}


@pytest.fixture
def kept(ralph, serve) -> Path:
    """The journal of a session."""
    serve(HELLO, Turn("Done."), Turn("Done."))
    assert ralph("hi").code == 0
    return only_journal(ralph)


def test_what_is_named_like_a_journal_and_is_no_file_is_left_out_with_a_line(ralph, ralph_here, kept) -> None:
    for number, make in enumerate(KINDS.values()):
        make(kept.with_name(f"{number}{ID[1:]}.jsonl"))
    for run, words in (
        (ralph_here, ("sessions", "ls")),
        (ralph_here, ("sessions", "ls", "--all", "--format", "json")),
        (ralph_here, ("sessions", "show")),
        (ralph_here, ("sessions", "export")),
        (ralph_here, ("report", "-o", "-")),
        (ralph, ("-c", "go on")),
        (ralph, ("-r", kept.stem, "go on")),
    ):
        ran = run(*words)
        assert ran.code == 0, (words, ran.stderr)
        told = [line for line in ran.stderr.splitlines() if "it is not a regular file" in line]
        assert len(told) == len(KINDS), words
        assert all(f"skipped {kept.parent}/" in line for line in told)
        assert any(shown in ran.stdout for shown in ("Hello there.", "Done.", kept.stem[:8])), words


def test_a_session_that_is_no_file_is_none(ralph_here, kept) -> None:
    os.mkfifo(kept.with_name(f"{ID}.jsonl"))
    for words in (
        ("sessions", "show", ID[:8]),
        ("sessions", "export", ID[:8]),
        ("report", ID[:8]),
        ("-r", ID[:8], "on"),
    ):
        ran = ralph_here(*words)
        assert ran.code == 2, words
        assert f"no session has an id that begins with '{ID[:8]}'" in ran.last_line


def test_a_record_of_a_loop_that_is_no_file_is_an_error_and_not_waited_for(
    ralph, ralph_here, iterations
) -> None:
    iterations()
    assert ralph("loop", "go", "--max-iterations", "1").code == 0
    for name in ("loop.json", "log.txt"):
        place = loop_folder(ralph) / name
        usual = place.rename(place.with_name("usual"))
        for kind, make in KINDS.items():
            make(place)
            for words in (("show",), ("ls",), ("--status",)):
                assert ralph_here("loop", *words).code in (0, 2, 74), (name, kind, words)
            place.rmdir() if kind == "a directory" else place.unlink()
        usual.rename(place)


@pytest.mark.parametrize("how", ["RALPH_STATE_DIR", "--session-dir"])
def test_a_state_directory_that_is_a_file_is_told_as_that_exits_74(
    ralph, ralph_here, serve, how, tmp_path
) -> None:
    server = serve(HELLO)
    file = tmp_path / "file"
    file.touch()
    words = ("--session-dir", str(file)) if how == "--session-dir" else ()
    if not words:
        ralph.environment[how] = str(file)
    ran = ralph_here("hi", *words, code=74)
    assert f"{file} is not a directory" in ran.last_line
    for command in (("-c",), ("-r", ID[:8])):
        assert ralph_here(*command, "hi", *words).code in (2, 74)
    assert ralph_here("sessions", "ls", *words).code == 74
    if not words:
        assert ralph_here("loop", "go").code == 74
    assert not server.requests


def test_no_session_is_kept_where_a_link_that_commands_can_make_leads_exits_78(
    ralph, ralph_here, serve, tmp_path
) -> None:
    elsewhere, added, written = (tmp_path / name for name in ("elsewhere", "added", "written"))
    for place in (elsewhere, added, written):
        place.mkdir()
    ralph.user_file.write_text(f"[sandbox]\nwrite = ['{written}']\n")
    server = serve(HELLO)
    for where in (ralph.cwd, added, written):
        link = where / "s"
        link.symlink_to(elsewhere)
        ran = ralph_here("go", "--add-dir", str(added), "--session-dir", str(link), code=78)
        assert f"commands may write where {link} is" in ran.stderr
    assert not server.requests
    assert not [*elsewhere.iterdir()]


@pytest.mark.parametrize("place", ["work", "added", "written", SHARED_MEMORY])
def test_no_session_or_loop_is_kept_or_resumed_where_commands_may_write_exits_78(
    ralph, ralph_here, serve, place, tmp_path
) -> None:
    """A command could change what a resumed session may do, and remove from it that it could."""
    for one in ("added", "written"):
        (tmp_path / one).mkdir()
    ralph.user_file.write_text(f"[sandbox]\nwrite = ['{tmp_path}/written']\n")
    server = serve(HELLO)
    state, words = tmp_path / place / "state", ("go", "--add-dir", "../added")
    ralph.environment["RALPH_STATE_DIR"] = str(state)
    for more in (words, ("-c", *words), ("-r", ID, *words), ("loop", *words)):
        ran = ralph_here(*more, code=78)
        assert f"commands may write where {state}/" in ran.last_line
    assert not state.is_dir() or not [*state.glob("*/*/*")]
    del ralph.environment["RALPH_STATE_DIR"]
    if place != SHARED_MEMORY:
        state.mkdir(exist_ok=True)
        for options in ((), ("-c",), ("-r", ID)):
            assert ralph_here(*options, *words, "--session-dir", str(state)).code == 78
    assert not server.requests


def test_the_git_directory_of_a_linked_worktree_is_where_commands_may_write_exits_78(
    ralph, ralph_here, serve, tmp_path
) -> None:
    main = tmp_path / "main"
    server = serve(HELLO)
    for words in (("init", "-q", main), ("-C", main, "commit", "-q", "--allow-empty", "-m", "x")):
        git(*map(str, words))
    ralph.cwd.rmdir()
    git("-C", str(main), "worktree", "add", "-q", str(ralph.cwd))
    state, program = main / ".git/state", main / ".git/tell"
    state.mkdir()
    program.touch(0o755)
    for options, said in (
        (("--session-dir", str(state)), f"commands may write where {state} is"),
        (("--notify", str(program)), f"{program} is found through {main}/.git, where commands may write"),
    ):
        ran = ralph_here("go", *options)
        assert (ran.code, said in ran.last_line) == (78, True), ran.stderr
    assert not server.requests


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words], check=True)


def test_a_record_in_the_work_is_not_continued_exits_78(ralph, ralph_here, serve) -> None:
    serve(HELLO)
    assert ralph("loop", "go", "--until", "test -e done", "--max-iterations", "1").code == 3
    usual = Path(ralph.environment["HOME"], ".local/state/ralph")
    usual.rename(ralph.cwd / "state")
    ralph.environment["RALPH_STATE_DIR"] = str(ralph.cwd / "state")
    ran = ralph_here("loop", "--continue", "--max-iterations", "2", code=78)
    assert "commands may write where" in ran.last_line


def test_where_the_home_is_the_work_sessions_and_loops_are_kept_elsewhere_and_resumed_exits_0(
    ralph, ralph_here, serve
) -> None:
    ralph.environment["HOME"] = str(ralph.cwd)
    own = Path(ralph.environment["TMPDIR"], temporary_name())
    server = serve(*[HELLO] * 4)
    planted = ralph.cwd / ".local/state/ralph"
    first = ralph("go", code=0)
    assert f"sessions are kept in {own}, which may be cleared at any time: commands may write" in first.stderr
    [journal] = own.glob("*/*.jsonl")
    # As a command could make it.
    forged = planted / "sessions" / journal.parent.name / f"{ID}.jsonl"
    forged.parent.mkdir(parents=True)
    forged.write_bytes(journal.read_bytes())
    assert ralph_here("-r", ID, "go on").code == 2
    assert ralph("-c", "go on").code == 0
    assert len([*own.glob("*/*.jsonl")]) == 1

    assert ralph("loop", "go", "--until", "test -e done", "--max-iterations", "1").code == 3
    record = next(own.glob("loops/*/*"))
    assert not [*planted.glob("loops/*/*")]
    forged = planted / "loops" / record.parent.name / "9999"
    shutil.copytree(record, forged)
    text = (forged / "loop.json").read_text()
    assert "test -e done" in text
    (forged / "loop.json").write_text(text.replace("test -e done", "touch forged"))
    asked = len(server.requests)
    assert ralph("loop", "--continue", "--max-iterations", "2").code == 3
    assert not (ralph.cwd / "forged").exists()
    assert len(server.requests) == asked + 1


def test_in_the_root_directory_a_session_is_kept_and_not_resumed_exits_78(tmp_path) -> None:
    """Commands that may write everything can replace ralph itself: no other place would be better."""
    place = tmp_path / "kept"
    assert SessionStore.for_user({}, place, roots=["/"]).root == place
    for named in (place, None):
        with pytest.raises(CannotError, match="commands may write where"):
            SessionStore.for_user({"HOME": str(tmp_path)}, named, roots=["/"], is_old=True)


def test_a_resumed_session_writes_in_no_directory_that_is_not_named_again(ralph, serve, tmp_path) -> None:
    added = tmp_path / "added"
    added.mkdir()
    write = calls(("Write", {"file_path": str(added / "x"), "content": "x"}))
    serve(HELLO, write, HELLO, write, HELLO)
    ralph("go", "--add-dir", "../added", "--max-turns", "1", code=0)
    closed = ralph("-c", "go on", code=0)
    assert "are closed now: name them again (--add-dir /" in closed.stderr
    assert not (added / "x").exists()
    ralph("-c", "go on", "--add-dir", "../added", code=0)
    assert (added / "x").exists()
