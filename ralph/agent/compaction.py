"""Keeps a conversation within the context window: cuts tool results, and decides in which ways to compact a full
context and what the new one begins with.

The prompts and the names of changed files come from the session's state, so no compaction changes them. Of the rest,
the new context has a summary by the model, or the last steps as plain text. Thinking is left out: its signature holds
only behind the old messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.messages import Message, text_blocks, to_json, user_message
from ralph.values.usage import BYTES_PER_TOKEN, content_size, is_over, tokens_of_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.values.answer import Answer, Block, ToolOutput

Trigger = Literal["threshold", "overflow", "window_exceeded"]

MOST_SUMMARY_WORDS = 2_000
MOST_SUMMARY_TOKENS = 16_000
"""The `max_tokens` of a request for a summary. 2,000 words are about 4,000 tokens; the rest is for thinking."""

SUMMARIZE = f"""\
The context is nearly full. Another agent will go on with this work, and it will see the task, the list of changed \
files and your summary, and nothing else of this conversation. Write that summary now, as plain text, in at most \
{MOST_SUMMARY_WORDS:,} words. Call no tools: calls are not run. Do not go on with the task itself.

Say, under these headings:

1. Goal and constraints: what the user wants, and every wish, limit and correction heard from the user.
2. Decisions: what was decided, and why.
3. Done: what was done, with the files, the commands and those of their results that still matter.
4. Failed: what was tried and did not work, and why, so that it is not tried again.
5. State: what works now, what does not, what is half done. Exact names, paths, numbers and error messages.
6. Next steps: exactly what to do next, in order.

Write down only what this conversation shows. What you are not sure of, call unsure."""

OPENING = (
    "The context of this work was full. This is a fresh one: it holds the task and what is known so far."
)
FROM_HERE = (
    "Go on with the task from here. What is done need not be done again; look at the files where you have to "
    "be sure."
)
SUMMARY_HEADING = "# Summary of the work so far"
STEPS_HEADING = "# The last steps so far, shortened"
FILES_HEADING = "# Files changed so far"
CUT_SUMMARY = "[the summary was cut off at its length limit]"

# If an answer to the request for a summary contains a call and fewer words than this, the words are not a summary:
# they only announce the call.
_LEAST_WORDS_BESIDE_CALLS = 100

_MOST_ARGUMENT_BYTES = 300
_LEAST_STEP_BYTES = 400
"""Older steps are shortened to this many bytes when the newest ones have filled half of the room."""
_STEP_NOTE = "[... {left_out:,} of {total:,} bytes left out ...]"


def new_context(
    tasks: Sequence[Sequence[Block]],
    summary: str,
    changed_files: Sequence[str],
    *,
    steps: str | None = None,
    most_task_tokens: int | None = None,
) -> list[Block]:
    """The first user message of a new context. `tasks` holds all prompts of the user, in order. If they exceed
    `most_task_tokens` together, some are left out, and a note says so. The newest one is always kept. `steps` is the
    text of the last steps, and `summary` is then an earlier one or empty. Without steps, `summary` is new, and the
    first prompt is always kept too.
    """
    known = [*_section(SUMMARY_HEADING, summary), *_section(STEPS_HEADING, steps or "")]
    kept = _task_blocks(tasks, most_task_tokens, keeps_first=steps is None)
    files = _section(FILES_HEADING, "\n".join(f"- {path}" for path in changed_files))
    return [*text_blocks(OPENING), *kept, *known, *files, *text_blocks(FROM_HERE)]


def digest_request(
    tasks: Sequence[Sequence[Block]],
    messages: Sequence[Message],
    most_tokens: int,
    *,
    earlier_summary: str = "",
) -> Message:
    """The only message of a request for a summary: prompts, earlier summary, last steps and instructions. The steps are
    shortened until it has at most `most_tokens`. The other parts alone may exceed that.
    """
    blocks = [*_task_blocks(tasks, most_tokens // 2), *_section(SUMMARY_HEADING, earlier_summary)]
    around = user_message([*blocks, *text_blocks(f"{STEPS_HEADING}\n\n"), *text_blocks(SUMMARIZE)])
    steps = last_steps(messages, (most_tokens - around.size) * BYTES_PER_TOKEN)
    return user_message([*blocks, *_section(STEPS_HEADING, steps), *text_blocks(SUMMARIZE)])


def shrinks(old_tokens: int, new_tokens: int, window: int | None) -> bool:
    """Whether a new context has at most 3/4 of the old one's tokens and need not be compacted at once."""
    return 4 * new_tokens <= 3 * old_tokens and not is_over(new_tokens, window)


def summary_of(answer: Answer) -> str | None:
    """The summary in an answer, with a note if it was cut off. None if there is none."""
    text = answer.text.strip()
    if not text or answer.stop_reason == "refusal":
        return None
    if answer.call_ids and len(text.split()) < _LEAST_WORDS_BESIDE_CALLS:
        return None
    was_cut = answer.stop_reason in {"max_tokens", "model_context_window_exceeded"}
    return f"{text}\n\n{CUT_SUMMARY}" if was_cut else text


class Attempt(Struct, frozen=True):
    way: Literal["whole", "digest", "cut"]
    """"whole": a summary of the whole old context. "digest": a summary of its last steps. "cut": these steps
    themselves."""
    share: float = 1.0
    """For "digest" and "cut": the last steps have at most this share of the old context and of the window."""

    def most_tokens(self, estimate: int, window: int | None) -> int:
        """The limit in tokens: for "cut", of the last steps; for "digest", of the request. It is `share` of `window`,
        or of `estimate`, the old context, if that is less: a server that refused it may have a smaller window.
        """
        return int(self.share * min(estimate, window or estimate))


def guessed_attempt(size: int, answered: int, head: int) -> Attempt:
    """The only attempt after a refusal that may have another reason than the size. Its request for a summary is no
    larger than the last one that was answered. Sizes are estimates from bytes: `size` of the refused request,
    `answered` of the last answered one, `head` of one without messages.
    """
    return Attempt("digest", max(_CUT.share, min(_HALF.share, (answered - head) / size)))


_WHOLE = Attempt("whole")
_HALF = Attempt("digest", 1 / 2)
_QUARTER = Attempt("digest", 1 / 4)
_CUT = Attempt("cut", 1 / 8)


class CompactionSteps(Struct, frozen=True):
    """Which ways of compaction were tried. When an answer follows a successful one, all may be tried again."""

    taken: int = 0
    has_shrunk: bool = False
    """Whether the last attempt made the context smaller."""

    def attempt(self, trigger: Trigger) -> Attempt | None:
        """The next way to try, or None. After "overflow" not "whole", as that request would be too large again."""
        ways = (_HALF if trigger == "overflow" else _WHOLE, _QUARTER, _CUT)
        return ways[self.taken] if self.taken < len(ways) else None

    def next(self, *, has_shrunk: bool) -> CompactionSteps:
        return CompactionSteps(self.taken + 1, has_shrunk)

    def answered(self) -> CompactionSteps:
        """The state after an answer was added to the conversation."""
        return CompactionSteps() if self.has_shrunk else self


def last_steps(messages: Sequence[Message], most_bytes: int) -> str:
    """The last texts, calls and results as plain text of at most `most_bytes` in a request. The newest fill half of
    the bytes in full, older ones are shortened. Empty if not even the first line fits.
    """
    opening = sent_bytes(_opening_line(len(messages)))
    if opening > most_bytes:
        return ""
    used, first, steps = opening, len(messages), list[str]()
    for index, step in _newest_first(messages):
        whole_bytes = most_bytes // 2 - used
        shown = cut_in_middle(step, max(_LEAST_STEP_BYTES, whole_bytes), _STEP_NOTE)
        used += sent_bytes(f"\n\n{shown}")
        if used > most_bytes:
            break
        first = index
        steps.append(shown)
    return "\n\n".join([_opening_line(first), *reversed(steps)])


def _opening_line(left_out: int) -> str:
    return f"[{left_out:,} earlier messages left out]"


def _newest_first(messages: Sequence[Message]) -> Iterator[tuple[int, str]]:
    """Yields the steps, each with the index of its message."""
    names = {
        block["id"]: str(block["name"])
        for message in messages
        for block in message.content
        if block.get("type") == "tool_use"
    }
    for index in range(len(messages) - 1, -1, -1):
        for block in reversed(messages[index].content):
            step = _step(messages[index].role, block, names)
            if step is not None:
                yield index, step


def _step(role: str, block: Block, names: Mapping[str, str]) -> str | None:
    """None for a block that is left out."""
    match block.get("type"):
        case "text":
            return f"{'User' if role == 'user' else 'Assistant'}: {block['text']}"
        case "tool_use":
            arguments = to_json(block["input"]).decode()
            return f"Call of {block['name']}: {_beginning(arguments, _MOST_ARGUMENT_BYTES)}"
        case "tool_result":
            failed = " (failed)" if block.get("is_error") else ""
            name = names.get(block["tool_use_id"], "a tool")
            return f"Result of {name}{failed}: {_result_text(block)}"
        case "image" | "document" as kind:
            return f"User: [{kind}]"
        case _:
            return None


def _result_text(result: Block) -> str:
    content = result.get("content", "")
    if isinstance(content, str):
        return content
    return "\n".join(
        block["text"] if block.get("type") == "text" else f"[{block.get('type')}]" for block in content
    )


def _beginning(text: str, most_bytes: int) -> str:
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= most_bytes else encoded[:most_bytes].decode("utf-8", "ignore") + " ..."


def _section(heading: str, text: str) -> list[Block]:
    return text_blocks(f"{heading}\n\n{text}") if text.strip() else []


def _task_blocks(
    tasks: Sequence[Sequence[Block]], most_tokens: int | None, *, keeps_first: bool = False
) -> list[Block]:
    kept = _kept_tasks([user_message(task).size for task in tasks], most_tokens, keeps_first=keeps_first)
    blocks: list[Block] = []
    for number, task in enumerate(tasks, start=1):
        name = "# The task" if len(tasks) == 1 else f"# Task {number} of {len(tasks)}"
        if number in kept:
            blocks += [*text_blocks(f"{name}, word for word"), *task]
        else:
            blocks += text_blocks(f"{name}: left out: the tasks together are too long for the context")
    return blocks


def _kept_tasks(sizes: Sequence[int], most_tokens: int | None, *, keeps_first: bool) -> set[int]:
    """The numbers of the prompts to keep, from 1: all without a limit, else the newest one, the first one if
    `keeps_first`, and of the others, from the newest to the oldest, what fits. `sizes` are in tokens.
    """
    newest_first = range(len(sizes), 0, -1)
    if most_tokens is None:
        return set(newest_first)
    kept = {number for number in newest_first if number == len(sizes) or (keeps_first and number == 1)}
    left = most_tokens - sum(sizes[number - 1] for number in kept)
    for number in newest_first:
        if number not in kept and sizes[number - 1] <= left:
            kept.add(number)
            left -= sizes[number - 1]
    return kept


# --- Cutting tool results
# Cuts tool results so that they fit into the context window. No I/O happens here. A result is cut before it is added
# to the conversation, and never later. All numbers of bytes here are lengths of the JSON text in a request.

# A context this full is compacted before the next request. Results only have to leave room for that.
MOST_FILLED_PERCENT = 95
LEAST_BYTES = 2_000
"""The least that is kept of a text that is cut. A model that got nothing of a result would repeat the call."""

# `{"type":"tool_result","tool_use_id":...,"is_error":true}` with the API's ids of 30 characters, rounded up.
_ENVELOPE_TOKENS = 65
_AROUND_TEXT_TOKENS = 13
"""The tokens of `{"type":"text","text":""}`, the JSON around a text."""
_LEAST_TOKENS = LEAST_BYTES // BYTES_PER_TOKEN

CUT_NOTE = (
    "[... {left_out:,} of {total:,} bytes left out: the whole would not fit into the context. To see the rest, "
    "ask for less at a time: a narrower command or search, or offset and limit ...]"
)
LEFT_OUT = "[{kind} left out: it would not fit into the context]"


def room_for(estimate: int, window: int | None) -> int | None:
    """The tokens that the results of one answer's calls may have together: up to 95 % of the window. `estimate` is the
    context with the answer. None if the window is unknown.
    """
    return None if window is None else max(0, window * MOST_FILLED_PERCENT // 100 - estimate)


def all_fitted(outputs: Sequence[ToolOutput], room_tokens: int | None) -> tuple[ToolOutput, ...]:
    """The results, cut to `room_tokens` together if possible. Small ones are not cut, and large ones share the rest,
    but keep 2,000 bytes of text each. None is no limit.
    """
    if room_tokens is None:
        return tuple(outputs)
    shares = _shares([output_size(output) for output in outputs], room_tokens)
    return tuple(fitted(output, share) for output, share in zip(outputs, shares, strict=True))


def fitted(output: ToolOutput, room_tokens: int) -> ToolOutput:
    """The output, cut in the middle to `room_tokens`. At least 2,000 bytes of its text are kept."""
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
    """The estimated tokens of a tool result."""
    content = output.content
    if isinstance(content, str):
        return _ENVELOPE_TOKENS + tokens_of_bytes(sent_bytes(content))
    return _ENVELOPE_TOKENS + sum(map(_block_size, content))


def sent_bytes(text: str) -> int:
    """The bytes of a text in a request, without its quotes. A joined text has as many as its parts together."""
    return len(to_json(text)) - 2


def cut_in_middle(text: str, most_bytes: int, note: str) -> str:
    """The text if it has at most `most_bytes`. Otherwise its beginning and its end, cut at line breaks unless a line is
    too long, with `note` between them, where {left_out} and {total} become numbers of bytes. Only the note if that
    needs all bytes.
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
    """The length in characters of the longest beginning that has at most `most_bytes` in a request."""
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
