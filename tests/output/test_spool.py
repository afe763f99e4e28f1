"""Writing never waits for a reader. What a reader took is complete and in order, and a reader that has left is no
error (P9, P10).
"""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.output.writer import Spool
from ralph.values.ports import Interrupted
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLOCK = SystemClock()


class Pipe:
    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self._is_read = True

    def stop_reading(self) -> None:
        if self._is_read:
            self._is_read = False
            os.close(self.read_fd)

    def read_until(self, end: bytes) -> bytes:
        data = b""
        while not data.endswith(end):
            assert select.select([self.read_fd], [], [], PATIENCE_S)[0], "nothing more comes"
            piece = os.read(self.read_fd, 1 << 20)
            assert piece, "the pipe ended early"
            data += piece
        return data


@pytest.fixture
def pipe() -> Iterator[Callable[[], Pipe]]:
    pipes: list[Pipe] = []

    def build() -> Pipe:
        pipes.append(Pipe())
        return pipes[-1]

    yield build
    # The writing ends stay open: a spool's thread may still write, and the next file would have the same number.
    for one in pipes:
        one.stop_reading()


def drain(spool: Spool, seconds: float = 1e6) -> float:
    """Drains the spool and returns the seconds that this took."""
    started_s = CLOCK.now_s()
    spool.drain(InboxWaiter(CLOCK), CLOCK, started_s + seconds)
    return CLOCK.now_s() - started_s


def test_writes_arrive_whole_and_in_order(pipe) -> None:
    out = pipe()
    spool = Spool(out.write_fd)
    lines = [b"%d %s\n" % (number, b"x" * (number % 997)) for number in range(500)]
    for line in lines:
        spool.write(line)
    spool.write(b"end")
    assert out.read_until(b"end") == b"".join(lines) + b"end"
    drain(spool)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="pipes that keep writes apart are Linux's")
def test_lines_that_wait_are_written_together_as_far_as_nobody_can_split_one() -> None:
    read_fd, write_fd = os.pipe2(os.O_DIRECT)  # each write is read by itself, in parts of PIPE_BUF
    os.set_blocking(write_fd, False)
    fillers = 0
    while select.select([], [write_fd], [], 0)[1]:
        fillers += os.write(write_fd, b"f")
    os.set_blocking(write_fd, True)
    spool = Spool(write_fd)
    for _ in range(10):
        spool.write(b"l" * 999 + b"\n")  # the first ones wait for the full pipe, and the others behind them
    for _ in range(fillers):
        os.read(read_fd, 1)
    sizes: list[int] = []
    while sum(sizes) < 10_000:
        sizes.append(len(os.read(read_fd, 1 << 20)))
    os.close(read_fd)
    assert {size % 1000 for size in sizes} == {0}
    assert len(sizes) < 10


def test_p10_a_full_pipe_does_not_hold_up_the_writer(pipe) -> None:
    spool = Spool(pipe().write_fd)
    for _ in range(100):  # nobody reads, so a write that waits once would wait for ever
        spool.write(b"x" * 100_000)
    assert drain(spool, 0.1) >= 0.1


def test_p10_the_bound_drops_writes_but_never_the_result(pipe) -> None:
    out = pipe()
    spool = Spool(out.write_fd, most_unread_bytes=1_000_000)
    spool.write(b"a" * 900_000)
    spool.write(b"b" * 200_000)
    spool.write(b"c" * 90_000)
    spool.write(b"d" * 200_000, must_arrive=True)
    spool.write(b"e")
    assert spool.dropped_writes == 2
    assert out.read_until(b"d" * 200_000) == b"a" * 900_000 + b"c" * 90_000 + b"d" * 200_000


def test_p9_a_reader_that_leaves_in_the_middle_is_no_error(pipe) -> None:
    out = pipe()
    spool = Spool(out.write_fd)
    spool.write(b"x" * 1_000_000)
    os.read(out.read_fd, 10)
    out.stop_reading()
    spool.write(b"more")
    drain(spool)


def test_p9_a_closed_descriptor_is_no_error() -> None:
    spool = Spool(999_999)
    spool.write(b"x")
    drain(spool)


def test_a_full_disk_is_no_error() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        spool = Spool(full.fileno())
        spool.write(b"x")
        drain(spool)


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(pipe) -> None:
    out = pipe()
    os.set_blocking(out.write_fd, False)
    spool = Spool(out.write_fd)
    data = bytes(range(256)) * 8000 + b"end"
    spool.write(data)
    time.sleep(0.02)  # the pipe is full by now
    assert out.read_until(b"end") == data


@pytest.fixture
def no_threads(monkeypatch) -> pytest.MonkeyPatch:
    """Makes every start of a thread fail until the returned patch is undone."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    patched: pytest.MonkeyPatch = monkeypatch
    return patched


def test_p18_without_a_thread_what_was_written_waits_for_one(pipe, no_threads) -> None:
    out = pipe()
    spool = Spool(out.write_fd)
    spool.write(b"first ")
    no_threads.undo()
    spool.write(b"second")
    assert out.read_until(b"second") == b"first second"


def test_p18_without_a_thread_the_end_writes_all_that_a_reader_takes(pipe, no_threads) -> None:
    out = pipe()
    data = bytes(range(256)) * 200
    spool = Spool(out.write_fd)
    spool.write(data)
    spool.write(b"end")
    drain(spool)
    assert out.read_until(b"end") == data + b"end"
    assert spool.unread_bytes == 0


def test_p10_p18_without_a_thread_a_reader_that_never_reads_holds_nobody_up(pipe, no_threads) -> None:
    out = pipe()
    spool = Spool(out.write_fd)
    spool.write(b"x" * 1_000_000)
    spool.write(b"end", must_arrive=True)
    assert drain(spool, 0.1) >= 0.1
    waiter = InboxWaiter(CLOCK)
    waiter.inbox.note_signal(15)
    with pytest.raises(Interrupted):
        spool.drain(waiter, CLOCK, CLOCK.now_s() + 5)
    no_threads.undo()
    spool.write(b" more")
    assert out.read_until(b" more") == b"x" * 1_000_000 + b"end more", "from where it had stopped"


@pytest.mark.parametrize("leaves", [True, False])
def test_p9_p18_without_a_thread_a_reader_that_is_gone_is_no_error_and_a_full_disk_is_one(
    pipe, no_threads, leaves
) -> None:
    out = pipe()
    with Path("/dev/full").open("wb", buffering=0) as full:
        spool = Spool(out.write_fd if leaves else full.fileno())
        out.stop_reading()
        spool.write(b"x" * 100_000)
        drain(spool)
    assert (spool.failure is None) is leaves


def test_a_signal_ends_the_wait_for_a_reader(pipe) -> None:
    spool = Spool(pipe().write_fd)
    spool.write(b"x" * 1_000_000)
    waiter = InboxWaiter(CLOCK)
    waiter.inbox.note_signal(15)
    with pytest.raises(Interrupted):
        spool.drain(waiter, CLOCK, CLOCK.now_s() + 5)
