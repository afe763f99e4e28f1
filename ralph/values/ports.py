"""The ports that every room uses: clock, waiter, events.

`machine/` and `run/` implement them, tests have fakes. A port that only one room uses is defined in that room:
`retry/ports.py`, `agent/ports.py`.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Protocol

from ralph.values.outcome import Outcome
from ralph.values.usage import TokenUsage

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from ralph.values.events import Event


class Interrupted(BaseException):
    """Something asked ralph to stop: a signal, a limit or a driver. Raised by the `Waiter`, and where a limit is
    checked.

    A BaseException, so that no `except Exception` on the way can swallow it. An API error that came before it is
    its `__cause__`.
    """

    outcome: Outcome
    signal_number = 0
    tokens = TokenUsage()
    """The server's token counts for an answer that was under way."""


class SignalReceived(Interrupted):
    """Raised once per signal, never by a signal handler."""

    outcome = Outcome.INTERRUPTED

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class TimeIsUp(Interrupted):
    """The run's time limit has passed, or the next step would outlast it. Raised once, and never after a signal."""

    outcome = Outcome.TIMED_OUT


class BudgetSpent(Interrupted):
    """The rest of the budget does not cover the next call at its worst price."""

    outcome = Outcome.LIMIT_REACHED


class InterruptRequested(Interrupted):
    """A driver asked ralph to stop the work on the current message.

    Ralph then takes the next message, unlike after Ctrl-C.
    """

    outcome = Outcome.INTERRUPTED
    signal_number = signal.SIGINT

    def __init__(self) -> None:
        super().__init__("interrupted by a control request")


class RetryAborted(Interrupted):
    """The driver of this run does not want to wait for the API any longer. Raised while a chain of retries is
    open.
    """

    outcome = Outcome.API_UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("Retry cancelled")


class GuardRefused(Interrupted):
    """A driver requested a guard that ralph cannot provide.

    The work on the current message stops, and ralph takes no further message.
    """

    outcome = Outcome.CONFIG


class JournalError(Exception):
    """The journal accepts no more records: nothing may happen that the journal would have to record first."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"cannot write the journal {path}: {error.strerror or error}")


class WorkingDirectoryGoneError(Exception):
    """The path of the working directory leads nowhere, or to another directory: no tool may work there."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"the working directory {directory} is gone: it was removed, moved or replaced")


class TimedOut:
    """The result of `Waiter.wait` when the deadline came first."""


TIMED_OUT = TimedOut()


class Clock(Protocol):
    def now_s(self) -> float:
        """Seconds on a clock that never jumps and, where the system has one, counts suspend."""
        ...

    def utc_now(self) -> datetime:
        """The wall clock, aware, for reading HTTP dates and stamping events; never for durations."""
        ...


class Mailbox(Protocol):
    """Passes items from a worker thread to the main thread."""

    def put(self, item: Any) -> None:
        """Add an item. Called from any thread; never blocks. Ignored once the mailbox is closed."""
        ...

    def close(self) -> None:
        """Drop the present items and all later ones, because nobody will take them."""
        ...


class Waiter(Protocol):
    """The one place where the main thread waits."""

    def mailbox(self) -> Mailbox: ...

    def wait(self, mailbox: Mailbox, *, until_s: float | None, waiting_for: str) -> Any:
        """The mailbox's next item, or `TIMED_OUT` when `now_s()` passes `until_s` (None: wait for ever).

        An item that is there wins over a deadline that has passed. `waiting_for` is the text of a heartbeat.
        Raises `SignalReceived` once for each signal, also for one that came before the call, and `TimeIsUp` once
        when the run's time limit passes. With a driver also `InterruptRequested` and `RetryAborted`, at most one
        of them for each message.
        """
        ...

    def sleep(self, seconds: float, *, waiting_for: str) -> None:
        """Waits for `seconds`. Raises the same exceptions as `wait`."""
        ...

    def time_left_s(self) -> float:
        """Seconds until the run's time limit, infinite where there is none. 0 or less: it has passed."""
        ...


class Driven(Protocol):
    """Takes a driver's control lines during every wait of the main thread."""

    @property
    def mailbox(self) -> Mailbox:
        """The mailbox in which the lines arrive."""
        ...

    def can_take(self) -> bool:
        """Whether a line may be handled now; otherwise it stays in the mailbox."""
        ...

    def handle(self, item: Any, *, waiting_for: str | None = None) -> None:
        """Handles a line. Raises `InterruptRequested` and `RetryAborted`, which end the wait."""
        ...


class Events(Protocol):
    def emit(self, event: Event) -> None: ...
