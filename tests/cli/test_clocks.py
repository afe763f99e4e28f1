"""Every clock of ours, seen from outside: it fires, is named, and the right thing happens next (A8-A11)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Step, ToolUse, Turn, as_events, encode_events
from tests.cli.conftest import wait_until
from tests.cli.test_signals import is_alive
from tests.effects.messages_api.harness import RawServer, http_answer, read_request

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

WHOLE = encode_events(as_events(Turn("Here is the whole answer.", id="m2", chunk_chars=0)))
BROKEN = encode_events(as_events(Turn("This half does not count, and more", id="m1", chunk_chars=9)))
HEAD = http_answer(b"")
FIRST_HALF = BROKEN[: BROKEN.index(b"event: content_block_delta", BROKEN.index(b"This half"))]
PING = b'data: {"type": "ping"}\n\n'


def until_the_client_leaves(sock: socket.socket, sends: bytes = b"", every_s: float = 0.05) -> None:
    sock.settimeout(every_s)
    while True:
        with contextlib.suppress(TimeoutError):
            if not sock.recv(1):
                return
        if sends:
            sock.sendall(sends)


def after_head(sock: socket.socket) -> None:
    sock.sendall(HEAD)
    until_the_client_leaves(sock)


def after_half(sock: socket.socket) -> None:
    sock.sendall(HEAD + FIRST_HALF)
    until_the_client_leaves(sock)


def pings(sock: socket.socket) -> None:
    sock.sendall(HEAD + FIRST_HALF)
    until_the_client_leaves(sock, PING)


def flood(sock: socket.socket) -> None:
    """No pause in which a clock could be looked at."""
    sock.sendall(HEAD + FIRST_HALF)
    while True:
        sock.sendall(PING * 1000)


def drip(sock: socket.socket) -> None:
    sock.sendall(HEAD + FIRST_HALF)
    until_the_client_leaves(sock, b"x")


def endless(sock: socket.socket) -> None:
    sock.sendall(HEAD + FIRST_HALF)
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "la "}}
    until_the_client_leaves(sock, encode_events([delta]))


@pytest.fixture
def behave(ralph) -> Iterator[Callable[..., RawServer]]:
    """A server whose first connection is treated so, and whose second one gets a whole answer."""
    servers: list[RawServer] = []

    def start(first: Callable[[socket.socket], None]) -> RawServer:
        def serve(sock: socket.socket) -> None:
            server.requests.append(read_request(sock))
            if server.connections == 1:
                first(sock)
            else:
                sock.sendall(http_answer(WHOLE))

        server = RawServer(serve)
        servers.append(server)
        ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
        return server

    yield start
    for server in servers:
        server.close()


def set_clocks(ralph, **seconds: float) -> None:
    lines = [f"{name} = {value}" for name, value in seconds.items()]
    (ralph.cwd / "ralph.toml").write_text(
        "\n".join(["[clocks]", *lines, "[retry]", "policy = 'custom'", "base_delay_s = 0.01"])
    )


CLOCKS = [
    (until_the_client_leaves, "first byte", {"first_byte_s": 0.4}),
    (after_head, "first byte", {"first_byte_s": 0.4}),
    (after_half, "bytes idle", {"bytes_idle_s": 0.4}),
    (pings, "progress idle", {"bytes_idle_s": 0.3, "progress_idle_s": 0.5}),
    (flood, "progress idle", {"progress_idle_s": 0.5}),
    (drip, "progress idle", {"bytes_idle_s": 0.3, "progress_idle_s": 0.5}),
    (endless, "response", {"response_s": 0.6}),
]


@pytest.mark.parametrize(
    ("first", "clock", "limits"), CLOCKS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a8_a9_a10_a_clock_that_fires_is_named_and_asks_again_on_a_new_connection_exits_0(
    ralph, behave, first, clock, limits
) -> None:
    set_clocks(ralph, **limits)
    server = behave(first)
    started_s = time.monotonic()
    ran = ralph("hi", "--output-format", "stream-json")
    assert time.monotonic() - started_s < 5
    assert ran.code == 0
    assert server.connections == 2
    assert server.requests[0] == server.requests[1]
    kinds = [entry.get("subtype") for entry in ran.objects]
    fired = [entry for entry in ran.objects if entry.get("subtype") == "clock_fired"]
    assert [entry["clock"] for entry in fired] == [clock]
    assert f"[clock] {clock} clock fired after " in ran.stderr
    assert kinds.index("clock_fired") < kinds.index("api_retry") < kinds.index("retry_recovered")
    assert ran.result["result"] == "Here is the whole answer."


def test_a8_a_server_that_stays_silent_is_given_up_exits_75(ralph, serve) -> None:
    set_clocks(ralph, first_byte_s=0.2)
    server = serve(Step(Turn("never"), Fault(stall_before_headers_s=60), repeat="forever"))
    ran = ralph("hi", "--output-format", "stream-json")
    assert (ran.code, len(server.requests)) == (75, 5)
    assert len([entry for entry in ran.objects if entry.get("subtype") == "clock_fired"]) == 5
    assert "nothing within 0.2s (first byte)" in ran.last_line


# --- Sleeping laptops and stopped processes (A11)


@pytest.fixture
def own_server() -> Iterator[Callable[[str], tuple[subprocess.Popen[bytes], str]]]:
    """`ralph mock-api` as a process that can be stopped; and its URL."""
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
    ran = ralph.finish(process)
    assert ran.code == 0
    assert "[clock] first byte clock fired" in ran.stderr


class Halves:
    """A server that sends half an answer, and the rest when it is told to, or never."""

    def __init__(self, *, has_rest: bool) -> None:
        self.has_rest = has_rest
        self.send_rest = threading.Event()
        self.sent_rest = threading.Event()

    def __call__(self, sock: socket.socket) -> None:
        sock.sendall(HEAD + BROKEN[:-200])
        if self.has_rest:
            assert self.send_rest.wait(10)
            sock.sendall(BROKEN[-200:])
            self.sent_rest.set()
        until_the_client_leaves(sock)


def stopped_in_the_middle(ralph) -> subprocess.Popen[bytes]:
    """A ralph that has shown the first half and is stopped then."""
    process: subprocess.Popen[bytes] = ralph.start(
        "hi", "--output-format", "stream-json", "--include-partial-messages"
    )
    assert process.stdout is not None
    while b"This half" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    return process


def test_a11_what_came_while_ralph_was_stopped_wins_over_its_clocks_exits_0(ralph, behave) -> None:
    set_clocks(ralph, bytes_idle_s=0.4, progress_idle_s=0.5, response_s=0.9)
    halves = Halves(has_rest=True)
    server = behave(halves)
    process = stopped_in_the_middle(ralph)
    halves.send_rest.set()
    assert halves.sent_rest.wait(5)
    time.sleep(1.2)  # every clock has run out by then
    process.send_signal(signal.SIGCONT)
    ran = ralph.finish(process)
    assert (ran.code, server.connections) == (0, 1)
    assert "clock" not in ran.stderr
    assert ran.result["result"] == "This half does not count, and more"


def test_a11_a_ralph_that_wakes_to_silence_asks_again_at_once_exits_0(ralph, behave) -> None:
    set_clocks(ralph, bytes_idle_s=1.5)
    server = behave(Halves(has_rest=False))
    process = stopped_in_the_middle(ralph)
    time.sleep(2)
    process.send_signal(signal.SIGCONT)
    woke_s = time.monotonic()
    ran = ralph.finish(process)
    assert time.monotonic() - woke_s < 2.5, "the clock did not start anew"
    assert (ran.code, server.connections) == (0, 2)
    assert "[clock] bytes idle clock fired" in ran.stderr


def test_a11_a_ralph_that_slept_through_its_backoff_asks_at_once_exits_0(ralph, serve) -> None:
    server = serve(Fault(status=529, headers={"retry-after": "2"}), Turn("Hello."))
    process = ralph.start("hi")
    wait_until(lambda: len(server.requests) == 1)
    assert process.stderr is not None
    while b"[retry] Using retry-after: 2s" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.2)
    process.send_signal(signal.SIGCONT)
    woke_s = time.monotonic()
    assert ralph.finish(process).code == 0
    assert time.monotonic() - woke_s < 1.9, "the wait did not start anew"


# --- The run's total


def test_a_time_limit_ends_a_silent_server_exits_124(ralph, serve) -> None:
    server = serve(Step(Turn("never"), Fault(stall_before_headers_s=60)))
    started_s = time.monotonic()
    ran = ralph("hi", "--max-time", "1.2s", "--output-format", "stream-json")
    assert 1.1 < time.monotonic() - started_s < 2.5
    assert (ran.code, len(server.requests)) == (124, 1)
    assert ran.result["terminal_reason"] == "timed_out"
    assert [entry["clock"] for entry in ran.objects if entry.get("subtype") == "clock_fired"] == ["run total"]
    assert ran.last_line.startswith("[ralph] timed_out (exit 124): the time limit (--max-time) is used up")


def test_a_time_limit_is_not_put_off_by_a_server_that_never_stops_exits_124(ralph, behave) -> None:
    behave(flood)
    started_s = time.monotonic()
    assert ralph("hi", "--max-time", "1").code == 124
    assert time.monotonic() - started_s < 2.5


def test_a_time_limit_ends_a_command_and_all_it_started_exits_124(ralph, serve) -> None:
    marker = f"ralphlimit{id(ralph)}"
    serve(Turn([ToolUse("Bash", {"command": f"bash -c 'sleep 300 # {marker}' & sleep 301 # {marker}"})]))
    started_s = time.monotonic()
    ran = ralph("hi", "--max-time", "1.5", "--output-format", "json")
    assert time.monotonic() - started_s < 3.5
    assert ran.code == 124
    assert not is_alive(marker)


def test_a_wait_that_would_outlast_the_time_limit_is_not_begun_exits_124(ralph, serve) -> None:
    server = serve(Fault(status=529, headers={"retry-after": "50"}))
    started_s = time.monotonic()
    ran = ralph("hi", "--max-time", "30", "--output-format", "json")
    assert time.monotonic() - started_s < 3
    assert (ran.code, len(server.requests)) == (124, 1)
    assert "leaves no time to wait 50s, after: HTTP 529" in ran.last_line
    assert ran.result["api_error_status"] == 529
    assert "[retry]" not in ran.stderr


def test_a_run_within_its_time_limit_does_not_notice_it(ralph, serve) -> None:
    serve(Turn("Hello."))
    ran = ralph("hi", "--max-time", "1h")
    assert ran.code == 0
    assert "--max-time" not in ran.stderr


def test_a_run_without_a_limit_says_so_at_the_start(ralph, serve) -> None:
    serve(Turn("Hello."))
    assert "no limit is set" in ralph("hi").stderr.splitlines()[1]


def test_max_time_in_a_settings_file_counts_exits_124(ralph, serve) -> None:
    serve(Step(Turn("never"), Fault(stall_before_headers_s=60)))
    (ralph.cwd / "ralph.toml").write_text('[limits]\nmax_time_s = "1s"\n')
    assert ralph("hi").code == 124


# --- Signs of life


def test_heartbeats_name_what_is_awaited_and_stop_when_text_comes(ralph, behave) -> None:
    def slow(sock: socket.socket) -> None:
        time.sleep(1)
        sock.sendall(HEAD)
        for event in as_events(Turn("la " * 12, chunk_chars=3)):
            sock.sendall(encode_events([event]))
            time.sleep(0.1)

    set_clocks(ralph, heartbeat_s=0.3)
    server = behave(slow)
    ran = ralph("hi", "--output-format", "stream-json", "--include-partial-messages")
    assert ran.code == 0
    text_at = [n for n, entry in enumerate(ran.objects) if "text_delta" in str(entry.get("event"))]
    beats = [entry for entry in ran.objects if entry.get("subtype") == "heartbeat"]
    assert 2 <= len(beats) <= 4
    assert beats[0]["waiting_for"] == f"an answer from {server.base_url[7:]}"
    assert not [entry for entry in ran.objects[text_at[0] : text_at[-1]] if entry in beats]
    assert "s for an answer from 127.0.0.1" in ran.stderr
