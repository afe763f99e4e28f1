"""Estimates the tokens of the next request: the server's last count, and for what it has not counted, rather too many
by the bytes, because ralph has no tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.values.answer import Block

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
