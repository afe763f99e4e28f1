"""Tests which targets, tools and settings of a session a later run keeps, and which it replaces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, ToolUse, Turn
from tests.patience import wait_until
from tests.program.faulty import HELLO
from tests.program.kept_sessions import only_journal
from tests.program.several import DOWN, at, run, settings

if TYPE_CHECKING:
    from pathlib import Path


def resumed(ralph, path: Path, *arguments: str):
    return ralph("-c", "--config", str(path), "--output-format", "stream-json", *arguments)


def test_a_setting_that_a_gateway_needs_counts_in_a_session_that_began_without_it(ralph, serve) -> None:
    server = serve(Fault(status=400, message="thinking is not supported here"), HELLO)
    model = "claude-opus-4-8"
    path = settings(ralph, at("main", server.base_url, model))
    assert run(ralph, path).code == 69
    assert json.loads(server.requests[0].body)["thinking"] == {"type": "adaptive"}
    again = resumed(ralph, settings(ralph, at("main", server.base_url, model, thinking="none"))).having(0)
    assert "thinking" not in json.loads(server.requests[1].body)
    assert "main: requests change from here on" in again.stderr


def test_a_prompt_given_while_a_command_is_pending_outlives_the_next_kill(ralph, serve) -> None:
    wait = Turn(
        [ToolUse("Bash", {"command": "touch started; sleep 60"}), ToolUse("Bash", {"command": "sleep 60"})]
    )
    server = serve(wait, HELLO)
    process = ralph.start("go")
    wait_until((ralph.cwd / "started").exists)
    process.kill()
    ralph.finish(process)
    second = ralph.start("-c", "VERY IMPORTANT")
    wait_until(lambda: b"VERY IMPORTANT" in only_journal(ralph).read_bytes())
    second.kill()
    ralph.finish(second)
    third = ralph.start("-c")  # the second command is run, as nobody had announced it, and is in the way
    wait_until(lambda: only_journal(ralph).read_bytes().count(b'"kind":"tool_intent"') >= 2)
    third.kill()
    ralph.finish(third)
    assert ralph("-c").code == 0
    assert b"VERY IMPORTANT" in server.requests[-1].body


def test_a_retry_that_is_switched_on_is_one_though_the_command_line_said_off(drive, serve) -> None:
    server = serve(Fault(status=529, headers={"retry-after": "0"}), HELLO)
    driver = drive("--retry", "off")
    assert driver.ask("get_status")["auto_retry"] is False
    assert driver.ask("set_auto_retry", enabled=True) == {"enabled": True}
    driver.say("hi")
    assert driver.finish().code == 0
    assert len(server.requests) == 2


def test_a_target_that_a_resume_does_without_is_named(ralph, serve) -> None:
    main, spare = serve(Fault(status=529), HELLO), serve(HELLO)
    path = settings(ralph, at("main", main.base_url), at("spare", spare.base_url))
    assert run(ralph, path).code == 0
    again = ralph("-c", "and now?", "--base-url", main.base_url, code=0)
    assert "targets of this session that this run does not have: spare" in again.stderr
    assert "not in this run" not in ralph("-c", "and now?", "--config", str(path)).stderr


@pytest.mark.sandboxed
def test_the_resume_command_says_again_what_was_said_and_is_needed(ralph, ralph_here, serve) -> None:
    server = serve(DOWN)
    path = settings(ralph, at("main", server.base_url))
    ended = run(ralph, path, "--retry", "off")
    resume_line = f"--config {path} --retry off"
    assert ended.code == 75
    assert ended.result["hints"][-1].endswith(resume_line)
    assert ralph_here("sessions", "show").stdout.splitlines()[-1].endswith(resume_line)
