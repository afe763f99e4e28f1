"""Estimates the tokens of the next request, from a server's last count and the messages since. The estimate is meant to
be too high rather than too low. Pure.

There is no tokenizer: the size of messages that no server has counted is estimated from their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.values.tool_calls import Block

# Text and code have 3 to 4 bytes a token, JSON and figures 2 to 3: at 2 the estimate stays an upper one.
BYTES_PER_TOKEN = 2
IMAGE_TOKENS = 4_784
"""The most that an image of any size costs (section 1.3 of the Messages API reference, the newer models' cap)."""

# What is left holds an answer of the default length in 200,000 tokens, and the summary call at the end of a context.
THRESHOLD_PERCENT = 80


def tokens_of_bytes(count: int) -> int:
    return -(-count // BYTES_PER_TOKEN)


def content_size(content: Iterable[Block], sent_bytes: int) -> int:
    """Estimated tokens of blocks whose JSON has `sent_bytes`. An image counts `IMAGE_TOKENS`, not its data."""
    images = list(_images(content))
    return tokens_of_bytes(sent_bytes - sum(map(_data_bytes, images))) + IMAGE_TOKENS * len(images)


def threshold(window: int) -> int:
    """Tokens above which a context is compacted."""
    return window * THRESHOLD_PERCENT // 100


def is_over(estimate: int, window: int | None) -> bool:
    """Whether the context must be compacted. `window`: in tokens; None: unknown, so only the server can tell."""
    return window is not None and estimate > threshold(window)


class SizeCount(Struct, frozen=True):
    """A server's count of one request."""

    counted: int
    """Tokens of the request, and after its answer also hidden tokens of the answer (thinking that is not in its
    text)."""
    size: int
    """The estimated tokens of the same request."""

    def grown_to(self, size_now: int) -> int:
        return self.counted + max(0, size_now - self.size)

    def in_proportion(self, size: int) -> int:
        """The estimate for another request of similar text, corrected by this count. `size`: its uncorrected estimate."""
        return -(-size * self.counted // max(1, self.size))


class ContextMeter(Struct, frozen=True):
    """The last count for each model. Immutable. Sizes are those of the messages as that model receives them."""

    counts: Mapping[str, SizeCount] = field(default_factory=dict)
    """By model, in the order of counting, the newest last."""
    before: SizeCount | None = None
    """The last count of the previous context, for the ratio of tokens to bytes; None: there was none."""

    def counted(self, model: str, prompt_tokens: int, size_then: int) -> ContextMeter:
        """The meter after a server's count of a request. `prompt_tokens` of 0 means that the server does not count."""
        if prompt_tokens <= 0:
            return self
        others = {name: count for name, count in self.counts.items() if name != model}
        return ContextMeter({**others, model: SizeCount(prompt_tokens, size_then)}, self.before)

    def answered(self, model: str, output_tokens: int, answer_size: int) -> ContextMeter:
        """The meter after the answer to the request that was just counted. Hidden thinking in that answer shows only
        in `output_tokens`.
        """
        last = self.counts.get(model)
        hidden = output_tokens - answer_size
        if last is None or hidden <= 0:
            return self
        return ContextMeter({**self.counts, model: SizeCount(last.counted + hidden, last.size)}, self.before)

    def afresh(self) -> ContextMeter:
        """The meter of the next context: nothing counted yet, but the ratio of tokens to bytes is known."""
        return ContextMeter(before=self._newest or self.before)

    @property
    def _newest(self) -> SizeCount | None:
        return next(reversed(list(self.counts.values())), None)

    def at_most(self, model: str, size_now: int) -> int:
        """An upper bound of a request's tokens, for budgets. It comes from the bytes, unless this model's own count
        gives less.
        """
        own = self.counts.get(model)
        # Less than was counted is another context, of which nothing is known but its bytes.
        return own.grown_to(size_now) if own is not None and size_now >= own.size else size_now

    def estimate(self, model: str, size_now: int) -> int:
        """An estimate of a request's tokens. It assumes that messages without a count resemble the counted ones."""
        if model in self.counts:
            return self.at_most(model, size_now)
        if self._newest is not None:
            return min(size_now, _by_another_tokenizer(self._newest.grown_to(size_now)))
        return size_now if self.before is None else min(size_now, self.before.in_proportion(size_now))


def _by_another_tokenizer(tokens: int) -> int:
    """An estimate from another model's count, half as much again. Tokenizers differ by 30 % (section 1.6 of the
    reference), and unknown tokenizers perhaps by more.
    """
    return (3 * tokens + 1) // 2


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
