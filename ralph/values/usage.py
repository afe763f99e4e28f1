"""Adds up tokens and costs for each model. If a cost is unknown, it is None and never 0.

Also estimates the tokens of the next request: the server's last count, and for what it has not counted, rather too many by
the bytes, because ralph has no tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.values.answer import Block
    from ralph.values.servers import ModelFacts


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


# --- The size of a context

# Text and code have 3 to 4 bytes per token, JSON and numbers have 2 to 3. With 2, estimates are rather too high than
# too low.
BYTES_PER_TOKEN = 2
MOST_BYTES_PER_TOKEN = 16
"""The most bytes per token that a request can have: prose has 4 to 5, runs of blanks or dashes more. A server that
reports fewer tokens does not count them: some gateways always say 100."""
IMAGE_TOKENS = 4_784
"""The maximum number of tokens of an image (section 1.3 of the Messages API reference, limit of the newer models)."""

# The remaining 20 % of a window of 200,000 tokens is enough for an answer of the default length, and for a summary.
THRESHOLD_PERCENT = 80


def tokens_of_bytes(count: int) -> int:
    return -(-count // BYTES_PER_TOKEN)


def content_size(content: Iterable[Block], sent_bytes: int) -> int:
    """The estimated tokens of content blocks whose JSON has `sent_bytes` bytes. An image counts as `IMAGE_TOKENS`,
    without its data.
    """
    images = list(_images(content))
    return tokens_of_bytes(sent_bytes - sum(map(_data_bytes, images))) + IMAGE_TOKENS * len(images)


def threshold(window: int) -> int:
    """The tokens up to which a context need not be compacted. `window` is in tokens."""
    return window * THRESHOLD_PERCENT // 100


def is_over(estimate: int, window: int | None) -> bool:
    """Whether a context of `estimate` tokens must be compacted. False if the window is unknown."""
    return window is not None and estimate > threshold(window)


GROWTH = 1.5
GUESSED_PERCENT = 60
GUESSED_TOKENS = 100_000
"""A request refused in unknown words may be too large if it is more than `GROWTH` times the last answered one, and
fills more than `GUESSED_PERCENT` of the window, or of an unknown one more than `GUESSED_TOKENS`, by its bytes."""


def may_be_too_large(size: int, answered: int | None, estimate: int, window: int | None) -> bool:
    """Whether the size may be why a server refused a request in unknown words. `size` and `answered`, that of the last
    answered request or None, are estimated from bytes. `estimate` is the best estimate of the request's tokens.
    """
    if answered is None or size <= GROWTH * answered:
        return False
    return size > GUESSED_TOKENS if window is None else estimate * 100 > window * GUESSED_PERCENT


class SizeCount(Struct, frozen=True):
    """A server's token count of one request, and ralph's estimate of the same request."""

    counted: int
    """The tokens that the server counted, with those of the answer's hidden thinking once it has arrived."""
    size: int
    """The tokens that ralph estimates from the bytes of the request."""

    def grown_to(self, size_now: int) -> int:
        """The estimated tokens of this request with more messages. `size_now` is that request's estimate from bytes."""
        return self.counted + max(0, size_now - self.size)

    def in_proportion(self, size: int) -> int:
        """The tokens of another request, rounded up, if its estimate from bytes, `size`, is as wrong as this one's."""
        return -(-size * self.counted // max(1, self.size))


class ContextMeter(Struct, frozen=True):
    """The servers' last token counts. Immutable. Sizes are ralph's estimates from the bytes that the model receives."""

    counts: Mapping[str, SizeCount] = field(default_factory=dict)
    """By model, the newest last."""
    before: SizeCount | None = None
    """The last count in the previous context, which shows how wrong estimates from bytes are."""

    def counted(self, model: str, prompt_tokens: int, size_then: int) -> ContextMeter:
        """The meter with `prompt_tokens`, a server's count of the request that ralph estimated as `size_then`.
        Unchanged if the count is 0 or far below what the bytes allow: such a server does not count.
        """
        if prompt_tokens * MOST_BYTES_PER_TOKEN < size_then * BYTES_PER_TOKEN or prompt_tokens <= 0:
            return self
        others = {name: count for name, count in self.counts.items() if name != model}
        return ContextMeter({**others, model: SizeCount(prompt_tokens, size_then)}, self.before)

    def answered(self, model: str, output_tokens: int, answer_size: int) -> ContextMeter:
        """The meter after the answer to the request of the last `counted`. What `output_tokens` has more than
        `answer_size`, ralph's estimate, is hidden thinking, which later requests contain too.
        """
        last = self.counts.get(model)
        hidden = output_tokens - answer_size
        if last is None or hidden <= 0:
            return self
        return ContextMeter({**self.counts, model: SizeCount(last.counted + hidden, last.size)}, self.before)

    def afresh(self) -> ContextMeter:
        return ContextMeter(before=self._newest or self.before)

    @property
    def _newest(self) -> SizeCount | None:
        return next(reversed(list(self.counts.values())), None)

    def at_most(self, model: str, size_now: int) -> int:
        """An upper bound, for budgets, on the tokens of a request to `model` with the estimate `size_now`: the model's
        last count plus the estimate of what came since, or `size_now` if this context has no count for it.
        """
        own = self.counts.get(model)
        # If the size is below the counted one, this is another context, and only its bytes are known.
        return own.grown_to(size_now) if own is not None and size_now >= own.size else size_now

    def estimate(self, model: str, size_now: int) -> int:
        """The estimated tokens of a request to `model`: as `at_most` if this context has a count for it. Otherwise
        derived from a count for another model or of the previous context, and at most `size_now`.
        """
        if model in self.counts:
            return self.at_most(model, size_now)
        if self._newest is not None:
            # Tokenizers differ by 30 % (section 1.6 of the Messages API reference), those of unknown models perhaps more.
            return min(size_now, -(-3 * self._newest.grown_to(size_now) // 2))
        return size_now if self.before is None else min(size_now, self.before.in_proportion(size_now))


def _images(content: Iterable[Block]) -> Iterator[Block]:
    for block in content:
        inside = block.get("content")
        if block.get("type") == "image":
            yield block
        elif block.get("type") == "tool_result" and isinstance(inside, list):
            yield from _images(inside)


def _data_bytes(image: Block) -> int:
    source = image.get("source")
    data = source.get("data") if isinstance(source, dict) else None
    return len(data) if isinstance(data, str) else 0
