"""The limits of a run: the number of turns, the time, and the budget. Also the time limits of one answer.

Before each request, ralph computes the highest possible cost of the request. It assumes that every token of the
prompt has the highest input price, and that the answer has the maximum length. If the rest of the budget is smaller
than this cost, ralph limits the length of the answer. If the budget cannot pay even for a short answer, the run ends.
`affordable_request` in `retry/step.py` makes this check.
"""

# There is no `from __future__ import annotations` here, because the definitions of settings are read from the
# annotations when the program runs.

import math
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace

from ralph.values.events import AttemptEnded, Event
from ralph.values.setting import DURATION, POSITIVE_DOLLARS, SMALLER, Flag, Key, at_least, lower_only
from ralph.values.usage import cost_usd, plain

if TYPE_CHECKING:
    from typing import Annotated

    from ralph.values.servers import ModelFacts, Price
else:
    from ralph.values.setting import Declared as Annotated

SHORTEST_ANSWER = 1024
"""The smallest `max_tokens` that ralph sets because of the budget or the context window. If the rest of the budget
cannot pay for such an answer, the run ends."""

MOST_REFUSALS = 6

_MILLION = 1_000_000


class LimitSettings(Struct, frozen=True):
    max_turns: Annotated[
        int | None,
        Key(
            at_least(1),
            "maximum number of turns in a task (exit 3); the last one is for a closing answer",
            Flag("--max-turns", "End after N turns; the last one is for a closing answer (exit 3).", "N"),
            in_repository=SMALLER,
        ),
    ] = None
    max_budget_usd: Annotated[
        float | None,
        Key(
            POSITIVE_DOLLARS,
            "maximum cost of a process in US dollars (exit 3); checked before each request, at its highest possible cost",
            Flag("--max-budget-usd", "Spend at most this much; checked before each request (exit 3).", "USD"),
            in_repository=SMALLER,
        ),
    ] = None
    max_time_s: Annotated[
        float | None,
        Key(
            DURATION,
            'time after which the run ends (exit 124); also as text: `"30m"`, `"1h30m"`',
            Flag("--max-time", "End the run after this time: 90s, 30m, 1h30m (exit 124).", "TIME"),
            in_repository=SMALLER,
        ),
    ] = None


class ClockLimits(Struct, frozen=True):
    """The time limits of one answer, in seconds. If a limit is 0, there is no such limit."""

    connect_s: Annotated[
        float,
        lower_only(
            "longest time for name lookup, TCP and TLS together; 0 switches it off, here and in the next five rows"
        ),
    ] = 10.0
    first_byte_s: Annotated[
        float, lower_only("longest time from the open connection to the answer's first byte")
    ] = 180.0
    bytes_idle_s: Annotated[float, lower_only("longest time between two reads of bytes; pings count")] = 90.0
    progress_idle_s: Annotated[
        float, lower_only("longest time between two events of an answer; pings do not count")
    ] = 300.0
    response_s: Annotated[float, lower_only("longest time for one answer, from beginning to end")] = 1800.0

    def for_whole_answer(self) -> Self:
        """The limits for an answer that comes in one piece at its end. Once the connection is open, only `response_s` counts."""
        return replace(self, first_byte_s=0.0, bytes_idle_s=0.0, progress_idle_s=0.0)


def budget_word(usd: float) -> str:
    """A budget as a word of a command line. `ralph run` refuses a budget of 0."""
    return f"{max(usd, 0.000001):.6f}"


class Budget:
    """The budget of a process. All requests are paid from it, including summaries and answers that broke off. As an
    `Events` sink, it adds up the costs.
    """

    def __init__(self, max_usd: float | None = None, *, spent_usd: float = 0.0) -> None:
        self.max_usd = max_usd
        self.spent_usd = spent_usd
        """The US dollars spent so far, computed from the tokens in `AttemptEnded` events."""

    def emit(self, event: "Event") -> None:
        if isinstance(event, AttemptEnded):
            self.spent_usd = plain(self.spent_usd + (cost_usd(event.facts, event.tokens) or 0.0))

    def longest_answer(self, facts: "ModelFacts | None", prompt_tokens: int, requested: int) -> int:
        """The maximum number of answer tokens that the rest of the budget can pay for, at most `requested`.

        Without a budget, it is `requested`. With a budget and an unknown price of the model, it is 0.
        """
        if self.max_usd is None:
            return requested
        price = facts.price_for(prompt_tokens) if facts is not None else None
        if price is None:
            return 0  # without a price, ralph cannot keep the cost within the budget
        left_millionths = (self.max_usd - self.spent_usd) * _MILLION - prompt_tokens * _dearest_input(price)
        if left_millionths < 0:
            return 0
        return (
            requested
            if requested * price.output <= left_millionths
            else math.floor(left_millionths / price.output)
        )

    def least_usd(self, facts: "ModelFacts | None", prompt_tokens: int) -> float:
        """The highest possible cost in US dollars of a request with the shortest answer that ralph allows. If less
        is left, ralph sends no request. 0 if the price of the model is unknown.
        """
        price = facts.price_for(prompt_tokens) if facts is not None else None
        if price is None:
            return 0.0
        return (prompt_tokens * _dearest_input(price) + SHORTEST_ANSWER * price.output) / _MILLION

    def is_nearly_spent(self, share: float, least_usd: float = 0.0) -> bool:
        """Whether at least `share` of the budget is spent, or the rest may not pay for two more requests.

        `least_usd` is the result of `Budget.least_usd` for the next request. False if there is no budget, or if
        nothing is spent yet.
        """
        if self.max_usd is None or not self.spent_usd:
            return False
        return self.spent_usd >= share * self.max_usd or self.max_usd - self.spent_usd < 2 * least_usd


def _dearest_input(price: "Price") -> float:
    return max(price.input, price.cache_write, price.cache_read)
