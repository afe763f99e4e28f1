"""The ports of a loop: its interfaces to the outside world.

Tests have fakes of all of them in `tests/fakes/loop.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.loop.state import LoopState
    from ralph.loop.values import (
        Changes,
        CheckResult,
        IterationOrder,
        IterationResult,
        SessionSeen,
        Snapshot,
    )
    from ralph.settings.tables import LoopSettings
    from ralph.values.limits import LimitSettings
    from ralph.values.ports import Clock, Events, Waiter


class CheckoutError(Exception):
    """An operation that git or the file system refused. One line names the operation and the reason."""


class Checkout(Protocol):
    """The directory that the iterations change.

    Every method raises `Interrupted` after the processes that it started are gone. If a process could not be started,
    it raises a ShortageError or an error that has one as its cause.
    """

    def snapshot(self) -> Snapshot:
        """The state of the checkout now. Raises CheckoutError."""
        ...

    def changes(self, before: Snapshot, after: Snapshot) -> Changes:
        """The changes between two snapshots. Raises CheckoutError."""
        ...

    def commit(self, message: str) -> bool:
        """Commits all uncommitted work, untracked files included. False: there was none. Raises CheckoutError."""
        ...

    def push(self) -> int:
        """Pushes the branch. Returns the number of commits that the remote did not have. Raises CheckoutError."""
        ...

    def unpushed(self) -> int | None:
        """The number of commits that the remote lacks, as far as this checkout knows; None: unknown."""
        ...


class Iterations(Protocol):
    def run(self, order: IterationOrder) -> IterationResult:
        """Starts one `ralph run` process and follows it to its end. None of its processes is left.

        A signal during the run is passed on to the process, and `stopped_by` names it; `Interrupted` is never raised.
        Raises OSError if no process can be started, except for a shortage, which is a setback.
        """
        ...

    def seen(self, session_id: str) -> SessionSeen | None:
        """The session of an iteration that this process did not follow; None: the session never began."""
        ...


class Check(Protocol):
    def run(self, limit_s: float) -> CheckResult:
        """Runs the `--until` command for at most `limit_s`.

        Raises `Interrupted` after the command is gone, and a ShortageError if it could not be started.
        """
        ...


class StopFile(Protocol):
    def is_there(self) -> bool: ...

    def make_room(self) -> None:
        """Makes sure that the file can be created. Raises OSError."""
        ...


class LoopRecord(Protocol):
    def save(self, state: LoopState) -> None:
        """Saves the state, whole or not at all. Raises OSError."""
        ...


class LoopWorld(Struct, frozen=True):
    """Everything that a loop works with."""

    checkout: Checkout
    iterations: Iterations
    check: Check | None
    """The check of `--until`; None: there is none."""
    stop_file: StopFile
    record: LoopRecord
    events: Events
    waiter: Waiter
    clock: Clock
    read_prompt: Callable[[], str]
    """Reads the user's present prompt. Raises OSError."""
    own_limits: LimitSettings
    """The limits that the settings give each iteration."""
    schedule: LoopSettings
    late_input: Callable[[], str | None]
    """Returns an error text if data came on standard input after ralph had stopped waiting for it. Nothing more may
    begin then. None: no data came.
    """
