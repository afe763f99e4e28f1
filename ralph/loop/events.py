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
    number: int = 1
    """The number of the iteration that follows."""


class IterationBegan(LoopEvent, frozen=True):
    number: int
    max_iterations: int | None
    session_id: str
    left_usd: float | None
    """The rest of the loop's budget. None without one, or if the settings give less to each iteration."""
    left_s: float | None
    """The rest of the loop's time, as `left_usd`."""


class IterationResumed(LoopEvent, frozen=True):
    """The loop resumes an iteration that was begun by an earlier process of the loop."""

    number: int
    max_iterations: int | None
    session_id: str
    is_anew: bool
    """True if the iteration begins again, because its session is missing or the API rejected it."""


class LoopWaits(LoopEvent, frozen=True):
    """The loop begins to wait after a failure, and then repeats what failed: the iteration or a step."""

    setback: Setback
    setbacks: int
    """The number of consecutive failures of this kind."""
    wait_s: float
    until: datetime
    is_from_server: bool
    has_own_schedule: bool
    """True if the settings have another schedule than `--retry patient`."""
    iteration: int | None
    session_id: str | None


class BranchChanged(LoopEvent, frozen=True):
    """An iteration switched the git branch. None stands for a detached HEAD."""

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
    record: IterationRecord
    max_iterations: int | None


class IterationCutOff(LoopEvent, frozen=True):
    """An iteration has ended with an outcome that also ends the loop, as a signal does. It does not count."""

    number: int
    max_iterations: int | None
    outcome: Outcome
    exit_code: int
    turns: int
    cost_usd: float | None
    took_s: float


class LoopEnded(LoopEvent, frozen=True):
    """The last event of a loop."""

    end: LoopEnd
    state: LoopState | None = None
    """The last state of the loop. None if the loop could not begin, or if an unexpected error ended the loop."""
