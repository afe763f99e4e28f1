"""A command is followed on the thread that waits (`ralph/machine/running_command.py`, `ralph/machine/waiter.py`)."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.running_command import CommandEnding, EndCause, MemoryCapture, RunningCommand
from ralph.machine.waiter import Inbox, InboxWaiter, SystemClock
from ralph.values.ports import SignalReceived

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLOCK = SystemClock()
LONG_S = 600.0
"""Longer than a test may take: a wait that nobody ends fails the test."""


class Kept(MemoryCapture):
    def feed(self, chunk: bytes) -> bool:
        time.sleep(0.002)  # so that output without end is there again when it is looked for
        self.data = (self.data + chunk)[:1000]
        return True


@pytest.fixture
def serving() -> Iterator[CommandSupervisor]:
    supervisor = CommandSupervisor({}, makes_group=False)
    yield supervisor
    supervisor.close()


def ran(
    serving: CommandSupervisor,
    line: str,
    directory: Path,
    *,
    limit_s: float = LONG_S,
    waiter: InboxWaiter | None = None,
) -> tuple[CommandEnding, bytes]:
    kept = Kept(1000)
    process = serving.start(
        ["/bin/sh", "-c", line], cwd=directory, environment={"PATH": os.environ["PATH"]}, grace_s=1
    )
    running = RunningCommand(process, kept, waiter=waiter or InboxWaiter(CLOCK), clock=CLOCK)
    return running.run(limit_s, "a command"), bytes(kept.data)


def test_a_command_needs_no_thread(serving, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail(f"{thread.name} was started"))
    ending, output = ran(serving, "echo one; echo two >&2; exit 3", tmp_path)
    assert (ending.how, ending.status, output) == (EndCause.BY_ITSELF, 3, b"one\ntwo\n")


def test_output_without_end_delays_no_time_limit(serving, tmp_path) -> None:
    ending, output = ran(serving, "exec yes", tmp_path, limit_s=0.3)
    assert ending.how is EndCause.TIMED_OUT
    assert output.startswith(b"y\ny\n")


def test_a_command_that_closes_its_output_is_waited_for(serving, tmp_path) -> None:
    ending, output = ran(serving, "echo out; exec >&- 2>&-; sleep 0.3; touch late; exit 4", tmp_path)
    assert (ending.status, output) == (4, b"out\n")
    assert (tmp_path / "late").exists()


class Broken(MemoryCapture):
    """Refuses what does not fit a rule of its own, as a reader with a mistake does."""

    def fits_in_memory(self, size: int) -> bool:
        return self._most_bytes > size

    def feed(self, chunk: bytes) -> bool:
        raise ValueError(f"a chunk of {len(chunk)} bytes")


@pytest.mark.parametrize("most_bytes", [0, 1 << 20], ids=["on a thread", "on the thread that waits"])
def test_a_capture_that_fails_ends_the_command_and_hides_no_error(serving, tmp_path, most_bytes) -> None:
    process = serving.start(
        ["/bin/sh", "-c", "echo x; exec sleep 987"],
        cwd=tmp_path,
        environment={"PATH": os.environ["PATH"]},
        grace_s=1,
    )
    running = RunningCommand(process, Broken(most_bytes), waiter=InboxWaiter(CLOCK), clock=CLOCK)
    with pytest.raises(ValueError, match="a chunk of 2 bytes"):
        running.run(LONG_S, "a command")


def test_a_signal_ends_a_silent_command_at_once(serving, tmp_path) -> None:
    waiter = InboxWaiter(CLOCK)
    timer = threading.Timer(0.2, waiter.inbox.note_signal, [signal.SIGTERM])
    timer.start()
    with pytest.raises(SignalReceived):
        ran(serving, "sleep 99; touch late", tmp_path, waiter=waiter)
    timer.join()
    assert not (tmp_path / "late").exists()


def test_an_item_of_a_thread_wakes_a_wait_for_a_descriptor() -> None:
    inbox = Inbox(CLOCK)
    mailbox = inbox.mailbox()
    silent, other_end = os.pipe()
    mailbox.watch(silent, "data")
    timer = threading.Timer(0.1, mailbox.put, ["item"])
    timer.start()
    inbox.sort_next(timeout_s=LONG_S)
    assert list(mailbox.items) == ["item"]
    timer.join()
    os.close(other_end)
    os.close(silent)


def test_a_descriptor_is_told_of_once_until_its_item_is_taken() -> None:
    inbox = Inbox(CLOCK)
    mailbox = inbox.mailbox()
    reading, writing = os.pipe()
    os.write(writing, b"x")
    mailbox.watch(reading, "data")
    for _ in range(3):
        inbox.sort()
    assert list(mailbox.items) == ["data"]
    mailbox.items.clear()
    inbox.sort_next(timeout_s=LONG_S)
    assert list(mailbox.items) == ["data"]
    mailbox.close()
    inbox.sort()
    assert not mailbox.items
    os.close(reading)
    os.close(writing)
