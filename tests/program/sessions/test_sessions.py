"""`ralph sessions` with journals of real runs: completed, failed, killed, running and forked ones."""

from __future__ import annotations

import json
import os
import pty
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.conversation.journal_lines import sealed
from ralph.mock_api import Text, ToolUse, Turn
from tests.patience import PATIENCE_S, wait_until
from tests.processes.terminals import read_all
from tests.program.conftest import KEY
from tests.program.kept_sessions import HELLO, LOOKS, journals, listed, only_journal

if TYPE_CHECKING:
    import subprocess


@pytest.fixture
def session(ralph, serve) -> Path:
    """The journal of a completed session with a failed call."""
    serve(LOOKS, HELLO)
    assert ralph("look at it").code == 0
    return only_journal(ralph)


def start_call_that_lasts(ralph, serve) -> subprocess.Popen[bytes]:
    marker = ralph.cwd / "started"
    serve(Turn(content=[Text("I wait."), ToolUse("Bash", {"command": f"touch {marker}; sleep 60"})]), HELLO)
    process: subprocess.Popen[bytes] = ralph.start("wait a long time")
    wait_until(marker.exists)
    return process


def test_a_run_is_running_until_it_is_killed_and_then_says_where(ralph, ralph_here, serve) -> None:
    process = start_call_that_lasts(ralph, serve)
    assert listed(ralph_here)[0]["outcome"] == "running"
    shown = ralph_here("sessions", "show").stdout
    assert "  under way\n[running] in process " in shown
    assert "continue with" not in shown
    assert "still running" in ralph_here("sessions", "export").stdout
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert listed(ralph_here)[0]["outcome"] == "killed"
    shown = ralph_here("sessions", "show").stdout
    assert "I wait.\n[tool] Bash: touch " in shown
    assert "  killed while it ran: its effects are unknown\n[killed] this run " in shown
    assert "continue with: ralph --resume" in shown
    assert ralph("-c").code == 0, "looking has left nothing behind"
    assert "[run 2] " in ralph_here("sessions", "show").stdout


def test_looking_at_a_running_session_never_gets_in_its_way(ralph, ralph_here, serve) -> None:
    steps = [Turn(content=[ToolUse("Bash", {"command": f"sleep 0.1; echo {n}"})]) for n in range(4)]
    serve(*steps, HELLO)
    process = ralph.start("work")
    wait_until(lambda: bool(journals(ralph)))
    seen = set()
    while process.poll() is None:
        seen.add(str(listed(ralph_here)[0]["outcome"]))
        assert ralph_here("sessions", "show").code == 0
        time.sleep(0.05)
    assert ralph.finish(process).code == 0
    assert seen <= {"running", "empty", "completed"}
    assert "running" in seen


def test_an_empty_store_is_one_line_and_nothing_is_made(ralph, ralph_here) -> None:
    for arguments in ([], ["--all"]):
        ran = ralph_here("sessions", "ls", *arguments)
        assert (ran.code, ran.stdout) == (0, "")
        assert "no session" in ran.stderr
        assert len(ran.stderr.splitlines()) == 1
    assert listed(ralph_here) == []
    assert list(Path(ralph.environment["HOME"]).iterdir()) == []


def renamed(session: Path, name: str) -> None:
    """Copies the session under another id."""
    opening, *rest = session.read_bytes().splitlines(keepends=True)
    fields = {**json.loads(opening), "id": name}
    del fields["crc"]
    session.with_name(f"{name}.jsonl").write_bytes(b"".join([sealed(fields), *rest]))


def test_an_unknown_or_ambiguous_id_is_one_line(ralph_here, session) -> None:
    ids = [f"aaaaaaaa-0000-4000-8000-00000000000{n}" for n in range(2)]
    for name in ids:
        renamed(session, name)
    for command in ("show", "export"):
        ran = ralph_here("sessions", command, "aaaa")
        assert (ran.code, ran.stdout) == (2, "")
        assert all(name in ran.stderr for name in ids)
        ran = ralph_here("sessions", command, "zzzz")
        assert (ran.code, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
        assert ralph_here("sessions", command, " ").code == 2
    assert f"ralph --resume {ids[1]} " in ralph_here("sessions", "show", ids[1]).stdout, (
        "8 characters are not enough"
    )


def on_a_terminal(ralph, *arguments: str) -> str:
    main, terminal = pty.openpty()
    process = ralph.start("sessions", *arguments, stdout=terminal)
    os.close(terminal)
    shown = read_all(main)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return shown.decode()


def test_a_terminal_gets_a_header_and_colour_unless_it_wants_none(ralph, session) -> None:
    assert "\x1b[2mID" in on_a_terminal(ralph, "ls")
    assert "\x1b[34m[tool] Bash" in on_a_terminal(ralph, "show")
    ralph.environment["NO_COLOR"] = "1"
    plain = on_a_terminal(ralph, "ls")
    assert plain.startswith("ID ")
    assert "\x1b" not in plain + on_a_terminal(ralph, "show")


def test_old_journals_are_removed_at_the_end_of_a_run(ralph, serve, session) -> None:
    os.utime(session, (time.time() - 31 * 86_400,) * 2)
    serve(HELLO, HELLO)
    ralph.user_file.write_text("[sessions]\nkeep_days = 0\n")
    ralph("first")
    assert session.exists()
    ralph.user_file.unlink()
    ran = ralph("second")
    assert (ran.code, session.exists(), len(journals(ralph))) == (0, False, 2)


def test_a_title_names_a_session_and_a_title_of_two_names_both_exits_2(ralph, ralph_here, serve) -> None:
    serve(*[HELLO] * 5)
    assert ralph("look at it", "-n", "The Parser").code == 0
    assert ralph("fix the lexer").code == 0
    assert ralph("-r", "the  parser", "more").code == 0
    named = next(path for path in journals(ralph) if "The Parser" in path.read_text())
    assert ralph_here("sessions", "show", "THE PARSER").stdout.split()[1] == named.stem
    assert ralph_here("sessions", "show", "fix the lexer").code == 0
    part = ralph_here("-r", "parser", "more")
    assert (part.code, "begins with 'parser', or this title" in part.last_line) == (2, True)
    assert ralph("go", "-n", "the parser").code == 0
    ran = ralph_here("-r", "The parser", "more", code=2)
    both = [path.stem[:8] for path in journals(ralph) if "arser" in path.read_text()]
    assert "2 sessions have an id that begins with, or the title 'The parser': " in ran.last_line
    assert (len(both), [one in ran.last_line for one in both]) == (2, [True, True])
    # A title that is also the beginning of an id names two sessions.
    assert ralph("go", "-n", both[0][:4]).code == 0
    assert (
        f"2 sessions have an id that begins with, or the title '{both[0][:4]}'"
        in ralph_here("-r", both[0][:4], "x").stderr
    )


def test_a_session_is_removed_with_what_was_cut_off_it_and_only_if_all_names_are_right(
    ralph, ralph_here, serve
) -> None:
    serve(HELLO, HELLO)
    for task in ("fix the lexer", "look at it"):
        assert ralph(task).code == 0
    lexer = next(path for path in journals(ralph) if "lexer" in path.read_text())
    lexer.with_suffix(".torn").write_bytes(b"{")
    assert ralph_here("sessions", "rm", lexer.stem, "bogus").code == 2
    assert ralph_here("sessions", "rm").code == 2
    assert lexer.exists()
    ran = ralph("sessions", "rm", "fix the lexer", lexer.stem[:8])
    assert (ran.code, ran.stderr) == (0, "")
    assert re.fullmatch(rf"removed {lexer.stem[:8]} \(last written to .* ago: fix the lexer\)\n", ran.stdout)
    assert [path.name for path in lexer.parent.iterdir()] == [only_journal(ralph).name]
    assert ralph_here("sessions", "rm", only_journal(ralph).stem).code == 0
    assert not lexer.parent.exists()


def test_a_session_that_a_run_has_open_is_not_removed_exits_78(ralph, serve) -> None:
    process = start_call_that_lasts(ralph, serve)
    running = only_journal(ralph)
    ran = ralph("sessions", "rm", running.stem[:8])
    assert (ran.code, ran.stdout, running.exists()) == (78, "", True)
    assert f"session {running.stem} is in use by process {process.pid}, since " in ran.stderr
    process.terminate()
    ralph.finish(process)
    assert ralph("sessions", "rm", running.stem[:8]).code == 0


def test_a_search_finds_prompts_answers_calls_and_results_but_no_secret(ralph, ralph_here, serve) -> None:
    serve(LOOKS, HELLO, Turn(f"The key is {KEY}."), HELLO)
    assert ralph("look at it").code == 0
    for text, line in {
        "LOOK at": "look at it",
        "hello": "Hello there.",
        "exit 3": "echo found; exit 3",
        "Exit code": "Exit code 3",
    }.items():
        ran = ralph("sessions", "search", text)
        assert (ran.code, ran.stderr) == (0, ""), text
        row, *lines = ran.stdout.splitlines()
        assert (row.split()[0], lines) == (only_journal(ralph).stem[:8], [f"    > {line}"]), text
    assert ralph("-c", "tell").code == 0
    none = ralph_here("sessions", "search", KEY)
    assert (none.code, none.stdout) == (0, "")
    assert "the text does not occur in any of 1 session" in none.stderr
    assert ralph_here("sessions", "search", " ").code == 2
    ralph.cwd.joinpath("below").mkdir()
    elsewhere = ("--cd", "below")
    assert ralph("hello from below", *elsewhere).code == 0
    found = ralph_here("sessions", "search", "hello", "--all").stdout
    assert sum(not line.startswith(" ") for line in found.splitlines()) == 2
