"""The lines between ralph and its MCP helper process, and the end of the servers: they share the time in which they may end
by themselves.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.mcp import wire
from ralph.mcp.helper_process import end_servers
from tests.fakes import FakeClock, FakeWaiter
from tests.rows import every_row

MESSAGES = [
    wire.Connect("a", 1, "stdio"),
    wire.Connect("a", 2, "http", "https://x", {"A": "b"}),
    wire.Call(1, 2, "tool", {"text": "line\nbreak \u2028"}),
    wire.Cancel(1),
    wire.Ping(2),
    wire.Disconnect(2),
]
NEWS = [
    wire.HelperReady(),
    wire.ServerConnected(1, [{"name": "x"}]),
    wire.ServerLost(1, "why", "words"),
    wire.ServerLost(1, "why", is_unreached=True),
    wire.ServerAlive(1),
    wire.CallReturned(1, {"content": []}),
    wire.CallRefused(1, "why"),
    wire.CallRefused(1, "why", is_doubtful=True),
    wire.CallNotSent(1),
]


@every_row("message", MESSAGES)
def test_an_order_is_one_line_that_reads_back(message) -> None:
    line = wire.encoded(message)
    assert line.count(b"\n") == 1
    assert wire.order_of(line) == message


@every_row("message", NEWS)
def test_news_are_one_line_that_reads_back(message) -> None:
    line = wire.encoded(message)
    assert line.count(b"\n") == 1
    assert wire.news_of(line) == message


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_lines_are_the_same_however_the_stream_is_cut(data: bytes, cuts: list[int]) -> None:
    lines, found = wire.Lines(), []
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in pairwise(borders):
        found += lines.feed(data[start:end])
    *complete, rest = data.split(b"\n")
    assert (found, lines.open_bytes) == (complete, len(rest))


# --- The end of servers


class Waiter(FakeWaiter):
    def __init__(self, stop_left_s: float) -> None:
        super().__init__(FakeClock())
        self._stops_by_s = stop_left_s

    def stop_left_s(self) -> float:
        return self._stops_by_s - self.clock.now_s()


class Stuck:
    """A server, and its command, that nothing ends."""

    def __init__(self, waiter: Waiter) -> None:
        self.command: Any = self
        self.ended: Any = waiter.mailbox()
        self._waiter = waiter
        self.asked_at_s = self.killed_at_s = math.nan
        self.is_closed = False

    def ask_to_stop(self) -> None:
        self.asked_at_s = self._waiter.clock.now_s()

    def kill_what_is_left(self) -> bool:
        if math.isnan(self.killed_at_s):
            self.killed_at_s = self._waiter.clock.now_s()
        return False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("stop_left_s", "killed_at_s"), [(math.inf, 2.0), (5.0, 2.0), (0.5, 0.5), (0.0, 0.0), (-1.0, 0.0)]
)
def test_all_servers_have_one_time_limit_and_a_stop_bounds_it(stop_left_s, killed_at_s) -> None:
    waiter = Waiter(stop_left_s)
    servers: list[Any] = [Stuck(waiter) for _ in range(4)]
    end_servers(servers, waiter, waiter.clock)
    assert [(one.asked_at_s, one.killed_at_s, one.is_closed) for one in servers] == [
        (0.0, killed_at_s, True)
    ] * 4
    assert waiter.clock.now_s() == pytest.approx(killed_at_s + 1, abs=0.1)
