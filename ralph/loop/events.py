"""Events of a loop, as values. `loop/words.py` makes sentences of them; nothing here prints.

A sentence that has no event of its own is a `Notice`, a vital one where `--quiet` shall not hide it.
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
    """The check was run before the first iteration."""

    result: CheckResult


class IterationBegan(LoopEvent, frozen=True):
    number: int
    """Counted from 1, as in all events here."""
    max_iterations: int | None
    """The loop's limit; None: there is none."""
    session_id: str
    left_usd: float | None
    """The rest of the loop's budget; None: another limit comes first, or there is none."""
    left_s: float | None
    """The rest of the loop's time in seconds; None: another limit comes first, or there is none."""


class IterationResumed(LoopEvent, frozen=True):
    """The iteration that an earlier process of this loop began is resumed."""

    number: int
    max_iterations: int | None
    session_id: str
    is_anew: bool
    """The iteration begins again, because nothing of it was kept."""


class LoopWaits(LoopEvent, frozen=True):
    """A wait begins; after it the current iteration, or a step of the loop, is tried again."""

    setback: Setback
    setbacks: int
    """The number of setbacks of this kind in a row."""
    wait_s: float
    until: datetime
    is_from_server: bool
    """The server asked for this wait."""
    has_own_schedule: bool
    """The waits are not those of `--retry patient`."""
    iteration: int | None
    """The current iteration; None: there is none."""
    session_id: str | None


class BranchChanged(LoopEvent, frozen=True):
    """An iteration changed the git branch. None: on no branch."""

    iteration: int
    before: str | None
    after: str | None


class GitChanged(LoopEvent, frozen=True):
    """An iteration changed settings and hooks that git follows in the checkout."""

    iteration: int
    names: tuple[str, ...]


class Pushed(LoopEvent, frozen=True):
    commits: int


class IterationEnded(LoopEvent, frozen=True):
    """An iteration that counts is over, and recorded."""

    record: IterationRecord
    max_iterations: int | None


class IterationCutOff(LoopEvent, frozen=True):
    """The current iteration is over and the loop with it: it does not count."""

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
    """The state that was recorded last; None: nothing was begun."""
