"""Decides how a run ends: its last turns, its final turn, and the outcome of a forced end. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ralph.values.events import TurnsCollapsed
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from ralph.values.limits import Budget

FORCES = ("max_turns", "context", "report")
"""Why a turn is the final one: the turn limit, a full context that cannot be compacted, or failed reports."""

NEAR = 0.9
"""The share of a limit after which the model is told, once, to save its work."""
FEWEST_TURNS_TO_WARN = 3


class ForcedEnd(NamedTuple):
    outcome: Outcome
    limit: str | None
    """The user's limit that ended the run; None: no limit ended it."""
    error: str


class Finishing:
    """The turns and limits of one task."""

    def __init__(self, max_turns: int | None = None, *, reason: str | None = None) -> None:
        self.max_turns = max_turns
        self.reason = reason
        """Why the current turn is the final one, one of `FORCES`; None: it is not the final one."""
        self._given_max_turns = max_turns
        self._is_collapsed = False
        self._was_warned = False

    @property
    def is_final(self) -> bool:
        return self.reason is not None

    def is_over(self, turn: int) -> bool:
        return self.max_turns is not None and turn > self.max_turns

    def makes_final(self, turn: int, *, follows_tools: bool, needs_report: bool = False) -> str | None:
        """Why the turn that now begins is the final one; None: it is not.

        A last turn that neither follows tools nor needs a report is not made final, because its answer may complete the
        task.
        """
        is_last = self.max_turns is not None and turn >= self.max_turns
        if self.is_final or not is_last or not (follows_tools or needs_report):
            return None
        return "report" if self._is_collapsed else "max_turns"

    def collapse(self, turn: int, reason: str) -> TurnsCollapsed | None:
        """Shortens the run to one more turn, after a failed report. Returns the event of that; None: the run had no
        more turns anyway.
        """
        new = turn + 1
        old = self.max_turns
        if old is not None and old <= new:
            return None
        self.max_turns, self._is_collapsed = new, True
        return TurnsCollapsed(turn, reason, old, new)

    def forced_end(self, reason: str | None = None) -> ForcedEnd:
        """The end of a run whose final turn gave no report, or whose turns are used up.

        `reason`: one of `FORCES`; given if no final turn began and something other than the turn limit forces the end.
        """
        reason = self.reason or reason
        if reason == "context":
            return ForcedEnd(Outcome.LIMIT_REACHED, "context", "the model's context window is full")
        if reason == "report" or self._is_collapsed:
            return ForcedEnd(Outcome.TASK_FAILED, None, "the model gave no final report that fits")
        reached = f"the limit of {turns_in_words(self._given_max_turns)} (--max-turns) is reached"
        return ForcedEnd(Outcome.LIMIT_REACHED, "max_turns", reached)

    def newly_near(
        self,
        turn: int,
        budget: Budget,
        time_left_s: float,
        max_time_s: float | None,
        least_usd: float = 0.0,
    ) -> str | None:
        """The limit that is nearly used up as this turn begins; None: none, or it was reported before.

        `least_usd`: the highest price of another request.
        """
        if self._was_warned or self.is_final:
            return None
        near = self._near(turn, budget, time_left_s, max_time_s, least_usd)
        self._was_warned = near is not None
        return near

    def _near(
        self,
        turn: int,
        budget: Budget,
        time_left_s: float,
        max_time_s: float | None,
        least_usd: float = 0.0,
    ) -> str | None:
        most = self.max_turns or 0
        # The final turn has a notice of its own: this one has to come before it.
        if most >= FEWEST_TURNS_TO_WARN and turn >= min(math.ceil(NEAR * most), most - 1):
            return f"the limit of {turns_in_words(most)}"
        if budget.is_nearly_spent(NEAR, least_usd):
            return f"the budget of ${budget.max_usd:g}"
        if max_time_s is not None and max_time_s - time_left_s >= NEAR * max_time_s:
            return f"the time limit of {max_time_s:g} s"
        return None


def turns_in_words(number: int | None) -> str:
    return "1 turn" if number == 1 else f"{number} turns"
