"""Adds up tokens and costs for each model. If a cost is unknown, it is None and never 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ralph.values.servers.models import ModelFacts


# No answer has this many tokens. A larger number is a mistake, and arithmetic with very large integers raises errors.
_NONSENSE = 10**12


class TokenUsage(Struct, frozen=True):
    """The token counts of one answer, or the sums of several answers. `input` is the number of tokens that were
    neither written to the cache nor read from it, as in the API.
    """

    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    """The number of tokens in `cache_write` that are billed at the price of the 1-hour cache."""
    cache_read: int = 0

    @property
    def prompt(self) -> int:
        return self.input + self.cache_write + self.cache_read

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input + other.input,
            self.output + other.output,
            self.cache_write + other.cache_write,
            self.cache_write_1h + other.cache_write_1h,
            self.cache_read + other.cache_read,
        )


class ModelUsage(Struct, frozen=True):
    tokens: TokenUsage
    cost_usd: float | None
    facts: ModelFacts | None = None
    """The facts that were known about the model when tokens were last added. None if the model was unknown."""


class RunUsage(Struct, frozen=True):
    """The usage of a run, by model id. It is immutable: `plus` returns a new object."""

    by_model: Mapping[str, ModelUsage] = field(default_factory=dict)

    def plus(self, model: str, tokens: TokenUsage, facts: ModelFacts | None) -> RunUsage:
        """The usage with `tokens` added to the tokens of `model`. `facts` are the known facts about the model."""
        before = self.by_model.get(model, ModelUsage(TokenUsage(), 0.0))
        total = total_usd((before.cost_usd, cost_usd(facts, tokens)))
        return RunUsage({**self.by_model, model: ModelUsage(before.tokens + tokens, total, facts)})

    @property
    def tokens(self) -> TokenUsage:
        return sum((usage.tokens for usage in self.by_model.values()), TokenUsage())

    @property
    def cost_usd(self) -> float | None:
        """The cost of all models in USD, or None if the cost of one of the models is unknown."""
        return total_usd(usage.cost_usd for usage in self.by_model.values())


def with_later_usage(known: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The `usage` object of an answer after the server has sent another one for it. Counts are totals, so a later
    one replaces the known one. But a 0, a null or a value that is not a count replaces no count: some servers send
    0 in fields that they do not fill.
    """
    merged = dict(known)
    for name, value in later.items():
        before = merged.get(name)
        if isinstance(before, dict):
            if isinstance(value, dict):
                merged[name] = with_later_usage(before, value)
        elif value is not None and (_count(later, name) or not _count(known, name)):
            merged[name] = value
    return merged


def tokens_of(usage: Mapping[str, Any]) -> TokenUsage:
    """Reads the API's `usage` object. If a count is missing, null or invalid, it becomes 0."""
    detail = usage.get("cache_creation")
    detail = detail if isinstance(detail, dict) else {}
    written_1h = _count(detail, "ephemeral_1h_input_tokens")
    written = written_1h + _count(detail, "ephemeral_5m_input_tokens")
    return TokenUsage(
        input=_count(usage, "input_tokens"),
        output=_count(usage, "output_tokens"),
        cache_write=max(_count(usage, "cache_creation_input_tokens"), written),
        cache_write_1h=written_1h,
        cache_read=_count(usage, "cache_read_input_tokens"),
    )


def cost_usd(facts: ModelFacts | None, tokens: TokenUsage) -> float | None:
    """The cost of one answer in USD, or None if the price is unknown. An answer without tokens costs 0 in any case."""
    if tokens == TokenUsage():
        return 0.0
    price = facts.price_for(tokens.prompt) if facts else None
    if price is None:
        return None
    millionths = (
        tokens.input * price.input
        + tokens.output * price.output
        + (tokens.cache_write - tokens.cache_write_1h) * price.cache_write
        + tokens.cache_write_1h * price.cache_write_1h
        + tokens.cache_read * price.cache_read
    )
    return plain(millionths / 1e6)


def total_usd(costs: Iterable[float | None]) -> float | None:
    """The sum of costs in USD, or None if one of them is unknown."""
    total: float = 0
    for cost in costs:
        if cost is None:
            return None
        total += cost
    return plain(total)


def plain(number: float) -> float:
    """The number to a billionth, without what floats add in sums: 0.15, not 0.15000000000000002."""
    return round(number, 9)


def counted_or_estimated(usage: Mapping[str, Any], prompt_tokens: int, answer_tokens: int) -> TokenUsage:
    """The tokens of a complete answer, as the server counted them in its `usage` object. If the count for the
    prompt is missing, `prompt_tokens` replaces it. If that for the answer is missing, `answer_tokens` does. Both
    are the caller's estimates.
    """
    counted = tokens_of(usage)
    if not counted.prompt:
        counted = replace(counted, input=prompt_tokens)
    return counted if counted.output else replace(counted, output=answer_tokens)


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _NONSENSE else 0
