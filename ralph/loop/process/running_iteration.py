"""Waits for the end of an iteration's process, passes signals on to it, and enforces the time limit. At the end,
kills every remaining process of the iteration. When the loop gets a signal, it sends the signal only to the
iteration's main process. That process then stops its own commands within six seconds and still writes its result.

Ctrl-Z suspends only the loop, and the iteration continues. If Ctrl-Z suspended the iteration too, and the loop was
then killed, the iteration could not end and would hold the checkout's lock.
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
"""Seconds that the process has to end after a signal that asks it to stop. After that it is killed. `ralph run`
promises to need at most six."""
OVERTIME_S = 30.0
"""Seconds that an iteration may take beyond its time limit. After that it is stopped, because `ralph run` should have
ended by itself."""
_KILL_S = 2.0
_KILL_AGAIN_EVERY_S = 0.01


class IterationEnding(Struct, frozen=True):
    exit_code: int
    """The exit code, 0-255. It is 128 + n if signal n killed the process."""
    stopped_by: int | None = None
    """The first signal that the loop received during the run, or None."""
    killed_by: int | None = None
    """The signal that killed the process, or None if it exited by itself."""
    was_overdue: bool = False
    """True if the process ran past its time limit and was stopped."""
    is_all_gone: bool = True
    """False if a process that the iteration started could not be killed, because it belongs to another user or hangs
    in the kernel."""


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
        """Waits for the end of the process. `limit_s` is the time limit in seconds that the process itself keeps, or
        None if the process has no time limit. `waiting_for` names the wait in heartbeats. If no thread can be started
        to wait for the process, kills the process and raises ShortageError.
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
        """Sends a signal to the process. If the process has not ended after `stops_within_s`, it is killed. A second
        signal makes `ralph run` end at once, and does not postpone the kill.
        """
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
