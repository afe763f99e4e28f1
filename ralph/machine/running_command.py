"""Follows a supervised command to its end, with a time limit and a limit on its output. A signal to ralph stops the
command too. Leaves nothing of it running.
"""

from __future__ import annotations

import enum
import os
import select
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from ralph.machine.starting import start_thread
from ralph.values.ports import TIMED_OUT, Interrupted
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from ralph.values.ports import Clock, Mailbox, Waiter

_CHUNK_BYTES = 65_536
# A process that escaped may hold the output open for ever, so only the command's own end counts.
_OUTPUT_AFTER_END_S = 1.0
_READER_LOOKS_UP_EVERY_MS = 100
# Time beyond the grace, for the launcher to kill processes that ignored SIGTERM.
_LAUNCHER_MARGIN_S = 3.0
_KILL_S = 2.0
_KILL_AGAIN_EVERY_S = 0.01


class Capture(Protocol):
    """Takes a command's output. One thread feeds it; another thread closes it after the first has stopped."""

    def feed(self, chunk: bytes) -> bool:
        """Take a chunk. Returns False once the output exceeds the most that is kept: the command is stopped."""
        ...

    def close(self) -> None: ...


class CommandProcess(Protocol):
    """A command that has been started, by either kind of launcher."""

    @property
    def output_descriptor(self) -> int:
        """The descriptor from which standard output is read. Standard error arrives there too, unless it is sent
        elsewhere.
        """
        ...

    def wait_for_end(self) -> int:
        """Block until the command has ended. Returns its exit code; negative: no exit code is known; NEVER_STARTED: the
        command never started.
        """
        ...

    def ask_to_stop(self) -> None: ...

    def kill_what_is_left(self) -> bool:
        """Kill the processes that are left. Returns True if there were none; otherwise call it again."""
        ...

    def close(self) -> None:
        """Closes the output. Call it only after its reader has stopped."""
        ...


NEVER_STARTED = -256
"""The status of a command that was never started, because the supervisor was gone."""


class NotFollowedError(Exception):
    """The machine has no thread left: the command was stopped as soon as it had begun."""

    def __init__(self) -> None:
        super().__init__(
            "the command was stopped as soon as it had begun: this machine has no thread left to follow it. That "
            "passes: look at what the command has done, and try again"
        )


class Ended(enum.Enum):
    BY_ITSELF = enum.auto()
    TIMED_OUT = enum.auto()
    TOO_MUCH_OUTPUT = enum.auto()
    WITHOUT_SUPERVISOR = enum.auto()
    NEVER_STARTED = enum.auto()


class CommandEnding(Struct, frozen=True):
    how: Ended
    status: int = 0
    """The exit code, 128 + n for a signal; valid only if the command ended by itself."""
    is_all_gone: bool = True
    """False if something that the command started could not be killed: another user's process, or a process stuck in
    the kernel.
    """


class _News(enum.Enum):
    """An item in the mailbox that is not an exit code."""

    OUTPUT_ENDED = enum.auto()
    TOO_MUCH_OUTPUT = enum.auto()
    INTERRUPTED = enum.auto()


class RunningCommand:
    def __init__(
        self,
        process: CommandProcess,
        capture: Capture,
        *,
        waiter: Waiter,
        clock: Clock,
        grace_s: float,
    ) -> None:
        """`grace_s`: the process's time from SIGTERM to SIGKILL."""
        self._process = process
        self._capture = capture
        self._waiter = waiter
        self._clock = clock
        self._grace_s = grace_s
        self._mailbox = waiter.mailbox()
        self._status: int | None = None
        self._has_output_ended = False
        self._interrupted: Interrupted | None = None
        self._stop_reading = Event()

    def run(self, limit_s: float, waiting_for: str) -> CommandEnding:
        """Returns, or raises `Interrupted`, once the command and all it started are gone. Raises NotFollowedError."""
        try:
            self._start_threads()
            how = self._wait_for_end(limit_s, waiting_for)
            if self._status is None:
                self._stop()
        finally:
            is_all_gone = self._kill_what_is_left()
            self._end_output()
        if self._interrupted is not None:
            raise self._interrupted
        if how is Ended.BY_ITSELF and self._status is not None and self._status < 0:
            how = Ended.NEVER_STARTED if self._status == NEVER_STARTED else Ended.WITHOUT_SUPERVISOR
        return CommandEnding(how, self._status or 0, is_all_gone)

    def _start_threads(self) -> None:
        reading = (self._process.output_descriptor, self._capture, self._mailbox, self._stop_reading)
        end = (self._process, self._mailbox)
        is_read = False
        try:
            start_thread(_read_output, *reading, name="command output")
            is_read = True
            start_thread(_await_end, *end, name="command end")
        except ShortageError:
            # Nobody else would reap it, or report that its output has ended.
            self._has_output_ended = not is_read
            self._process.kill_what_is_left()
            self._process.wait_for_end()
            raise NotFollowedError from None

    def _wait_for_end(self, limit_s: float, waiting_for: str) -> Ended:
        deadline_s = self._clock.now_s() + limit_s
        while self._status is None:
            news = self._next(deadline_s, waiting_for)
            if news is TIMED_OUT:
                return Ended.TIMED_OUT
            if news is _News.TOO_MUCH_OUTPUT:
                return Ended.TOO_MUCH_OUTPUT
            if news is _News.INTERRUPTED:
                break
        return Ended.BY_ITSELF

    def _stop(self) -> None:
        """Asks the tree to end, and waits for the grace; another signal ends the grace at once."""
        self._process.ask_to_stop()
        deadline_s = self._clock.now_s() + self._grace_s + _LAUNCHER_MARGIN_S
        while self._status is None:
            if self._next(deadline_s, "the command to stop") in (TIMED_OUT, _News.INTERRUPTED):
                return

    def _kill_what_is_left(self) -> bool:
        deadline_s = self._clock.now_s() + _KILL_S
        while not self._process.kill_what_is_left():
            if self._clock.now_s() >= deadline_s:
                return False
            self._next(self._clock.now_s() + _KILL_AGAIN_EVERY_S, "the command to stop")
        return True

    def _end_output(self) -> None:
        """Reads the rest of the pipe, without waiting for other processes that still hold it open."""
        self._read_on(_OUTPUT_AFTER_END_S)
        self._stop_reading.set()
        self._read_on(_OUTPUT_AFTER_END_S)
        self._mailbox.close()
        if self._has_output_ended:
            self._process.close()
            self._capture.close()

    def _read_on(self, limit_s: float) -> None:
        deadline_s = self._clock.now_s() + limit_s
        while not self._has_output_ended:
            if self._next(deadline_s, "the end of the command's output") is TIMED_OUT:
                return

    def _next(self, until_s: float, waiting_for: str) -> Any:
        """Waits for the next item, and notes it. A signal counts as an item; it is raised only when the command is
        gone.
        """
        try:
            news = self._waiter.wait(self._mailbox, until_s=until_s, waiting_for=waiting_for)
        except Interrupted as interrupted:
            self._interrupted = self._interrupted or interrupted
            return _News.INTERRUPTED
        if isinstance(news, int):
            self._status = news
        elif news is _News.OUTPUT_ENDED:
            self._has_output_ended = True
        return news


def _read_output(descriptor: int, capture: Capture, mailbox: Mailbox, stop: Event) -> None:
    """Read the output on a thread of its own, until its end, too much of it, or `stop`."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN | select.POLLHUP)
    try:
        while not stop.is_set():
            if not poller.poll(_READER_LOOKS_UP_EVERY_MS):
                continue
            chunk = os.read(descriptor, _CHUNK_BYTES)
            if not chunk:
                break
            if not capture.feed(chunk):
                mailbox.put(_News.TOO_MUCH_OUTPUT)
                break
    finally:
        mailbox.put(_News.OUTPUT_ENDED)


def _await_end(process: CommandProcess, mailbox: Mailbox) -> None:
    mailbox.put(process.wait_for_end())
