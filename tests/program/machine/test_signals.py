"""The first signal must end every phase of a run within a second, leave no child process, and still write the
result.
"""

from __future__ import annotations

import array
import fcntl
import math
import os
import signal
import socket
import termios
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.patience import PATIENCE_S, wait_until
from tests.program.model_answers import bash
from tests.program.namespaces import needs_namespaces
from tests.program.slow_servers import set_clocks

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
OF_BATCH_SYSTEMS = {
    *(signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM, signal.SIGVTALRM),
    *([signal.SIGPWR] if hasattr(signal, "SIGPWR") else []),
}


def is_alive(marker: str) -> bool:
    """Whether a process with this word in its command line is running."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            if marker.encode() in (entry / "cmdline").read_bytes():
                return True
    return False


def assert_stopped(ran, number) -> None:
    assert ran.code == CODES.get(number, 128 + number)
    assert ran.result["terminal_reason"] == "interrupted"
    assert ran.last_line.startswith(f"[ralph] interrupted (exit {ran.code})")
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("number", [*CODES, *OF_BATCH_SYSTEMS], ids=lambda number: number.name)
def test_p7_a_signal_ends_a_backoff(ralph, serve, number) -> None:
    server = serve(Fault(status=529, headers={"retry-after": "20000"}))
    process = ralph.start("hi", "--retry", "patient", "--output-format", "stream-json")
    wait_until(lambda: len(server.requests) == 1)
    ran = ralph.stopped_by(process, number)
    assert_stopped(ran, number)
    kinds = [o.get("subtype") for o in ran.objects]
    assert kinds.count("api_retry") == kinds.count("retry_exhausted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "fault",
    [Fault(stall_before_headers_s=math.inf), Fault(stall_after_events=4)],
    ids=["first byte", "stream"],
)
def test_p7_a_signal_ends_the_wait_for_the_first_byte_and_a_stream(ralph, serve, fault, number) -> None:
    server = serve(Step(Turn(content="slow " * 20), fault))
    process = ralph.start("hi", "--output-format", "stream-json")
    wait_until(lambda: len(server.requests) == 1)
    assert_stopped(ralph.stopped_by(process, number), number)


def test_p7_a_signal_ends_a_connect(ralph) -> None:
    set_clocks(ralph, connect_s=0)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(4):  # the backlog is full then, and a connect hangs
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        process = ralph.start("hi", "--base-url", url, "--output-format", "stream-json")
        assert process.stdout is not None
        first = process.stdout.readline()
        ran = ralph.stopped_by(process, signal.SIGTERM)
        for filler in fillers:
            filler.close()
    assert b'"init"' in first
    assert_stopped(ran, signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGXCPU], ids=lambda one: one.name)
def test_p7_a_signal_ends_a_tool_and_its_children_even_if_they_ignore_it(ralph, serve, number) -> None:
    marker = f"ralphtest{id(ralph)}"
    stubborn = f"trap '' TERM INT HUP; touch started; while :; do sleep 1; done # {marker}"
    serve(bash(f"bash -c 'sleep 1000000 # {marker}' & {stubborn}"))
    process = ralph.start("hi", "--output-format", "json")
    wait_until((ralph.cwd / "started").exists)
    assert_stopped(ralph.stopped_by(process, number), number)
    assert not is_alive(marker)


def test_a_second_signal_ends_at_once(ralph, serve) -> None:
    """The command notes the SIGTERM after the first signal and continues. It would have for ever to end."""
    ralph.run_first(
        "from functools import partial\n"
        "from ralph.tools import tool_context\n"
        "tool_context.ToolSettings = partial(tool_context.ToolSettings, kill_grace_s=1e6)\n"
    )
    serve(bash("trap 'touch got-term' TERM; trap '' INT HUP; touch started; while :; do sleep 0.1; done"))
    process = ralph.start("hi", "--output-format", "json")
    wait_until((ralph.cwd / "started").exists)
    process.send_signal(signal.SIGINT)
    wait_until((ralph.cwd / "got-term").exists)
    ran = ralph.stopped_by(process, signal.SIGINT)
    assert_stopped(ran, signal.SIGINT)


def test_p7_a_second_signal_ends_a_run_that_is_stuck_in_a_call_for_ever_exits_143(ralph, tmp_path) -> None:
    """Changing into a directory on a dead mount is such a call. 128+15 is what a shell reports."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    ralph.run_first(
        f"import os\nos.chdir = lambda _: (open('reached', 'w').close(), open({str(fifo)!r}).read())\n"
    )
    process = ralph.start("hi", "--cd", str(tmp_path))
    wait_until((ralph.cwd / "reached").exists)
    process.send_signal(signal.SIGTERM)
    sent_s = time.monotonic()
    wait_until(lambda: time.monotonic() - sent_s > 1.2)
    assert process.poll() is None
    ran = ralph.stopped_by(process, signal.SIGTERM)
    assert ran.code == -signal.SIGTERM
    assert "Traceback" not in ran.stderr


def test_two_signals_in_a_row_still_leave_the_result(ralph, serve) -> None:
    """`timeout` sends them like that, first to the process and then to its group."""
    for _ in range(3):
        server = serve(Step(Turn(content="late"), Fault(stall_before_headers_s=60)))
        process = ralph.start("hi", "--output-format", "json")
        assert server.wait_for_requests(1, PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        ran = ralph.stopped_by(process, signal.SIGTERM, code=143)
        assert ran.result["terminal_reason"] == "interrupted"


def test_a_signal_ends_the_wait_for_a_prompt(ralph, tmp_path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = os.open(fifo, os.O_RDWR)
    os.write(writer, b"the beginning")
    process = ralph.start("-f", str(fifo), "--output-format", "json")
    wait_until(lambda: unread_bytes(writer) == 0)
    assert_stopped(ralph.stopped_by(process, signal.SIGTERM), signal.SIGTERM)
    os.close(writer)


def unread_bytes(pipe: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_p8_sighup_stays_ignored_under_nohup(ralph, serve) -> None:
    server = serve(Step(Turn(content="late but whole"), Fault(stall_before_headers_s=0.6)))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = ralph.start("hi")
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_until(lambda: len(server.requests) == 1)
    process.send_signal(signal.SIGHUP)
    assert ralph.finish(process).code == 0


@needs_namespaces
@pytest.mark.sandboxed
def test_a_parent_that_left_sigchld_ignored_changes_nothing(ralph, serve) -> None:
    """Otherwise the system would drop the status of commands, which would look like 0, and bubblewrap would never end."""
    server = serve(bash("exit 3"), Turn("done"))
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = replace(ralph, starts_afresh=True).start("hi")
    finally:
        signal.signal(signal.SIGCHLD, before)
    ran = ralph.finish(process)
    assert (ran.code, "(sandbox: namespaces)" in ran.stderr) == (0, True), ran.stderr
    assert "Exit code 3" in str(server.requests[1].json()["messages"])
