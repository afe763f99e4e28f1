"""The events of a loop, as values. This module prints nothing: `loop/words.py` turns events into sentences. A message
that has no event class is a `Notice`. `--quiet` hides a notice unless its `is_vital` is True.
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
    """A process of the loop has run the gate or the `--until` check before it begins or resumes an iteration."""

    result: CheckResult
    name: str
    """`gate` or `check`."""


class IterationBegan(LoopEvent, frozen=True):
    number: int
    """The number of the iteration, counted from 1."""
    max_iterations: int | None
    """The loop's limit on iterations, or None without a limit."""
    session_id: str
    left_usd: float | None
    """The rest of the loop's budget in US dollars. None if the loop has no budget, or if the settings give a smaller
    budget to each iteration."""
    left_s: float | None
    """The rest of the loop's time in seconds. None if the loop has no time limit, or if the settings give a shorter
    time to each iteration."""


class IterationResumed(LoopEvent, frozen=True):
    """The loop resumes an iteration that was begun by an earlier process of the loop."""

    number: int
    max_iterations: int | None
    session_id: str
    is_anew: bool
    """True if the iteration starts again from its beginning, because its session is missing or the API rejected the
    session."""


class LoopWaits(LoopEvent, frozen=True):
    """The loop begins to wait after a failure. After the wait, it repeats what failed: the current iteration or a
    step.
    """

    setback: Setback
    setbacks: int
    """The number of consecutive failures of this kind."""
    wait_s: float
    until: datetime
    is_from_server: bool
    """True if the server asked for a wait of this length."""
    has_own_schedule: bool
    """True if the retry schedule in the loop's settings differs from the schedule of `--retry patient`."""
    iteration: int | None
    """The number of the current iteration, or None between iterations."""
    session_id: str | None


class BranchChanged(LoopEvent, frozen=True):
    """An iteration switched the git branch. `before` is None if HEAD was detached before the switch, and `after` is
    None if HEAD is detached now.
    """

    iteration: int
    before: str | None
    after: str | None


class GitChanged(LoopEvent, frozen=True):
    """An iteration changed git settings or git hooks of the checkout."""

    iteration: int
    names: tuple[str, ...]


class Pushed(LoopEvent, frozen=True):
    commits: int
    branch: str | None = None
    """The branch, or None for the current one."""


class IterationEnded(LoopEvent, frozen=True):
    """An iteration has ended and is recorded. It counts towards the loop's limit on iterations."""

    record: IterationRecord
    max_iterations: int | None


class IterationCutOff(LoopEvent, frozen=True):
    """An iteration has ended, and its outcome also ends the loop. For example, a signal arrived or the API rejected
    the key. This iteration does not count towards the loop's limit on iterations.
    """

    number: int
    max_iterations: int | None
    outcome: Outcome
    exit_code: int
    turns: int
    cost_usd: float | None
    """The cost in US dollars, or None if it is unknown."""
    took_s: float


class LoopEnded(LoopEvent, frozen=True):
    """The last event of a loop."""

    end: LoopEnd
    state: LoopState | None = None
    """The last state of the loop. None if the loop could not begin, or if an unexpected error ended the loop."""
