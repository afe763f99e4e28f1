"""The ports of a loop: what it needs of the world. Tests have fakes of all of them in `tests/fakes/loop.py`."""

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
    """Git or the file system refused something: which and why, in one line."""


class Checkout(Protocol):
    """The directory that the iterations change. Every method raises `Interrupted` once what it started is gone, and a
    ShortageError, or what has one as its cause, where it could not be started.
    """

    def snapshot(self) -> Snapshot:
        """The state of the checkout now. Raises CheckoutError."""
        ...

    def changes(self, before: Snapshot, after: Snapshot) -> Changes:
        """The changes between two snapshots. Raises CheckoutError."""
        ...

    def commit(self, message: str) -> bool:
        """Commit all that is uncommitted, untracked files included. False: nothing was. Raises CheckoutError."""
        ...

    def push(self) -> int:
        """Pushes the branch. Returns the number of commits that the remote did not have. Raises CheckoutError."""
        ...

    def unpushed(self) -> int | None:
        """How many commits the remote lacks, as far as this checkout knows; None: it cannot tell."""
        ...


class Iterations(Protocol):
    def run(self, order: IterationOrder) -> IterationResult:
        """Start one `ralph run` process and follow it to its end; nothing of it is left.

        A signal meanwhile is passed on to it, and told by `stopped_by`; never raises `Interrupted`. Raises OSError
        where no process can be started, but for a shortage, which is a setback.
        """
        ...

    def seen(self, session_id: str) -> SessionSeen | None:
        """The session of an iteration that this process did not follow; None: it was never begun."""
        ...


class Check(Protocol):
    def run(self, limit_s: float) -> CheckResult:
        """Run the `--until` command for at most so long. Raises `Interrupted` once it is gone, and a
        ShortageError where it could not be started.
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
    """The user's prompt as it stands now. Raises OSError."""
    own_limits: LimitSettings
    """The limits that the settings give each iteration."""
    schedule: LoopSettings
    late_input: Callable[[], str | None]
    """Why nothing may be begun: data came on standard input after it had been left alone. None: none came."""
