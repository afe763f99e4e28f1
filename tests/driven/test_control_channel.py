"""Lines from real pipes arrive complete, in order and within limits, and the end of the input is reported."""

from __future__ import annotations

import contextlib
import os
import pty
import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.driven.control_channel import (
    END_OF_INPUT,
    ControlChannel,
    EndOfInput,
    LineSplitter,
    TooLong,
    why_unusable,
)
from tests.patience import PATIENCE_S
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.driven.control_channel import Item


def reading(*arguments: Any, **bounds: Any) -> ControlChannel:
    channel = ControlChannel(*arguments, **bounds)
    channel.start()
    return channel


class QueueMailbox:
    def __init__(self) -> None:
        self._items: queue.Queue[Item] = queue.Queue()

    def put(self, item: Item) -> None:
        self._items.put(item)

    def watch(self, descriptor: int, item: Item) -> None:
        raise AssertionError("a thread reads the lines")

    def unwatch(self, descriptor: int) -> None:
        raise AssertionError("nothing is watched")

    def close(self) -> None:
        raise AssertionError("nobody closes it")

    def take(self, within_s: float = PATIENCE_S) -> Item:
        return self._items.get(timeout=within_s)

    def take_until_silent(self, silent_s: float) -> list[Item]:
        items: list[Item] = []
        with contextlib.suppress(queue.Empty):
            while True:
                items.append(self.take(within_s=silent_s))
        return items

    def take_all(self, channel: ControlChannel) -> list[Item]:
        """The lines up to the end of the input, and this end."""
        items: list[Item] = []
        while not items or not isinstance(items[-1], EndOfInput):
            items.append(self.take())
            channel.acknowledge(items[-1])
        return items


@pytest.fixture
def mailbox() -> QueueMailbox:
    return QueueMailbox()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_fd, write_fd = os.pipe()
    yield read_fd, write_fd
    # The reading end stays open: a thread may be at it, and must not read what gets its number next.
    with contextlib.suppress(OSError):
        os.close(write_fd)


def test_a_pipe_that_somebody_made_non_blocking_is_read_all_the_same(mailbox, pipe) -> None:
    read_fd, write_fd = pipe
    os.set_blocking(read_fd, False)
    reading(mailbox, read_fd)
    with pytest.raises(queue.Empty):
        mailbox.take(within_s=0.05)
    os.write(write_fd, b"one\n")
    assert mailbox.take() == b"one"


def test_a_line_that_is_too_long_is_dropped_to_its_end_and_told_at_once(mailbox, pipe) -> None:
    read_fd, write_fd = pipe
    reading(mailbox, read_fd, longest_line_bytes=10)
    os.write(write_fd, b"x" * 11)
    assert mailbox.take() == TooLong(10)
    os.write(write_fd, b"x" * 30 + b"\nshort\n" + b"y" * 11)
    assert [mailbox.take(), mailbox.take()] == [b"short", TooLong(10)]
    os.close(write_fd)
    assert mailbox.take() == END_OF_INPUT, "the rest of a dropped line is no last line"


def test_a_driver_is_made_to_wait_while_too_much_is_unread(mailbox, pipe) -> None:
    """The memory is limited, whatever a driver sends. Acknowledged lines make room, and no line is lost."""
    read_fd, write_fd = pipe
    channel = reading(mailbox, read_fd, longest_line_bytes=1000, most_unread_bytes=4000)
    lines = [bytes([65 + number % 26]) * 1000 for number in range(400)]

    def drive() -> None:
        for line in lines:
            os.write(write_fd, line + b"\n")
        os.close(write_fd)

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    taken = mailbox.take_until_silent(0.2)
    assert taken == lines[:3], "three lines with their overhead are within 4000 bytes, four are not"
    assert driver.is_alive(), "400 kB do not fit into a pipe"
    for line in taken:
        channel.acknowledge(line)
    assert mailbox.take_all(channel) == [*lines[3:], END_OF_INPUT]
    driver.join(PATIENCE_S)


@every_row(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\r\nb\rc\n", [b"a", b"b\rc"]),
        (b"\xe2\x80\xa8\n\x0cc\n", [b"\xe2\x80\xa8", b"\x0cc"]),
        (b"1234\n1234", [b"1234", b"1234"]),
        (b"1234\r\n", [b"1234"]),
        (b"12345\n1\n", [TooLong(4), b"1"]),
        (b"1234\r5\n1\n", [TooLong(4), b"1"]),
        (b"1234\r\r\n1", [TooLong(4), b"1"]),
        (b"12345", [TooLong(4)]),
        (b"123456789012\n\n", [TooLong(4), b""]),
    ],
)
def test_lines_end_with_lf_and_hold_at_most_the_limit(data, lines) -> None:
    splitter = LineSplitter(4)
    assert splitter.feed(data) + splitter.end() == lines


@given(st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"abc", b"abcdef"]), max_size=15), st.data())
def test_the_way_a_line_comes_in_pieces_does_not_matter(parts, data) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    at_once, in_pieces = LineSplitter(4), LineSplitter(4)
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    found = [line for piece in pieces for line in in_pieces.feed(piece)]
    assert found + in_pieces.end() == at_once.feed(whole) + at_once.end()


def test_a_pipe_and_a_file_can_be_used_and_a_terminal_and_nothing_cannot(pipe, tmp_path) -> None:
    read_fd, _ = pipe
    assert why_unusable(read_fd) is None
    with (tmp_path / "lines").open("w+") as file:
        assert why_unusable(file.fileno()) is None
        closed_fd = file.fileno()
    assert why_unusable(closed_fd) == "standard input is closed; control lines come from a pipe or a file"
    ends = pty.openpty()
    try:
        assert (
            why_unusable(ends[1]) == "standard input is a terminal; control lines come from a pipe or a file"
        )
    finally:
        for fd in ends:
            os.close(fd)
