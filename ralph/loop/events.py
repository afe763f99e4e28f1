"""Events of a loop, as values. `loop/words.py` turns them into sentences; nothing here prints.

A message that has no event class of its own is a `Notice`. With `is_vital`, `--quiet` does not hide it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.values.events import LoopEvent

if TYPE_CHECKING:
    from datetime import datetime

    from ralph.loop.state import IterationRecord, LoopState
    from ralph.loop.values import CheckResult, LoopEnd, Setback
    from ralph.values.outcome import Outcome


class CheckedFirst(LoopEvent, frozen=True):
    """The check ran before the first iteration."""

    result: CheckResult


class IterationBegan(LoopEvent, frozen=True):
    number: int
    """Counted from 1, as in all events here."""
    max_iterations: int | None
    """The loop's limit; None: there is none."""
    session_id: str
    left_usd: float | None
    """The rest of the loop's budget; None: there is no budget, or another limit is reached first."""
    left_s: float | None
    """The rest of the loop's time in seconds; None: there is no time limit, or another limit is reached first."""


class IterationResumed(LoopEvent, frozen=True):
    """An iteration that an earlier process of this loop began is resumed."""

    number: int
    max_iterations: int | None
    session_id: str
    is_anew: bool
    """The iteration starts from the beginning, because its session is missing or the API rejected it."""


class LoopWaits(LoopEvent, frozen=True):
    """A wait begins. After it the current iteration, or a step of the loop, is tried again."""

    setback: Setback
    setbacks: int
    """The number of setbacks of this kind in a row."""
    wait_s: float
    until: datetime
    is_from_server: bool
    """The server asked for this wait."""
    has_own_schedule: bool
    """The loop's settings have a schedule other than that of `--retry patient`."""
    iteration: int | None
    """The current iteration; None: there is none."""
    session_id: str | None


class BranchChanged(LoopEvent, frozen=True):
    """An iteration changed the git branch. A branch of None: HEAD is detached."""

    iteration: int
    before: str | None
    after: str | None


class GitChanged(LoopEvent, frozen=True):
    """An iteration changed git settings or hooks of the checkout."""

    iteration: int
    names: tuple[str, ...]


class Pushed(LoopEvent, frozen=True):
    commits: int


class IterationEnded(LoopEvent, frozen=True):
    """An iteration that counts has ended and is recorded."""

    record: IterationRecord
    max_iterations: int | None


class IterationCutOff(LoopEvent, frozen=True):
    """The loop ended during the current iteration, which does not count."""

    number: int
    max_iterations: int | None
    outcome: Outcome
    exit_code: int
    turns: int
    cost_usd: float | None
    """The cost; None: not known."""
    took_s: float


class LoopEnded(LoopEvent, frozen=True):
    """The last event of a loop."""

    end: LoopEnd
    state: LoopState | None = None
    """The last recorded state; None: the loop did not begin."""
