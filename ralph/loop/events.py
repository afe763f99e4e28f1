"""The events of a loop, as values. This module prints nothing: `loop/words.py` turns events into sentences. A message
without an event class of its own is a `Notice`; `--quiet` does not hide a notice with `is_vital`.
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
    """A process of the loop ran the `--until` check before its first iteration."""

    result: CheckResult


class IterationBegan(LoopEvent, frozen=True):
    number: int
    """The number of the iteration, counted from 1."""
    max_iterations: int | None
    """The loop's limit on iterations, or None without a limit."""
    session_id: str
    left_usd: float | None
    """The rest of the loop's budget in US dollars. None if the loop has no budget, or if the settings allow an
    iteration less than the rest.
    """
    left_s: float | None
    """The rest of the loop's time in seconds. None if the loop has no time limit, or if the settings allow an
    iteration less than the rest.
    """


class IterationResumed(LoopEvent, frozen=True):
    """The loop resumes an iteration that an earlier process of the loop began."""

    number: int
    max_iterations: int | None
    session_id: str
    is_anew: bool
    """True if the iteration starts from its beginning, because its session is missing or was rejected by the API."""


class LoopWaits(LoopEvent, frozen=True):
    """The loop begins to wait. After the wait it tries the current iteration, or the step that failed, again."""

    setback: Setback
    setbacks: int
    """The number of consecutive failures of this kind."""
    wait_s: float
    until: datetime
    is_from_server: bool
    """True if the server asked for a wait of this length."""
    has_own_schedule: bool
    """True if the retry schedule in the loop's settings differs from that of `--retry patient`."""
    iteration: int | None
    """The number of the current iteration, or None between iterations."""
    session_id: str | None


class BranchChanged(LoopEvent, frozen=True):
    """An iteration switched the git branch. A branch is None if HEAD is detached."""

    iteration: int
    before: str | None
    after: str | None


class GitChanged(LoopEvent, frozen=True):
    """An iteration changed git settings or git hooks of the checkout."""

    iteration: int
    names: tuple[str, ...]


class Pushed(LoopEvent, frozen=True):
    commits: int


class IterationEnded(LoopEvent, frozen=True):
    """An iteration has ended and is recorded. It counts towards the loop's limit on iterations."""

    record: IterationRecord
    max_iterations: int | None


class IterationCutOff(LoopEvent, frozen=True):
    """An iteration ended in a way that also ends the loop, for example by a signal or because the API rejected the
    key. This iteration does not count towards the limit.
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
    """The last state of the loop, or None if the loop could not begin or an unexpected error ended it."""
