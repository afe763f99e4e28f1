"""Cuts tool results so that they fit into the context window. No I/O happens here. A result is cut before it is added
to the conversation, and never later. All numbers of bytes here are lengths of the JSON text in a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.conversation.context_size import BYTES_PER_TOKEN, content_size, tokens_of_bytes
from ralph.conversation.messages import text_blocks, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.values.answer import Block, ToolOutput

# A context this full is compacted before the next request. Results only have to leave room for that.
MOST_FILLED_PERCENT = 95
LEAST_BYTES = 2_000
"""The minimum number of bytes that are kept of a text that is cut. If a model got nothing of a result, it would
repeat the call."""

# `{"type":"tool_result","tool_use_id":...,"is_error":true}` with the API's ids of 30 characters, rounded up.
_ENVELOPE_TOKENS = 65
_AROUND_TEXT_TOKENS = 13
"""The number of tokens in `{"type":"text","text":""}`, the JSON around a text."""
_LEAST_TOKENS = LEAST_BYTES // BYTES_PER_TOKEN

CUT_NOTE = (
    "[... {left_out:,} of {total:,} bytes left out: the whole would not fit into the context. To see the rest, "
    "ask for less at a time: a narrower command or search, or offset and limit ...]"
)
LEFT_OUT = "[{kind} left out: it would not fit into the context]"


def room_for(estimate: int, window: int | None) -> int | None:
    """The number of tokens that the results of one answer's tool calls may have together. None if the context window
    is unknown.

    `estimate` is the number of tokens in the context with the answer and without the results. The results may fill
    the context up to 95 % of the window. They may exceed that limit only because each result keeps at least 2,000
    bytes.
    """
    return None if window is None else max(0, window * MOST_FILLED_PERCENT // 100 - estimate)


def all_fitted(outputs: Sequence[ToolOutput], room_tokens: int | None) -> tuple[ToolOutput, ...]:
    """The results of one answer's tool calls, cut to at most `room_tokens` together if possible.

    Small results are not cut. The large results share the remaining tokens, but each keeps at least 2,000 bytes of
    text. If `room_tokens` is None, nothing is cut.
    """
    if room_tokens is None:
        return tuple(outputs)
    shares = _shares([output_size(output) for output in outputs], room_tokens)
    return tuple(fitted(output, share) for output, share in zip(outputs, shares, strict=True))


def fitted(output: ToolOutput, room_tokens: int) -> ToolOutput:
    """The output, cut in the middle if it has more than `room_tokens`. At least 2,000 bytes of its text are kept."""
    if output_size(output) <= room_tokens:
        return output
    room_tokens -= _ENVELOPE_TOKENS
    content = output.content
    if isinstance(content, str):
        cut: str | tuple[Block, ...] = _cut_to(content, room_tokens)
    else:
        cut = _fitted_blocks(content, room_tokens)
    return output if cut == content else replace(output, content=cut)


def output_size(output: ToolOutput) -> int:
    """The estimated number of tokens of a tool result."""
    content = output.content
    if isinstance(content, str):
        return _ENVELOPE_TOKENS + tokens_of_bytes(sent_bytes(content))
    return _ENVELOPE_TOKENS + sum(map(_block_size, content))


def sent_bytes(text: str) -> int:
    """The number of bytes that a text has in a request, without the quotes around it. The number for a joined text is
    the sum of the numbers for its parts.
    """
    return len(to_json(text)) - 2


def cut_in_middle(text: str, most_bytes: int, note: str) -> str:
    """The text itself if it has at most `most_bytes`. Otherwise its beginning and its end, with `note` between them.

    The text is cut at line breaks, unless a line is too long. In `note`, {left_out} is replaced by the number of
    bytes that are left out, and {total} by the number of bytes of the text. If the note alone needs all of the bytes,
    only the note is returned.
    """
    if sent_bytes(text) <= most_bytes:
        return text
    total = len(text.encode("utf-8", "replace"))
    longest_note = sent_bytes(f"\n{note.format(left_out=total, total=total)}\n")
    half = (most_bytes - longest_note) // 2
    head, tail = _head(text, half), _tail(text, half)
    left_out = total - len((head + tail).encode("utf-8", "replace"))
    parts = (head.removesuffix("\n"), note.format(left_out=left_out, total=total), tail)
    return "\n".join(part for part in parts if part)


def _cut_to(text: str, room_tokens: int) -> str:
    return cut_in_middle(text, max(LEAST_BYTES, room_tokens * BYTES_PER_TOKEN), CUT_NOTE)


def _fitted_blocks(blocks: Sequence[Block], room_tokens: int) -> tuple[Block, ...]:
    """The blocks, cut to at most `room_tokens` together if possible."""
    has_text = any(map(_is_text, blocks))
    left = room_tokens - (_LEAST_TOKENS if has_text else 0)
    kept: list[Block] = []
    for block in blocks:
        size = 0 if _is_text(block) else _block_size(block)
        fits = size <= left or _is_text(block)
        kept.append(block if fits else _text(LEFT_OUT.format(kind=block.get("type", "something"))))
        left -= size if fits else 0
    return tuple(_with_texts_within(kept, left + (_LEAST_TOKENS if has_text else 0)))


def _with_texts_within(blocks: Sequence[Block], room_tokens: int) -> Iterable[Block]:
    if sum(_block_size(block) for block in blocks if _is_text(block)) <= max(room_tokens, _LEAST_TOKENS):
        return blocks
    merged = _merged(blocks)  # otherwise each of many small texts would get the minimum
    shares = _shares([_block_size(block) if _is_text(block) else 0 for block in merged], room_tokens)
    return (
        _text(_cut_to(block["text"], share - _AROUND_TEXT_TOKENS)) if _is_text(block) else block
        for block, share in zip(merged, shares, strict=True)
    )


def _merged(blocks: Iterable[Block]) -> list[Block]:
    merged: list[Block] = []
    for block in blocks:
        if merged and _is_text(block) and _is_text(merged[-1]):
            merged[-1] = _text(f"{merged[-1]['text']}\n{block['text']}")
        else:
            merged.append(block)
    return merged


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    """Divides `room` among items of these sizes."""
    shares = [0] * len(sizes)
    for place, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[index] = min(sizes[index], max(0, room) // (len(sizes) - place))
        room -= shares[index]
    return shares


def _head(text: str, most_bytes: int) -> str:
    head = text[: _longest(text, most_bytes)]
    newline = head.rfind("\n")
    return head[: newline + 1] if newline >= len(head) // 2 else head


def _tail(text: str, most_bytes: int) -> str:
    length = _longest(text[: -max(0, most_bytes) - 1 : -1], most_bytes)
    tail = text[len(text) - length :]
    newline = tail.find("\n", 0, len(tail) // 2)
    return tail[newline + 1 :]


def _longest(text: str, most_bytes: int) -> int:
    """The length in characters of the longest beginning of `text` that has at most `most_bytes` in a request."""
    low, high = 0, min(len(text), max(0, most_bytes))
    while low < high:
        middle = (low + high + 1) // 2
        if sent_bytes(text[:middle]) <= most_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _is_text(block: Block) -> bool:
    return block.get("type") == "text"


def _text(text: str) -> Block:
    [block] = text_blocks(text)
    return block


def _block_size(block: Block) -> int:
    return content_size([block], len(to_json(block)))
