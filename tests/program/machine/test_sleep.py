"""Stopped processes and suspended laptops: after waking up, ralph must decide correctly (A11)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Turn
from tests.patience import PATIENCE_S, wait_until, within_s
from tests.program.model_answers import bash, calls
from tests.program.slow_servers import BROKEN, HEAD, WHOLE, set_clocks, until_the_client_leaves

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

counts_sleep = pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux counts sleep")


@pytest.fixture
def own_server() -> Iterator[Callable[[str], tuple[subprocess.Popen[bytes], str]]]:
    """Starts `ralph mock-api` as a process that can be stopped. Returns the process and its URL."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(scenario: str) -> tuple[subprocess.Popen[bytes], str]:
        command = [sys.executable, "-m", "ralph", "mock-api", scenario]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline().decode())
        assert found is not None
        return process, found[0]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_a11_a_server_that_is_stopped_for_longer_than_a_clock_is_asked_again_exits_0(
    ralph, own_server
) -> None:
    set_clocks(ralph, first_byte_s=0.5)
    server, url = own_server("hello")
    server.send_signal(signal.SIGSTOP)
    process = ralph.start("hi", "--base-url", url, "--output-format", "stream-json")
    assert process.stdout is not None
    seen = b""
    while b"clock_fired" not in seen:
        seen = process.stdout.readline()
        assert seen, "ralph ended before its clock fired"
    server.send_signal(signal.SIGCONT)
    ran = ralph.finish(process).having(0)
    assert "(clocks.first_byte_s)" in ran.stderr


class Halves:
    """A server that sends half an answer. It sends the rest when it is told to, or never."""

    def __init__(self, *, has_rest: bool) -> None:
        self.has_rest = has_rest
        self.send_rest = threading.Event()
        self.sent_rest = threading.Event()

    def __call__(self, sock: socket.socket) -> None:
        sock.sendall(HEAD + BROKEN[:-200])
        if self.has_rest:
            assert self.send_rest.wait(PATIENCE_S)
            sock.sendall(BROKEN[-200:])
            self.sent_rest.set()
        until_the_client_leaves(sock)


def stopped_in_the_middle(ralph) -> subprocess.Popen[bytes]:
    """A ralph that has printed the first half of an answer and is then stopped."""
    process: subprocess.Popen[bytes] = ralph.start(
        "hi", "--output-format", "stream-json", "--include-partial-messages"
    )
    assert process.stdout is not None
    while b"This half" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    return process


def test_a11_what_came_while_ralph_was_stopped_wins_over_its_clocks_exits_0(ralph, answer_with) -> None:
    set_clocks(ralph, bytes_idle_s=0.4, progress_idle_s=0.5, response_s=0.9)
    halves = Halves(has_rest=True)
    server = answer_with(halves, WHOLE)
    process = stopped_in_the_middle(ralph)
    halves.send_rest.set()
    assert halves.sent_rest.wait(PATIENCE_S)
    time.sleep(1.2)  # every clock has run out by then
    process.send_signal(signal.SIGCONT)
    ran = ralph.finish(process)
    assert (ran.code, server.connections) == (0, 1)
    assert "clock" not in ran.stderr
    assert ran.result["result"] == "This half does not count, and more"


@pytest.fixture
def sleep_for_days(ralph, tmp_path: Path) -> Callable[[], None]:
    """Moves the clock of `ralph` that counts sleep by 11 days. A wait that begins anew afterwards lasts as long."""
    has_slept = tmp_path / "slept"
    ralph.run_first(
        "import os, time\n"
        "really = time.clock_gettime\n"
        "def now_s(clock):\n"
        f"    has_slept = clock == time.CLOCK_BOOTTIME and os.path.exists({str(has_slept)!r})\n"
        "    return really(clock) + has_slept * 1e6\n"
        "time.clock_gettime = now_s\n"
    )
    return has_slept.touch


@counts_sleep
def test_a11_a_ralph_that_wakes_to_silence_asks_again_at_once_exits_0(
    ralph, answer_with, sleep_for_days
) -> None:
    set_clocks(ralph, bytes_idle_s=1e6, progress_idle_s=0, response_s=0)
    server = answer_with(Halves(has_rest=False), WHOLE)
    process = stopped_in_the_middle(ralph)
    sleep_for_days()
    process.send_signal(signal.SIGCONT)
    ran = ralph.finish(process)
    assert (ran.code, server.connections) == (0, 2)
    assert "(clocks.bytes_idle_s)" in ran.stderr


@counts_sleep
def test_a11_a_ralph_that_slept_through_its_backoff_asks_at_once_exits_0(
    drive, serve, sleep_for_days
) -> None:
    server = serve(Fault(status=529, headers={"retry-after": "20000"}), Turn("Hello."))
    driver = drive("--retry", "patient")
    driver.say("hi")
    driver.event("api_retry")
    assert driver.ask("get_status")["retry"]["is_waiting"]
    sleep_for_days()
    assert driver.finish().code == 0
    assert server.request_count == 2


WORKING = "touch started; until [ -e go ]; do sleep 0.02; done; echo in time; touch ended"
SERVER = """
import json, os, sys, time
for line in sys.stdin:
    message = json.loads(line)
    answers = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}},
        "tools/list": {"tools": [{"name": "work", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "in time"}]},
    }
    if message["method"] == "tools/call":
        open("started", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
    if message["method"] in answers:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answers[message["method"]]}), flush=True)
    if message["method"] == "tools/call":
        open("ended", "w").close()
"""
SERVERS = json.dumps({"mcpServers": {"own": {"command": "python3", "args": ["-c", SERVER]}}})
HOOK = {"hooks": [{"type": "command", "command": f"{{ {WORKING}; }} >&2; exit 2", "timeout": 1}]}
HOOKS = json.dumps({"hooks": {"PreToolUse": [HOOK]}})
LIMITED = {
    "the timeout of a command": (1.0, calls(("Bash", {"command": WORKING, "timeout": 1000})), ()),
    "the timeout of a hook": (1.0, bash("echo hi"), ("--settings", HOOKS)),
    "the time of an MCP call": (1.0, calls(("mcp__own__work", {})), ("--mcp-config", SERVERS)),
    "the time of the run": (within_s(5), bash(WORKING), ("--max-time", f"{within_s(5):.0f}s")),
}


def stop_until_it_is_over(process: subprocess.Popen[bytes], directory: Path, limit_s: float) -> None:
    """Stops ralph, lets the work end, and waits until the time limit has passed."""
    wait_until((directory / "started").exists)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    (directory / "go").touch()
    wait_until((directory / "ended").exists)
    time.sleep(limit_s + 0.7)
    process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("what", LIMITED)
def test_a_result_that_came_while_ralph_was_stopped_is_taken_before_a_limit(ralph, serve, what) -> None:
    limit_s, turn, options = LIMITED[what]
    ralph.environment["MCP_TOOL_TIMEOUT"] = "1000"
    serve(turn, Turn("Done."))
    process = ralph.start("go", "--output-format", "stream-json", *options)
    stop_until_it_is_over(process, ralph.cwd, limit_s)
    ran = ralph.finish(process)
    results = [line for line in ran.stdout.splitlines() if '"tool_result"' in line]
    assert "in time" in results[0], ran.stdout
    assert ran.code == (124 if what == "the time of the run" else 0)


def test_a_check_that_passed_while_the_loop_was_stopped_has_passed_exits_0(ralph, iterations) -> None:
    iterations()
    process = ralph.start("loop", "go", "--until", WORKING, "--until-timeout", "1s")
    stop_until_it_is_over(process, ralph.cwd, 1.0)
    ran = ralph.finish(process).having(0)
    assert "timed out" not in ran.stderr
