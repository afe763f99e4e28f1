"""The interfaces (ports) that several packages use: clock, waiter and events. Also the exceptions that stop a run.

`machine/` and `run/` implement the ports. Tests use fakes. If only one package uses a port, that package defines it,
in `retry/step.py`, `agent/tool_turn.py` or `agent/session_log.py`.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from ralph.values.outcome import Outcome
from ralph.values.usage import TokenUsage

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from ralph.values.events import Event


class Interrupted(BaseException):
    """Ralph must stop its work because of a signal, a limit or a driver. A driver is a program that controls ralph.

    The `Waiter` raises this exception, and so does code that checks a limit. It is a BaseException, so that `except
    Exception` does not catch it. If it ends the retries of a request, `__cause__` holds the last `AgentError`.
    """

    outcome: Outcome
    signal_number = 0
    tokens = TokenUsage()
    """The token counts for an answer that was not complete. For the output, the higher of ralph's estimate and the
    server's count."""
    undone = ""
    """A note for the model that says which effects of a stopped tool call were undone. Empty if none were."""


class SignalReceived(Interrupted):
    """A signal arrived. The exception is raised once per signal, and never inside a signal handler."""

    outcome = Outcome.INTERRUPTED

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class TimeIsUp(Interrupted):
    """The run's time limit has passed, or ralph would have to wait for the API until after this limit. The `Waiter`
    raises it at most once, and never after it has raised `SignalReceived`.
    """

    outcome = Outcome.TIMED_OUT


class BudgetSpent(Interrupted):
    """The rest of the budget cannot pay for the highest possible cost of another request."""

    outcome = Outcome.LIMIT_REACHED


class InterruptRequested(Interrupted):
    """A driver asked ralph to stop working on the current message. Ralph then works on the next one. After Ctrl-C,
    ralph would end instead.
    """

    outcome = Outcome.INTERRUPTED
    signal_number = signal.SIGINT

    def __init__(self) -> None:
        super().__init__("interrupted by a control request")


class RetryAborted(Interrupted):
    """A driver asked ralph to stop retrying a request. Raised only during a retry, or during the wait before one."""

    outcome = Outcome.API_UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("Retry cancelled")


class HookStopped(Interrupted):
    """A hook, or a person who uses the driver, ended the work on the current message. Ralph then works on the next
    one.
    """

    outcome = Outcome.INTERRUPTED
    signal_number = signal.SIGINT


class EndRefused(Struct, frozen=True):
    """A hook does not let a task end that the model has completed."""

    hook: str
    reason: str
    """The reason for the model, in the words of the hook."""


class GuardRefused(Interrupted):
    """A safeguard that was asked for, for example a driver's hook, is missing or did not hold. Ralph stops working
    on the current message, and works on no other one while the safeguard is missing.
    """

    outcome = Outcome.CONFIG


class JournalError(Exception):
    """The journal cannot be written any more. After this error, ralph must not do anything that must first be
    recorded in the journal.
    """

    tokens = TokenUsage()

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"cannot write the journal {path}: {error.strerror or error}")


WORKING_DIRECTORY_GONE = "the working directory is gone; change to one that exists"


class WorkingDirectoryGoneError(Exception):
    """The working directory does not exist any more, or its path leads to another directory. No tool may run then."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"the working directory {directory} is gone: it was removed, moved or replaced")


class TimedOut:
    """The type of `TIMED_OUT`, which `Waiter.wait` returns when the deadline has passed."""


TIMED_OUT = TimedOut()


class Clock(Protocol):
    def now_s(self) -> float:
        """The time in seconds on a clock that never jumps. Only differences between two times have a meaning. If
        the system supports it, the clock also runs while the machine is suspended.
        """

    def utc_now(self) -> datetime:
        """The current date and time with a time zone, for timestamps and comparisons with HTTP dates. Durations are
        measured with `now_s`.
        """


class Mailbox(Protocol):
    """Passes items to the main thread: from other threads, and when a descriptor has something to read."""

    def put(self, item: Any) -> None:
        """Adds an item. Any thread may call this method. It never blocks. A closed mailbox ignores the item."""

    def watch(self, descriptor: int, item: Any) -> None:
        """Adds `item` when the descriptor has something to read or its other end is closed, and again after each time
        that the item was taken. The main thread must call this method, and `unwatch` before it closes the descriptor.
        """

    def unwatch(self, descriptor: int) -> None: ...

    def close(self) -> None:
        """Closes the mailbox. All items in it are dropped, and so are all items that are added later."""


class Waiter(Protocol):
    """Waits on behalf of the main thread. The main thread waits only through this interface."""

    @property
    def was_stopped(self) -> bool:
        """Whether a signal or the time limit has stopped ralph, so that it must end soon."""

    def mailbox(self) -> Mailbox: ...

    def wait(self, mailbox: Mailbox, *, until_s: float | None, waiting_for: str) -> Any:
        """Waits for an item in the mailbox and returns it. Returns `TIMED_OUT` when the clock reaches `until_s`.

        If `until_s` is None, there is no deadline. If the mailbox already contains an item, it is returned even after
        the deadline. `waiting_for` is the text of a heartbeat. Raises `SignalReceived` once for each signal, even for
        a signal that came before the call. Raises `TimeIsUp` once when the run's time limit passes. If there is a
        driver, also raises `InterruptRequested`, `RetryAborted` or `GuardRefused`. For each message, it raises at
        most one of these three.
        """

    def sleep(self, seconds: float, *, waiting_for: str) -> None:
        """Waits for `seconds`. Raises the exceptions that `wait` raises."""

    def time_left_s(self) -> float:
        """The seconds that are left until the run's time limit: infinite if there is no limit, 0 or less if it has
        passed.
        """

    def stop_left_s(self) -> float:
        """The seconds that are left to end after a signal or the time limit has stopped ralph: infinite if nothing
        has stopped it, none after a second signal.
        """


class TurnLock(Protocol):
    """A lock that another program shares with ralph. Ralph holds the lock while files may change, so that the other
    program can copy the files and the journal at a moment when the two agree.
    """

    def take(self) -> None:
        """Waits for the lock. Does nothing if ralph already holds it. Raises Interrupted, as `Waiter.sleep` does,
        and `GuardRefused` if the file system refuses the lock.
        """

    def release(self) -> None:
        """Releases the lock. Does nothing if ralph does not hold it."""


class NoTurnLock:
    """The `TurnLock` of a process that shares no lock."""

    def take(self) -> None:
        """Does nothing."""

    def release(self) -> None:
        """Does nothing."""


class Driven(Protocol):
    """Handles the control lines that a driver sends. The waiter calls it during every wait of the main thread."""

    @property
    def mailbox(self) -> Mailbox:
        """The mailbox in which the control lines arrive."""

    def can_take(self) -> bool:
        """Whether a control line may be handled now. If this is False, control lines stay in the mailbox."""

    def handle(self, item: Any, *, waiting_for: str | None = None) -> None:
        """Handles an item of the mailbox. Raises `InterruptRequested`, `RetryAborted` or `GuardRefused` to end the
        current wait. `waiting_for` says what the main thread is waiting for. It is None if that is unknown.
        """


class Events(Protocol):
    def emit(self, event: Event) -> None: ...


class PathRules(Protocol):
    """Checks paths against the permission rules. Its methods may be called on any thread."""

    def why_not_read(self, path: str) -> str | None:
        """The rule that forbids reading or finding `path`, or None if none does. `path` is absolute and contains no
        symbolic links.
        """

    def why_not_written(self, path: str) -> str | None:
        """The rule that forbids writing `path`, or None if none does. `path` is absolute and contains no symbolic
        links.
        """
