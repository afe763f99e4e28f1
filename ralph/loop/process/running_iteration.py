"""Waits for the end of an iteration's process, passes signals on to it alone, enforces the time limit, and kills what is left
at the end. After a signal, the process stops its own commands within six seconds and still writes its result. Ctrl-Z
suspends only the loop: an iteration that was suspended too could not end when its loop is killed, and would hold the lock.
"""

from __future__ import annotations

import math
import signal
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.machine.starting import start_thread
from ralph.values.ports import TIMED_OUT, Interrupted
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from ralph.machine.processes import OwnedProcess
    from ralph.values.ports import Clock, Mailbox, Waiter

STOPS_WITHIN_S = 15.0
"""After a signal that asks it to stop, the process is killed then. `ralph run` promises to need at most six."""
OVERTIME_S = 30.0
"""An iteration is stopped so long after its time limit, at which `ralph run` should have ended by itself."""
_KILL_S = 2.0
_KILL_AGAIN_EVERY_S = 0.01


class IterationEnding(Struct, frozen=True):
    exit_code: int
    """0-255, 128 + n if signal n killed the process."""
    stopped_by: int | None = None
    """The first signal that the loop received during the run."""
    killed_by: int | None = None
    """The signal that killed the process."""
    was_overdue: bool = False
    """True if the process ran past its time limit and was stopped."""
    is_all_gone: bool = True
    """False if a process could not be killed, because it belongs to another user or hangs in the kernel."""


class RunningIteration:
    def __init__(
        self,
        process: OwnedProcess,
        *,
        waiter: Waiter,
        clock: Clock,
        stops_within_s: float = STOPS_WITHIN_S,
        overtime_s: float = OVERTIME_S,
    ) -> None:
        self._process = process
        self._waiter = waiter
        self._clock = clock
        self._stops_within_s = stops_within_s
        self._overtime_s = overtime_s
        self._mailbox = waiter.mailbox()
        self._status: int | None = None
        self._stopped_by: int | None = None
        self._was_overdue = False
        self._overdue_at_s = math.inf
        self._killed_at_s = math.inf

    def run(self, limit_s: float | None, waiting_for: str) -> IterationEnding:
        """Waits for the end of the process. `limit_s` is the time limit that the process itself keeps. If no thread can be
        started to wait for it, kills the process and raises ShortageError.
        """
        if limit_s is not None:
            self._overdue_at_s = self._clock.now_s() + limit_s + self._overtime_s
        try:
            self._start_thread()
            self._wait_for_end(waiting_for)
        finally:
            is_all_gone = self._kill_what_is_left()
            self._mailbox.close()
        status = -signal.SIGKILL if self._status is None else self._status
        code = status if status >= 0 else 128 - status
        killed_by = -status if status < 0 else None
        return IterationEnding(code, self._stopped_by, killed_by, self._was_overdue, is_all_gone)

    def _start_thread(self) -> None:
        following = (self._process, self._mailbox)
        try:
            start_thread(_await_end, *following, name="iteration end")
        except ShortageError:
            self._process.kill_what_is_left()
            self._process.wait_for_end()
            raise

    def _wait_for_end(self, waiting_for: str) -> None:
        while self._status is None:
            until_s = min(self._overdue_at_s, self._killed_at_s)
            if self._next(until_s, waiting_for) is not TIMED_OUT:
                continue
            if self._clock.now_s() >= self._killed_at_s:
                return
            self._was_overdue = True
            self._overdue_at_s = math.inf
            self._ask_to_stop(signal.SIGTERM)

    def _next(self, until_s: float, waiting_for: str) -> Any:
        until = until_s if math.isfinite(until_s) else None
        try:
            news = self._waiter.wait(self._mailbox, until_s=until, waiting_for=waiting_for)
        except Interrupted as interrupted:
            number = interrupted.signal_number or signal.SIGTERM
            self._stopped_by = self._stopped_by or number
            self._ask_to_stop(number)
            return None
        if isinstance(news, int):
            self._status = news
        return news

    def _ask_to_stop(self, signal_number: int) -> None:
        """A second signal makes `ralph run` end at once, and does not postpone the kill."""
        self._process.send(signal_number)
        self._killed_at_s = min(self._killed_at_s, self._clock.now_s() + self._stops_within_s)

    def _kill_what_is_left(self) -> bool:
        deadline_s = self._clock.now_s() + _KILL_S
        while not self._process.kill_what_is_left():
            if self._clock.now_s() >= deadline_s:
                return False
            self._next(self._clock.now_s() + _KILL_AGAIN_EVERY_S, "what the iteration has left to end")
        return True


def _await_end(process: OwnedProcess, mailbox: Mailbox) -> None:
    mailbox.put(process.wait_for_end())
