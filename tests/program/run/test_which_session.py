"""Tests which session a run resumes, in which directory and with which target. It must be the intended one, or one
line must say why not.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Step, ToolUse, Turn
from tests.program.kept_sessions import HELLO, listed, only_journal
from tests.program.model_answers import calls

if TYPE_CHECKING:
    from tests.program.conftest import Finished

ID = "0000000a-0000-4000-8000-00000000000a"
OTHER_ID = "0000000b-0000-4000-8000-00000000000b"
OVERLOADED = Fault(status=529)
NO_RETRY = ("--retry", "off")


def hinted(ran: Finished) -> list[str]:
    """The arguments of the command that the run names to resume it."""
    [line] = [line for line in ran.stderr.splitlines() if "continue with: " in line]
    program, *arguments = shlex.split(line.partition("continue with: ")[2])
    assert program == "ralph"
    return arguments


# The one that was meant


def test_continue_finds_the_last_session_of_this_directory_however_long_its_system_prompt_is(
    ralph, serve
) -> None:
    serve(*[Turn("Hello.", usage={"input_tokens": 300_000, "output_tokens": 5})] * 4)
    (ralph.cwd / "system.txt").write_text("x" * 3_000_000)
    assert ralph("older", "--session-id", ID).code == 0
    ralph(
        "newer",
        "--session-id",
        OTHER_ID,
        "--append-system-prompt-file",
        str(ralph.cwd / "system.txt"),
        code=0,
    )
    elsewhere = ralph.cwd / "elsewhere"
    elsewhere.mkdir()
    assert ralph("of another directory", "--cd", str(elsewhere)).code == 0
    ran = ralph("-c", "on", "--output-format", "json")
    assert (ran.code, ran.result["session_id"]) == (0, OTHER_ID)


def test_a_run_says_which_session_it_continues(ralph, serve) -> None:
    serve(HELLO, HELLO, HELLO)
    assert ralph("fix the  parser\nplease", "--session-id", ID.upper()).code == 0
    os.utime(only_journal(ralph), (only_journal(ralph).stat().st_mtime - 7300,) * 2)
    for how in (["-c"], ["-r", ID[:8].upper(), "--fork-session"]):
        ran = ralph(*how, "on")
        assert f"resuming {ID[:8]} (last written to " in ran.stderr
        assert " ago: fix the parser please)" in ran.stderr
    assert ran.code == 0


def test_a_completed_session_asks_for_a_prompt_and_shows_the_line_that_works(
    ralph, ralph_here, serve
) -> None:
    serve(HELLO, Turn("And on."))
    assert ralph("begin").code == 0
    refused = ralph_here("-c", "--retry", "off", code=2)
    told = refused.last_line.partition("is complete: say what to do next: ")[2]
    program, *arguments = shlex.split(told.removesuffix("; see `ralph run --help`"))
    assert program == "ralph"
    assert arguments[-1] == "what to do next"
    ran = ralph(*arguments)
    assert (ran.code, ran.stdout) == (0, "And on.\n")


def test_an_id_of_no_session_or_of_several_exits_2(ralph, ralph_here, serve) -> None:
    serve(HELLO, HELLO)
    assert [ralph("look at it", "--session-id", name).code for name in (ID, OTHER_ID)] == [0, 0]
    for command in (["-r", "0000001a", "on"], ["sessions", "show", "0000001a"]):
        ran = ralph_here(*command, code=2)
        assert "no session has an id that begins with '0000001a'" in ran.stderr
        assert len(ran.stderr.splitlines()) == 1
    several = ralph_here("-r", ID[:7], "on", code=2)
    assert ID in several.last_line
    assert OTHER_ID in several.last_line


# The command that resumes


def test_the_hint_of_a_run_leads_back_to_its_session_from_anywhere(ralph, serve, tmp_path) -> None:
    server = serve(OVERLOADED, Turn("Done."))
    del ralph.environment["ANTHROPIC_BASE_URL"]
    place, work = tmp_path / "my sessions", tmp_path / "my work"
    work.mkdir()
    words = ["--cd", str(work), "--session-dir", str(place), "--base-url", server.base_url]
    failed = ralph("go", *NO_RETRY, *words, code=75)
    ralph.cwd = tmp_path
    assert ralph(*hinted(failed)).code == 0
    assert server.requests[0].body == server.requests[1].body


def test_a_journal_that_was_deleted_during_the_run_is_not_hinted_at(ralph, serve) -> None:
    deletes = Turn([ToolUse("Bash", {"command": "rm -r ~/.local/state/ralph"})])
    serve(deletes, OVERLOADED)
    ran = ralph("go", *NO_RETRY, "--sandbox", "off", code=75)
    assert "continue with" not in ran.stderr


def test_a_conversation_goes_to_another_server_only_where_that_is_said_exits_78_or_0(
    ralph, ralph_here, serve
) -> None:
    first = serve(HELLO)
    assert ralph("go").code == 0
    before = only_journal(ralph).read_bytes()
    second = serve(HELLO, HELLO)
    for how in (["-c"], ["-c", "--fork-session"]):
        ran = ralph_here(*how, "on", code=78)
        assert first.base_url in ran.last_line
        assert f"--base-url {second.base_url}" in ran.last_line
    assert only_journal(ralph).read_bytes() == before
    assert second.request_count == 0
    assert ralph("-c", "on", "--base-url", second.base_url).code == 0
    assert ralph("-c", "and on").code == 0, "it is with the second one now"


# Where


def test_from_elsewhere_the_way_to_the_directory_is_told_so_that_a_shell_takes_it(
    ralph, ralph_here, serve
) -> None:
    elsewhere, ralph.cwd = ralph.cwd, ralph.cwd / "my caf\udce9"
    ralph.cwd.mkdir()
    serve(HELLO, HELLO)
    assert ralph("go", "--session-id", ID).code == 0
    ralph.cwd = elsewhere
    ran = ralph_here("-r", ID, "on", code=2)
    command = ran.last_line.partition("resume it there: ")[2]
    words = subprocess.check_output(["bash", "-c", f"ralph() {{ printf '%s\\0' \"$@\"; }}; {command} on"])
    ralph(*map(os.fsdecode, words.split(b"\0")[:-1]), code=0)


@pytest.mark.parametrize("forks", [False, True])
def test_a_session_whose_directory_has_moved_continues_where_it_is_asked_to(
    ralph, ralph_here, serve, forks
) -> None:
    server = serve(HELLO, HELLO, HELLO)
    old, new = ralph.cwd / "old", ralph.cwd / "new"
    old.mkdir()
    assert ralph("go", "--session-id", ID, "--cd", str(old)).code == 0
    old.rename(new)
    fork = ["--fork-session", "--session-id", OTHER_ID] if forks else []
    ran = ralph("-r", ID, "on", "--cd", str(new), *fork, code=0)
    assert f"directory {old} is gone; it continues in {new}" in ran.stderr
    assert f"Working directory: {new}\\n".encode() in (server.requests[-1].body or b"")
    old.mkdir()
    ran = ralph("-r", OTHER_ID if forks else ID, "and on", "--cd", str(new))
    assert ran.code == 0, "it belongs to the new one now"
    assert "is gone" not in ran.stderr
    [cwd] = {s["cwd"] for s in listed(ralph_here, "--all") if s["id"] == (OTHER_ID if forks else ID)}
    assert cwd == str(new)


def test_a_copy_of_a_session_continues_elsewhere_and_its_model_is_told_until_it_answers(ralph, serve) -> None:
    read, edit = (
        ToolUse("Read", {"file_path": "file.txt"}),
        ToolUse("Edit", {"file_path": "file.txt", "old_string": "old", "new_string": "new"}),
    )
    away = Step(fault=OVERLOADED)
    server = serve(Turn([read]), away, away, Turn([edit]), Turn("Done."), Turn("More."))
    old, new = ralph.cwd / "old", ralph.cwd / "new"
    old.mkdir()
    (old / "file.txt").write_text("old\n")
    assert ralph("go", "--session-id", ID, "--cd", str(old), *NO_RETRY).code == 75
    shutil.copytree(old, new)
    (new / "file.txt").write_text("old, and changed since it was read\n")
    here = ("-r", ID, "--cd", str(new), *NO_RETRY)
    assert ralph(*here).code == 2, "the old directory is still there"
    for code in (75, 0):
        assert ralph(*here, "--moved").code == code
    moved = f"System notice: The working directory is now {new}; it was {old}. Paths below the old directory"
    said = [moved in str(request.json()["messages"]) for request in server.requests]
    assert said == [False, False, True, True, True], (
        "told again until an answer came, and then part of the past"
    )
    assert str(server.requests[-1].json()["messages"]).count(moved) == 1
    assert f"Working directory: {new}\n" in server.requests[-1].json()["system"][0]["text"]
    assert "changed on disk since it was read" in str(server.requests[-1].json()["messages"][-1])
    assert (old / "file.txt").read_text() == "old\n"
    assert ralph(*here, "--moved", "and more").code == 0
    assert str(server.requests[-1].json()["messages"]).count(moved) == 1, "once it has answered, it knows"


def test_a_fork_elsewhere_that_got_no_answer_is_told_of_the_move_when_it_is_resumed(ralph, serve) -> None:
    server = serve(HELLO, OVERLOADED, HELLO)
    old, new = ralph.cwd / "old", ralph.cwd / "new"
    old.mkdir()
    assert ralph("go", "--session-id", ID, "--cd", str(old)).code == 0
    old.rename(new)
    fork = ("-r", ID, "and on", "--fork-session", "--session-id", OTHER_ID)
    assert ralph(*fork, "--cd", str(new), *NO_RETRY).code == 75
    assert ralph("-r", OTHER_ID, "--cd", str(new), *NO_RETRY).code == 0
    for request in server.requests[1:]:
        assert f"The working directory is now {new}; it was {old}." in str(request.json()["messages"])
        assert f"Working directory: {new}\n" in request.json()["system"][0]["text"]


def test_what_is_shown_of_a_moved_session_prescribes_nothing_impossible(ralph, ralph_here, serve) -> None:
    serve(HELLO)
    gone = ralph.cwd / "gone"
    gone.mkdir()
    assert ralph("go", "--session-id", ID, "--cd", str(gone)).code == 0
    shutil.rmtree(gone)
    assert "--cd" not in ralph_here("sessions", "show", ID).stdout


def test_continue_of_a_session_that_ended_before_its_first_message_begins_with_the_prompt(
    ralph, serve
) -> None:
    serve(HELLO)
    assert ralph("go", "--session-id", ID).code == 0
    [journal] = Path(ralph.environment["HOME"]).rglob(f"{ID}.jsonl")
    journal.write_bytes(journal.read_bytes().split(b"\n")[0] + b"\n")
    serve(Turn("Done."))
    ran = ralph("--continue", "Begin.")
    assert (ran.code, ran.stdout) == (0, "Done.\n")
    assert "it ends before its first message: a new one begins" in ran.stderr
    assert ralph("--resume", ID, "Begin.").code == 2


def test_a_place_of_sessions_that_does_not_exist_has_none_to_resume_and_is_not_made_exits_2(
    ralph, ralph_here
) -> None:
    nowhere = ralph.cwd.parent / "nope"
    for words in (("-c",), ("-r", ID)):
        ran = ralph_here(*words, "--session-dir", str(nowhere), "go on")
        assert (ran.code, ran.stdout, nowhere.exists()) == (2, "", False)
        assert f"--session-dir: {nowhere} does not exist, so it has no session to resume" in ran.stderr


def test_the_printed_command_names_the_rights_again_that_a_resume_would_not_take_exits_0(
    ralph, serve, tmp_path
) -> None:
    added = tmp_path / "added"
    added.mkdir()
    server = serve(*(calls(("Bash", {"command": "touch x"})) for _ in range(4)))
    rights = ("--add-dir", str(added), "--disallowed-tools", "Write,Bash(touch:*),Bash(git log -n 1)")
    for kept in (("--session-dir", "../kept"), ()):
        ran = ralph("go", *kept, *rights, "--max-turns", "1", code=3)
        command = hinted(ran)
        assert not {*rights[:2]}.difference(command)
        assert "--disallowed-tools" not in command
        assert ralph("run", *command, "--max-turns", "1").code == 3
        tools = [{tool["name"] for tool in json.loads(one.body)["tools"]} for one in server.requests[-2:]]
        assert tools[0] == tools[1]
    assert not (ralph.cwd / "x").exists()
