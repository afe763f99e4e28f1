"""Decides when a task enters its final turn. Also decides the outcome of a task that a limit or a failed report ends.
No I/O happens here. In the final turn, the model may only give its closing answer or its report.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.events import TurnsCollapsed
from ralph.values.outcome import Outcome
from ralph.values.screen_text import counted, dollar_limit, time_limit

if TYPE_CHECKING:
    from ralph.values.limits import Budget

FORCES = ("max_turns", "context", "report")
"""The possible reasons for a final turn: the turn limit, a full context that cannot be compacted, or a report that
failed or is missing."""

NEAR = 0.9
"""When this share of a limit is used, the limit is nearly used up. Ralph then tells the model once to save its work."""
FEWEST_TURNS_TO_WARN = 3
"""The smallest turn limit for which the model is told that the limit is near."""


class ForcedEnd(Struct, frozen=True):
    """The end of a task that ralph stops because of a limit, or because the report failed or is missing."""

    outcome: Outcome
    limit: str | None
    """The user's limit that ended the run, or None if no such limit ended it."""
    error: str


class Finishing:
    """Applies the turn limit of one task, and stores whether the final turn has begun."""

    def __init__(self, max_turns: int | None = None, *, reason: str | None = None) -> None:
        self.max_turns = max_turns
        self.reason = reason
        """The reason why the current turn is the final one, one of `FORCES`. None if it is not the final turn."""
        self._given_max_turns = max_turns
        self._is_collapsed = False
        self._was_warned = False

    @property
    def is_final(self) -> bool:
        return self.reason is not None

    def is_over(self, turn: int) -> bool:
        return self.max_turns is not None and turn > self.max_turns

    def makes_final(self, turn: int, *, follows_tools: bool, needs_report: bool = False) -> str | None:
        """Decides whether turn `turn`, which begins now, must be the final one. Returns the reason, or None for an
        ordinary turn.

        `follows_tools` is True if the last message contains the results of tool calls. If it is False and no report
        is needed, even the last turn within the limit is an ordinary turn, because its answer may complete the task.
        """
        is_last = self.max_turns is not None and turn >= self.max_turns
        if self.is_final or not is_last or not (follows_tools or needs_report):
            return None
        return "report" if self._is_collapsed else "max_turns"

    def collapse(self, turn: int, reason: str) -> TurnsCollapsed | None:
        """Lowers the turn limit after a failed or missing report, so that only one more turn is left. Returns the
        event that reports this change. Returns None and changes nothing if at most one more turn was left.
        """
        new = turn + 1
        old = self.max_turns
        if old is not None and old <= new:
            return None
        self.max_turns, self._is_collapsed = new, True
        return TurnsCollapsed(turn, reason, old, new)

    def forced_end(self, reason: str | None = None) -> ForcedEnd:
        """The end of a task that ralph stops because of a limit, or because the report failed or is missing. `reason`
        is one of `FORCES`. It may be None in the final turn, or if the turn limit ends the task.
        """
        reason = self.reason or reason
        if reason == "context":
            return ForcedEnd(Outcome.LIMIT_REACHED, "context", "the model's context window is full")
        if reason == "report" or self._is_collapsed:
            return ForcedEnd(Outcome.TASK_FAILED, None, "the model gave no final report that fits")
        reached = f"the limit of {counted(self._given_max_turns or 0, 'turn')} (--max-turns) is reached"
        return ForcedEnd(Outcome.LIMIT_REACHED, "max_turns", reached)

    def newly_near(
        self,
        turn: int,
        budget: Budget,
        time_left_s: float,
        max_time_s: float | None,
        least_usd: float = 0.0,
    ) -> str | None:
        """The name of a limit that is nearly used up when turn `turn` begins.

        Returns None if no limit is nearly used up, or if this method has returned a name before. `least_usd` is the
        result of `Budget.least_usd` for the next request.
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
        # This notice must come before the final turn, which has its own notice.
        if most >= FEWEST_TURNS_TO_WARN and turn >= min(math.ceil(NEAR * most), most - 1):
            return f"the limit of {counted(most, 'turn')}"
        if budget.is_nearly_spent(NEAR, least_usd):
            return f"the budget of {dollar_limit(budget.max_usd or 0.0)}"
        if max_time_s is not None and max_time_s - time_left_s >= NEAR * max_time_s:
            return f"the time limit of {time_limit(max_time_s)}"
        return None
