"""How long a stop takes, and by how much time limits are exceeded, when commands ignore every signal that they can."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from tests.patience import wait_until, within_s
from tests.program.conftest import loop_lines, processes_of
from tests.program.mcp.test_mcp_faults import FAULTY
from tests.program.mcp.test_mcp_servers import config
from tests.program.model_answers import DONE, bash
from tests.program.namespaces import needs_namespaces

if TYPE_CHECKING:
    import subprocess

    from tests.program.conftest import Ralph

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")

SANDBOXES = ["off", pytest.param("auto", marks=needs_namespaces)]
STUBBORN_SERVER = f"import signal; signal.signal(15, signal.SIG_IGN)\n{FAULTY}\ntime.sleep(3600)"
STUBBORN = "trap '' TERM INT HUP; touch started; while :; do date +%s.%N >> ticks.$$; sleep 0.05; done"


def ticked_s(ralph) -> float:
    """The seconds for which the command ran, at most if it ran several times."""
    runs = [[*map(float, file.read_text().split())] for file in ralph.cwd.glob("ticks.*")]
    return max(ticks[-1] - ticks[0] for ticks in runs)


def ends_within_six_seconds(ralph: Ralph, process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(within_s(6))
    assert process.communicate()[0] is not None
    assert process.returncode == 143
    assert processes_of(ralph) == {}


@pytest.mark.parametrize("command", [("run",), ("loop", "--max-iterations", "1")], ids=lambda words: words[0])
def test_a_stop_takes_six_seconds_at_most_whatever_a_command_ignores(ralph, serve, command) -> None:
    """Nobody reads standard output either, and it is full."""
    serve(bash(f"{STUBBORN} & yes | head -c 300000; wait"))
    process = ralph.start(*command, "go.", "--output-format", "stream-json")
    wait_until((ralph.cwd / "started").exists)
    ends_within_six_seconds(ralph, process)


def test_a_stop_takes_six_seconds_at_most_if_the_supervisor_of_commands_is_stopped(ralph, serve) -> None:
    serve(bash(STUBBORN))
    process = ralph.start("go")
    wait_until((ralph.cwd / "started").exists)
    for pid, words in processes_of(ralph).items():
        if "supervisor" in words:  # its launcher has the same words
            os.kill(pid, signal.SIGSTOP)
    ends_within_six_seconds(ralph, process)


@needs_namespaces
@pytest.mark.sandboxed
def test_a_stop_takes_six_seconds_at_most_whatever_servers_ignore(ralph, serve) -> None:
    serve(bash(STUBBORN))
    servers = {f"s{nth}": {"command": "python3", "args": ["-c", STUBBORN_SERVER]} for nth in range(2)}
    process = ralph.start("go", "--mcp-config", config(**servers))
    wait_until((ralph.cwd / "started").exists)
    ends_within_six_seconds(ralph, process)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_hook_has_two_seconds_more_than_its_timeout_at_most(ralph, serve, sandbox) -> None:
    server = serve(bash("echo hi"), DONE)
    hook = {"type": "command", "command": f"date +%s.%N > began; {STUBBORN}", "timeout": 1}
    settings = json.dumps({"hooks": {"PreToolUse": [{"hooks": [hook]}]}})
    assert ralph("go", "--settings", settings, "--sandbox", sandbox).code == 0
    ended_s = datetime.fromisoformat(server.requests[1].received_at).timestamp()
    # The next request is made after the hook, and needs some time too.
    assert ended_s - float((ralph.cwd / "began").read_text()) < within_s(3.5)


def test_a_check_has_two_seconds_more_than_its_timeout_at_most(ralph, checkout, iterations) -> None:
    iterations()
    ran = ralph("loop", "go", "--until", STUBBORN, "--until-timeout", "1s", "--max-iterations", "1", code=3)
    assert any("timed out after 1 s" in line for line in loop_lines(ran))
    assert ticked_s(ralph) < within_s(3)


def test_the_first_check_of_a_loop_gets_no_more_than_the_time_of_the_loop(
    ralph, checkout, iterations
) -> None:
    """Nothing was done that would be lost without a check."""
    iterations()
    process = ralph.start("loop", "go", "--until", STUBBORN, "--max-time", "2s")
    process.wait(within_s(8))
    ran = ralph.finish(process).having(124)
    assert not any(line.startswith("iteration 1") for line in loop_lines(ran))
