"""The limits of a run, and its budget, which is checked against the highest possible cost of each request.

The highest cost: every token of the prompt at the highest input price, and an answer of the greatest length.
"""

# No `from __future__ import annotations` here: the rows of settings are read from the annotations.

import math
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from ralph.values.events import AttemptEnded
from ralph.values.setting import DURATION, POSITIVE_DOLLARS, SMALLER, Flag, Key, at_least
from ralph.values.usage import cost_usd

if TYPE_CHECKING:
    from ralph.values.events import Event
    from ralph.values.models import ModelFacts, Price

SHORTEST_ANSWER = 1024
"""The fewest tokens that an answer must be allowed. If the budget cannot pay for them, the run ends instead."""

MOST_REFUSALS = 6
"""The most refusals in a row by guards: the last one ends the run."""

_MILLION = 1_000_000


class LimitSettings(Struct, frozen=True):
    max_turns: Annotated[
        int | None,
        Key(
            at_least(1),
            "most turns of one task (exit 3); the last one is for a closing answer",
            Flag("--max-turns", "End after N turns; the last one is for a closing answer (exit 3).", "N"),
            in_repository=SMALLER,
        ),
    ] = None
    """Most turns of one task (exit 3); None: no limit."""
    max_budget_usd: Annotated[
        float | None,
        Key(
            POSITIVE_DOLLARS,
            "most US dollars that one process may spend (exit 3); checked before each request, at its highest possible cost",
            Flag("--max-budget-usd", "Never spend more; checked before each request (exit 3).", "USD"),
            in_repository=SMALLER,
        ),
    ] = None
    """Most US dollars that the process may spend (exit 3); None: no limit."""
    max_time_s: Annotated[
        float | None,
        Key(
            DURATION,
            'time after which the run ends (exit 124); also as text: `"30m"`, `"1h30m"`',
            Flag("--max-time", "End the run after this time: 90s, 30m, 1h30m (exit 124).", "TIME"),
            in_repository=SMALLER,
        ),
    ] = None
    """Seconds from the start of the process after which the run ends (exit 124); None: no limit."""


class Budget:
    """The budget of a process for all its requests, summaries and broken answers included."""

    def __init__(self, max_usd: float | None = None, *, spent_usd: float = 0.0) -> None:
        self.max_usd = max_usd
        """The budget in US dollars; None: no limit."""
        self.spent_usd = spent_usd
        """Dollars spent so far, by the servers' counts."""

    def emit(self, event: "Event") -> None:
        if isinstance(event, AttemptEnded):
            self.spent_usd += cost_usd(event.facts, event.tokens) or 0.0

    def longest_answer(self, facts: "ModelFacts | None", prompt_tokens: int, requested: int) -> int:
        """The most answer tokens, up to `requested`, that the budget can still pay for.

        0: the budget cannot pay for any, or the model has no known price.
        """
        if self.max_usd is None:
            return requested
        price = facts.price_for(prompt_tokens) if facts is not None else None
        if price is None:
            return 0  # what cannot be counted cannot be kept within a budget
        left_millionths = (self.max_usd - self.spent_usd) * _MILLION - prompt_tokens * _dearest_input(price)
        if left_millionths < 0:
            return 0
        return (
            requested
            if requested * price.output <= left_millionths
            else math.floor(left_millionths / price.output)
        )

    def least_usd(self, facts: "ModelFacts | None", prompt_tokens: int) -> float:
        """The US dollars that must be left before a request is made; 0: the model has no known price."""
        price = facts.price_for(prompt_tokens) if facts is not None else None
        if price is None:
            return 0.0
        return (prompt_tokens * _dearest_input(price) + SHORTEST_ANSWER * price.output) / _MILLION

    def is_nearly_spent(self, share: float, least_usd: float = 0.0) -> bool:
        """True if that share is spent, or if the next request, which may cost `least_usd`, may be the last."""
        if self.max_usd is None or not self.spent_usd:
            return False
        return self.spent_usd >= share * self.max_usd or self.max_usd - self.spent_usd < 2 * least_usd


def _dearest_input(price: "Price") -> float:
    """The highest price of an input token in ralph's requests. They never ask for the 1-hour cache, so its price does
    not count.
    """
    return max(price.input, price.cache_write, price.cache_read)
