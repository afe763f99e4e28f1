"""Tests the lines between ralph and its MCP helper process."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ralph.mcp import wire
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
