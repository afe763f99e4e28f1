"""Estimates the number of tokens of the next request. No I/O happens here.

The estimate is the server's last token count, plus an estimate for the messages since then. Ralph has no tokenizer.
If no server has counted a message, ralph estimates its tokens from its bytes. The result is usually too high.
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
"""No request has more bytes per token than this. Prose has 4 to 5, and long runs of blanks or dashes have more. A server
that counts fewer tokens does not count the request: some gateways always say 100."""
IMAGE_TOKENS = 4_784
"""The maximum number of tokens of an image (section 1.3 of the Messages API reference, limit of the newer models)."""

# The remaining 20 % of a window of 200,000 tokens is enough for an answer of the default length, and for a summary.
THRESHOLD_PERCENT = 80


def tokens_of_bytes(count: int) -> int:
    return -(-count // BYTES_PER_TOKEN)


def content_size(content: Iterable[Block], sent_bytes: int) -> int:
    """An estimate of the tokens of some content blocks. `sent_bytes` is the length of their JSON in bytes. Each image
    is estimated as `IMAGE_TOKENS`, and the bytes of its data are ignored.
    """
    images = list(_images(content))
    return tokens_of_bytes(sent_bytes - sum(map(_data_bytes, images))) + IMAGE_TOKENS * len(images)


def threshold(window: int) -> int:
    """The maximum number of tokens of a context. A larger context is compacted. `window` is the context window in
    tokens.
    """
    return window * THRESHOLD_PERCENT // 100


def is_over(estimate: int, window: int | None) -> bool:
    """Whether a context of `estimate` tokens must be compacted.

    `window` is the context window in tokens. If it is None, the window is unknown and the result is False.
    """
    return window is not None and estimate > threshold(window)


GROWTH = 1.5
GUESSED_PERCENT = 60
GUESSED_TOKENS = 100_000
"""A request that the server refuses in unknown words may be too large for it if it has more than `GROWTH` times the size
of the last request that was answered, and fills more than `GUESSED_PERCENT` of the window. If the window is unknown, it
must have more than `GUESSED_TOKENS`, estimated from its bytes."""


def may_be_too_large(size: int, answered: int | None, estimate: int, window: int | None) -> bool:
    """Whether the size of a request may be the reason why a server refused it in words that ralph does not know.

    `size` is the estimate of the request from its bytes, and `answered` that of the last request that was answered.
    None if the context has no answer yet. `estimate` is the best estimate of the request's tokens.
    """
    if answered is None or size <= GROWTH * answered:
        return False
    return size > GUESSED_TOKENS if window is None else estimate * 100 > window * GUESSED_PERCENT


class SizeCount(Struct, frozen=True):
    """A server's token count of one request, and ralph's estimate of the same request."""

    counted: int
    """The tokens that the server counted. When the answer has arrived, the tokens of its hidden thinking are added."""
    size: int
    """The tokens that ralph estimated from the bytes of the request."""

    def grown_to(self, size_now: int) -> int:
        """An estimate of the tokens of a later request, which consists of this request and more messages. `size_now`
        is the estimate of the later request from its bytes.
        """
        return self.counted + max(0, size_now - self.size)

    def in_proportion(self, size: int) -> int:
        """An estimate of the tokens of another request, rounded up. `size` is the estimate of that request from its
        bytes. The result assumes that `size` is wrong by the same factor as the estimate of this request.
        """
        return -(-size * self.counted // max(1, self.size))


class ContextMeter(Struct, frozen=True):
    """The servers' last token count for each model. It is immutable: its methods return a new meter. All sizes are
    estimates from the bytes of the messages that the model receives.
    """

    counts: Mapping[str, SizeCount] = field(default_factory=dict)
    """The last count for each model, by model. The model that was counted last comes last."""
    before: SizeCount | None = None
    """The last count in the previous context, or None if there is none. It shows how wrong estimates from bytes are."""

    def counted(self, model: str, prompt_tokens: int, size_then: int) -> ContextMeter:
        """The meter with one more token count of a server. `prompt_tokens` is the count of a request, and `size_then`
        is ralph's estimate of the same request.

        If `prompt_tokens` is 0 or far below what the bytes allow, the server does not count tokens, and the meter is
        returned unchanged.
        """
        if prompt_tokens * MOST_BYTES_PER_TOKEN < size_then * BYTES_PER_TOKEN or prompt_tokens <= 0:
            return self
        others = {name: count for name, count in self.counts.items() if name != model}
        return ContextMeter({**others, model: SizeCount(prompt_tokens, size_then)}, self.before)

    def answered(self, model: str, output_tokens: int, answer_size: int) -> ContextMeter:
        """The meter after an answer. This method must be called after `counted` was called for the request.

        `output_tokens` is the server's count of the answer, and `answer_size` is ralph's estimate of the answer's
        content. If the count is higher, the difference is hidden thinking, and is added to the stored count.
        """
        last = self.counts.get(model)
        hidden = output_tokens - answer_size
        if last is None or hidden <= 0:
            return self
        return ContextMeter({**self.counts, model: SizeCount(last.counted + hidden, last.size)}, self.before)

    def afresh(self) -> ContextMeter:
        """The meter for the next context. Its `counts` are empty, and its `before` is the newest count of this meter."""
        return ContextMeter(before=self._newest or self.before)

    @property
    def _newest(self) -> SizeCount | None:
        return next(reversed(list(self.counts.values())), None)

    def at_most(self, model: str, size_now: int) -> int:
        """An upper bound on the tokens of a request to `model`. Budgets need it.

        `size_now` is the estimate of the request from its bytes. The result is the model's last token count, plus the
        estimate of the messages since then. If this context has no count for the model, the result is `size_now`.
        """
        own = self.counts.get(model)
        # If the size is below the counted one, this is another context, and only its bytes are known.
        return own.grown_to(size_now) if own is not None and size_now >= own.size else size_now

    def estimate(self, model: str, size_now: int) -> int:
        """An estimate of the tokens of a request to `model`. `size_now` is the estimate of the request from its
        bytes.

        If this context has a count for the model, the result is based on that count. Otherwise it is based on a count
        for another model or in the previous context, and is at most `size_now`.
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
