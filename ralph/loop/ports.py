"""The ports of a loop: what it needs of the world. Tests have fakes of all of them in `tests/fakes_of_loop.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from ralph.loop.rules import Share
    from ralph.loop.state import LoopState
    from ralph.loop.values import (
        Changes,
        CheckResult,
        IterationOrder,
        IterationResult,
        SessionSeen,
        Setback,
        Snapshot,
    )
    from ralph.retry.backoff import Wait
    from ralph.settings.tables import LoopSettings
    from ralph.values.limits import LimitSettings
    from ralph.values.ports import Clock, Waiter


class CheckoutError(Exception):
    """One line: what git, or the file system, would not do, and why."""


class Checkout(Protocol):
    """The directory that the iterations change. Every method raises `Interrupted` once what it started is gone, and a
    ShortageError, or what has one as its cause, where it could not be started.
    """

    def snapshot(self) -> Snapshot:
        """Raises CheckoutError."""
        ...

    def changes(self, before: Snapshot, after: Snapshot) -> Changes:
        """Raises CheckoutError."""
        ...

    def commit(self, message: str) -> bool:
        """Commit all that is uncommitted, untracked files included. False: nothing was. Raises CheckoutError."""
        ...

    def push(self) -> int:
        """Push the branch; how many commits the remote did not have. Raises CheckoutError."""
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
        """See that it can be created. Raises OSError."""
        ...


class LoopRecord(Protocol):
    def save(self, state: LoopState) -> None:
        """Saves the state, whole or not at all. Raises OSError."""
        ...


class LoopVoice(Protocol):
    """Tells people what the loop does, as it happens."""

    def checked_first(self, result: CheckResult) -> None:
        """The check was run before any iteration."""
        ...

    def begins(self, state: LoopState, granted: Share) -> None:
        """Its current iteration, which may use so much."""
        ...

    def taken_up(self, state: LoopState, *, is_anew: bool) -> None:
        """Reports that the current iteration of an earlier process is resumed. `is_anew`: nothing of it was
        kept.
        """
        ...

    def waits(self, state: LoopState, wait: Wait, until: datetime, setback: Setback, number: int) -> None:
        """Announces a wait before the current iteration, or a step of the loop, is tried again. `number`: the
        count of such setbacks in a row.
        """
        ...

    def branch_changed(self, state: LoopState, before: str | None, after: str | None) -> None:
        """Reports that the current iteration changed the branch. None: on no branch."""
        ...

    def git_changed(self, state: LoopState, names: Sequence[str]) -> None:
        """Reports that the current iteration changed settings and hooks that git follows here."""
        ...

    def pushed(self, commits: int) -> None: ...

    def iteration_cut_off(self, state: LoopState, result: IterationResult) -> None:
        """The current one, whose end is the loop's."""
        ...

    def iteration_ended(self, state: LoopState) -> None:
        """The one that was recorded last."""
        ...

    def warn(self, text: str) -> None: ...


class LoopWorld(Struct, frozen=True):
    """Everything that a loop works with."""

    checkout: Checkout
    iterations: Iterations
    check: Check | None
    """The check of `--until`; None: there is none."""
    stop_file: StopFile
    record: LoopRecord
    people: LoopVoice
    waiter: Waiter
    clock: Clock
    read_prompt: Callable[[], str]
    """The user's prompt as it stands now. Raises OSError."""
    own_limits: LimitSettings
    """The limits that the settings give each iteration."""
    schedule: LoopSettings
    late_input: Callable[[], str | None]
    """Why nothing may be begun: data came on standard input after it had been left alone. None: none came."""
