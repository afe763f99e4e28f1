"""The ports of a loop, which are its interfaces to the outside world. Tests use the fakes in `tests/fakes/loop.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from ralph.values.ports import NoTurnLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.git.progress import Changes, Snapshot
    from ralph.loop.state import LoopState
    from ralph.loop.values import CheckResult, IterationOrder, IterationResult, IterationSession
    from ralph.settings.tables import LoopSettings
    from ralph.values.limits import LimitSettings
    from ralph.values.ports import Clock, Events, TurnLock, Waiter
    from ralph.values.redaction import LookedCommit


class Checkout(Protocol):
    """The directory that the iterations change. Every method raises CheckoutError, and Interrupted after all processes that
    it started are gone. If this machine lacks a resource such as memory, a method raises ShortageError, or
    another error for which `shortage_of` returns the shortage.
    """

    def snapshot(self) -> Snapshot: ...

    def changes(self, before: Snapshot, after: Snapshot) -> Changes: ...

    def commit(self, message: str, seen: Snapshot | None = None) -> bool:
        """Commits all uncommitted work, including untracked files, or if `seen` is the last snapshot, the work that it saw.
        Returns False if there was nothing to commit.
        """

    def look_through(self, since: str) -> tuple[str, tuple[LookedCommit, ...]]:
        """The id of the current commit, or "" if there is none, and where secrets are in its ancestors that the commit
        `since` does not have. `since` may be "".
        """

    def commit_aside(
        self, message: str, *, earlier: str | None, has_work: bool, pushes: bool, limit_s: float
    ) -> str | None:
        """As `GitCheckout.commit_aside`: commits HEAD and all uncommitted work to a branch of its own. Also raises OSError."""

    def push(self, branch: str | None = None) -> int:
        """Pushes the current branch, or another one. Returns the number of commits that the remote did not have before."""

    def unpushed(self) -> int | None:
        """The number of commits that the remote lacks, or None if that is unknown. Contacts no remote."""


class Iterations(Protocol):
    def run(self, order: IterationOrder) -> IterationResult:
        """Runs one process to its end, and then kills all that it has left. A signal is passed on to it and returned in
        `stopped_by`; Interrupted is never raised. If this machine lacks a resource such as memory, the result has a
        setback. Raises OSError if the process cannot be started for another reason.
        """

    def seen(self, session_id: str) -> IterationSession | None:
        """The state of an iteration's session. None if no session with this id can be resumed. Raises OSError."""


class Check(Protocol):
    def run(self, limit_s: float) -> CheckResult:
        """Runs the command of `--until` or `--gate`. Raises ShortageError if it cannot start, and Interrupted after its end."""


class StopFile(Protocol):
    def is_there(self) -> bool: ...

    def remove(self) -> None:
        """Removes the stop file if it is there. Raises OSError."""

    def make_room(self) -> None:
        """Makes the directory of the stop file, so that the model can create the file. Raises OSError."""


class LoopRecord(Protocol):
    def save(self, state: LoopState) -> None:
        """Saves the state atomically. Raises OSError."""

    def keep_check(self, iteration: int, tail: str) -> None:
        """Keeps the end of a check's output. If that fails, the output is not kept."""


class Page(Protocol):
    def write(self) -> str | None:
        """Writes the page about the loop as it is recorded now. Returns the reason if that failed. Raises Interrupted."""


class LoopWorld(Struct, frozen=True):
    """All ports and settings that a loop uses."""

    checkout: Checkout
    iterations: Iterations
    check: Check | None
    gate: Check | None
    open_tasks: Callable[[], int | None] | None
    """Counts the open tasks of the `--plan` as it is now. Returns None if the plan has no task. Raises OSError."""
    stop_file: StopFile
    record: LoopRecord
    events: Events
    waiter: Waiter
    clock: Clock
    read_prompt: Callable[[], str]
    """Reads the user's prompt as it is now. Raises OSError."""
    own_limits: LimitSettings
    """The limits that the settings give to each iteration."""
    schedule: LoopSettings
    redact: Callable[[str], str]
    """Replaces everything in a text that is a known credential or looks like one."""
    late_input: Callable[[], str | None]
    """An error text if standard input received data after ralph had stopped waiting for it: no iteration may begin then."""
    page: Page | None = None
    turn_lock: TurnLock = field(default_factory=NoTurnLock)
    """Is held while the loop commits or runs its gate or its check."""
