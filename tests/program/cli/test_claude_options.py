"""Options that people type for Claude Code, in whole runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ralph import __version__
from ralph.mock_api import Turn
from tests.program.conftest import KEY, first_prompt
from tests.program.model_answers import DONE, bash
from tests.program.prompt.test_memory import about_memory

OUTPUT = ("--output-format", "stream-json")


def init_of(ran: Any) -> dict[str, Any]:
    return next(one for one in ran.objects if one.get("subtype") == "init")


def test_v_is_the_version(ralph) -> None:
    assert ralph("-v").stdout == ralph("--version").stdout == f"ralph {__version__}\n"


@pytest.mark.parametrize(
    "words", [("--betas", "a-1", "b-2"), ("--betas", "a-1,b-2"), ("--betas=a-1", "--betas=b-2")]
)
def test_betas_are_a_header(ralph, serve, words) -> None:
    server = serve(DONE, DONE)
    assert ralph("-p", "go", *words).code == 0
    assert server.requests[0].headers["anthropic-beta"] == "a-1,b-2"
    ralph.environment["ANTHROPIC_CUSTOM_HEADERS"] = "Anthropic-Beta: c-3\nX-Other: 1"
    assert ralph("-p", "go", *words).code == 0
    assert server.requests[1].headers["anthropic-beta"] == "c-3,a-1,b-2"
    assert server.requests[1].headers["x-other"] == "1"


def test_a_beta_that_is_no_name_is_refused_exits_2(ralph_here) -> None:
    ran = ralph_here("go", "--betas", "a\nX-Evil: 1", code=2)
    assert "--betas must contain names of betas" in ran.stderr


def test_restricted_takes_bash_away_and_is_strict(ralph, serve) -> None:
    server = serve(DONE)
    ran = ralph("go", "--restricted", "--disallowedTools", "Edit", *OUTPUT)
    if ran.code == 78:
        pytest.skip("no sandbox here")
    assert ran.code == 0, ran.stderr
    assert init_of(ran)["tools"] == ["Read", "Write", "Glob", "Grep"]
    assert "(flag --disallowed-tools, flag --restricted)" in ran.stderr
    assert len(server.requests) == 1
    refused = ralph("go", "--restricted", "--sandbox", "off", *OUTPUT)
    assert init_of(refused)["sandbox"] != "none"


@pytest.mark.parametrize("option", ["--bare", "--safe-mode"])
def test_a_bare_run_reads_nothing_of_the_project(ralph, serve, option: str) -> None:
    serve(DONE)
    (ralph.cwd / "CLAUDE.md").write_text("Rule.")
    (ralph.cwd / ".claude/commands").mkdir(parents=True)
    (ralph.cwd / ".claude/commands/fix.md").write_text("Fix.")
    ran = ralph("go", option, *OUTPUT)
    assert about_memory(ran) == []
    assert init_of(ran)["slash_commands"] == []
    assert ralph("/fix", option).code == 2


def test_without_slash_commands_a_slash_is_text(ralph, serve) -> None:
    server = serve(DONE, DONE)
    (ralph.cwd / ".claude/commands").mkdir(parents=True)
    (ralph.cwd / ".claude/commands/fix.md").write_text("Fix.")
    for prompt in ("/fix it", "/fxi it"):
        assert ralph(prompt, "--disable-slash-commands").code == 0
    assert [first_prompt(request) for request in server.requests] == ["/fix it", "/fxi it"]


def test_a_title_is_in_lists_and_the_last_one_counts(ralph, serve) -> None:
    serve(DONE, DONE, DONE)
    assert ralph("first task", "-n", "Night\n shift").code == 0
    assert "Night shift" in ralph("sessions", "ls").stdout
    assert ralph("more", "-c").code == 0
    (listed,) = json.loads(ralph("sessions", "ls", "--format", "json").stdout)
    assert (listed["title"], listed["task"]) == ("Night shift", "first task")
    assert ralph("still more", "-c", "--name", "Day").code == 0
    shown = ralph("sessions", "show", listed["id"]).stdout
    assert "title" in shown
    assert "Day" in shown


@pytest.mark.parametrize("words", ["", " \n", "x" * 201])
def test_a_title_is_one_short_line_exits_2(ralph_here, words: str) -> None:
    ran = ralph_here("go", "--name", words, code=2)
    assert "--name must have 1 to 200 characters" in ran.stderr


def debug_lines(text: str) -> list[str]:
    return [line.split()[2] for line in text.splitlines() if line.startswith("[debug] ")]


def test_diagnostics_name_each_event_and_hold_no_text_and_no_secret(ralph, serve) -> None:
    serve(bash("echo canary-5d1e"), Turn(f"canary-5d1e {KEY}"))
    ran = ralph("go", "-d", "-q", code=0)
    names = debug_lines(ran.stderr)
    for name in ("RunStarted", "TurnStarted", "AttemptEnded", "ToolStarted", "ToolFinished", "RunEnded"):
        assert name in names
    assert "StreamReceived" in names
    debug = "".join(line for line in ran.stderr.splitlines() if line.startswith("[debug]"))
    assert KEY not in debug
    assert "canary-5d1e" not in debug


def test_diagnostics_are_appended_to_a_file(ralph, serve) -> None:
    serve(DONE, DONE)
    for _ in range(2):
        ran = ralph("go", "--debug-file", "debug.log", *OUTPUT, code=0)
        assert debug_lines(ran.stderr) == []
    names = debug_lines((ralph.cwd / "debug.log").read_text())
    assert names.count("RunStarted") == names.count("RunEnded") == 2
    assert (ralph.cwd / "debug.log").stat().st_mode & 0o777 == 0o600


def test_a_planted_link_for_diagnostics_is_not_followed(ralph, serve) -> None:
    serve(DONE)
    target = ralph.cwd.parent / "target"
    target.write_text("mine\n")
    (ralph.cwd / "debug.log").symlink_to(target)
    ran = ralph("go", "--debug-file", "debug.log", code=0)
    assert f"[notice] cannot write {ralph.cwd}/debug.log (" in ran.stderr
    assert "RunEnded" in debug_lines(ran.stderr)
    assert target.read_text() == "mine\n"
