"""`--max-time`: the run ends in time, whatever it is doing, and exits with 124."""

from __future__ import annotations

import subprocess

import pytest

from ralph.mock_api import Fault, Step, ToolUse, Turn
from tests.patience import PATIENCE_S
from tests.program.machine.test_signals import is_alive
from tests.program.slow_servers import flood


def test_a_time_limit_is_not_put_off_by_a_server_that_never_stops_exits_124(ralph, answer_with) -> None:
    answer_with(flood)
    (ralph.cwd / "ralph.toml").write_text('[limits]\nmax_time_s = "0.5s"\n')
    assert ralph("hi").code == 124


def test_a_time_limit_ends_a_command_and_all_it_started_exits_124(ralph, serve) -> None:
    marker = f"ralphlimit{id(ralph)}"
    serve(
        Turn([ToolUse("Bash", {"command": f"bash -c 'sleep 1000000 # {marker}' & sleep 1000000 # {marker}"})])
    )
    ralph("hi", "--max-time", "1.5", "--output-format", "json", code=124)
    assert not is_alive(marker)


@pytest.mark.parametrize("arguments", [["-"], ["go"]], ids=["prompt", "beside the prompt"])
def test_a_time_limit_ends_the_wait_for_a_pipe_exits_124(ralph, serve, arguments) -> None:
    server = serve(Turn("never"))
    process = ralph.start(*arguments, "--max-time", "1", stdin=subprocess.PIPE)
    process.stdin.write(b"x")
    process.stdin.flush()
    assert process.wait(timeout=PATIENCE_S) == 124
    assert server.requests == ()
    process.communicate()


def test_the_error_before_a_time_limit_is_told_too_exits_124(ralph, serve) -> None:
    ralph.retry_quickly()
    serve(Fault(status=529), Step(Turn("never"), Fault(stall_before_headers_s=60)))
    ran = ralph("hi", "--max-time", "1.2s", "--output-format", "json", code=124)
    assert ran.result["api_error_status"] == 529
    assert "is used up, after: HTTP 529" in ran.last_line
    assert (
        "[retry] Failed after 1 retries: the time limit (--max-time) is used up, after: HTTP 529"
        in ran.stderr
    )
