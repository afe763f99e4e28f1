"""Reads the parts of a journal that a list of sessions shows. No I/O happens here: the caller passes in a function
that reads bytes.

The record of a run's end contains the turns and the cost of the run. It usually also says where the run began. For a
long run, all lines between the run's first message and this record are therefore skipped. In all other lines, the
checksum and the line number are checked, and texts that a list does not show are not decoded. Damage in skipped lines
is not noticed here. `show`, `export` and a resumed run read all lines and report it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ralph.conversation.journal_lines import (
    CHUNK_BYTES,
    FIRST_BYTES,
    CheckedLines,
    JournalDamage,
    chunks,
    record_of,
)
from ralph.conversation.records import AssistantRecord, EndedRecord, EventRecord, IntentRecord, ResultRecord
from ralph.sessions.story import SessionStory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.conversation.journal_lines import Read, View
    from ralph.conversation.records import Record

_NOT_SHOWN = frozenset({"target", "queued", "thinking_refused", "background"})
_ATTEMPT, _TURN_ASKED = b'"subtype":"attempt"', b'"subtype":"turn_asked"'
# How a line of these kinds begins. Quotes within JSON text are escaped, but nested objects may have a kind too.
_RUN, _ENDED = b',"kind":"run",', b',"kind":"ended",'
_LINE_BEGINS = b'\n{"seq":'
_SEQ_BYTES = len(_LINE_BEGINS) + 19
_MARK_BYTES = _SEQ_BYTES + len(_ENDED)


class _Place(Struct, frozen=True):
    number: int
    """The index of the line in the journal."""
    offset: int


LONG_BYTES = 64 * 1024
"""A run of at least this size in bytes is skipped. Reading and checking a run of this size takes 0.1 ms."""


def skim(
    read: Read, size: int, *, long_bytes: int = LONG_BYTES, view: View | None = None
) -> tuple[SessionStory, JournalDamage | None]:
    """The story of a journal of `size` bytes, and the first damage that was found. The story has no steps. In a run of
    at least `long_bytes` bytes, the lines between its first and its last line are skipped. `view` makes the records
    safe to show. Raises NewerFormatError.
    """
    story = SessionStory()
    ends = _ends_of_long_runs(read, size, long_bytes)
    place: _Place | None = _Place(0, 0)
    try:
        while place is not None:
            place = _read_to_skipped(CheckedLines(read, size, place.number, place.offset), story, ends, view)
    except JournalDamage as damage:
        return story, damage
    return story, None


def _read_to_skipped(
    lines: CheckedLines, story: SessionStory, ends: dict[int, _Place], view: View | None
) -> _Place | None:
    """Reads lines until a part can be skipped: a message of a long run has been read, and the session's first
    prompt. Returns the line to continue with, or None at the end of the journal.
    """
    end: _Place | None = None
    for number, offset, kind, line in lines:
        if kind in _NOT_SHOWN:
            continue
        record = record_without_texts(line, kind)
        if record is None and (kind != "event" or _ATTEMPT in line):
            record = record_of(line, number, view)
        if record is not None:
            story.take(record, number)
        end = ends.get(offset) if kind == "run" else end
        if end is not None and story.has_message and (story.runs[-1].has_message or story.runs[-1].answers):
            return end
    return None


# --- Records without their texts


class _AttemptFields(Struct, frozen=True):
    turn: int
    target: str
    cost_usd: int | float | None
    kind: str | None = None
    error: str | None = None
    latency_s: int | float = 0.0
    wait_s: int | float = 0.0


class _EventLine(Struct, frozen=True):
    event: _AttemptFields
    secrets: tuple[Any, ...] = ()


class _BlockFields(Struct, frozen=True):
    type: str
    id: str = ""


class _MessageFields(Struct, frozen=True):
    content: tuple[_BlockFields, ...]
    usage: dict[str, Any]


class _AnswerLine(Struct, frozen=True):
    message: _MessageFields


class _IntentLine(Struct, frozen=True):
    id: str
    name: str
    secrets: tuple[Any, ...] = ()


class _ResultLine(Struct, frozen=True):
    tool_use_id: str
    is_error: bool = False


def record_without_texts(line: bytes, kind: str) -> Record | None:
    """Decodes a line without its texts: of an answer, the token counts and the ids of its calls; of an attempt, its
    numbers; of a call or a result, its id. None for other kinds of lines, and for lines with secrets. None also if
    the line cannot be decoded: `record_of` says why.
    """
    decoded = _DECODED.get(kind)
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return None if decoded is None else decoded(line)
    return None


def _answer(line: bytes) -> Record:
    answer = _ANSWERS.decode(line).message
    content = [
        {"type": "tool_use", "id": block.id, "name": "", "input": {}}
        for block in answer.content
        if block.type == "tool_use"
    ]
    message = {"content": content, "stop_reason": None, "usage": answer.usage}
    return AssistantRecord(message=message, request_id=None, calls=(), malformed={})


def _event(line: bytes) -> Record | None:
    if _TURN_ASKED in line:
        return EventRecord(event={"subtype": "turn_asked"})
    if _ATTEMPT not in line or (found := _EVENTS.decode(line)).secrets:
        return None
    return EventRecord(event={"subtype": "attempt", **msgspec.structs.asdict(found.event)})


def _intent(line: bytes) -> Record | None:
    intent = _INTENTS.decode(line)
    return None if intent.secrets else IntentRecord(id=intent.id, name=intent.name)


def _result(line: bytes) -> Record:
    result = _RESULTS.decode(line)
    return ResultRecord(
        type="tool_result", tool_use_id=result.tool_use_id, content="", is_error=result.is_error
    )


_EVENTS, _ANSWERS = msgspec.json.Decoder(_EventLine), msgspec.json.Decoder(_AnswerLine)
_INTENTS, _RESULTS = msgspec.json.Decoder(_IntentLine), msgspec.json.Decoder(_ResultLine)
_DECODED: dict[str, Callable[[bytes], Record | None]] = {
    "event": _event,
    "assistant": _answer,
    "tool_intent": _intent,
    "tool_result": _result,
}


# --- The ends of runs


def _ends_of_long_runs(read: Read, size: int, long_bytes: int) -> dict[int, _Place]:
    """The place of the record of a run's end, by the offset at which the run begins, for each long run whose end says
    where it began. Searches backwards, because what is between such an end and its beginning need not be read.
    """
    ends: dict[int, _Place] = {}
    offset = size
    while (end := _last_end(read, offset)) is not None:
        offset = end.offset
        begin = _beginning(read, end, size)
        if begin is not None:
            offset = begin
            if end.offset - begin >= long_bytes:
                ends[begin] = end
    return ends


def _last_end(read: Read, limit: int) -> _Place | None:
    end, most = limit, FIRST_BYTES
    while end > 0:
        begin = max(0, end - most)
        # A line may begin before `end` and end behind it.
        data = b"".join(chunks(read, begin, min(end + _MARK_BYTES, limit), most=CHUNK_BYTES))
        place = _line_in(data, begin, _ENDED)
        if place is not None:
            return place
        end, most = begin, min(2 * most, CHUNK_BYTES)
    return None


def _beginning(read: Read, end: _Place, size: int) -> int | None:
    """The offset at which the run begins, according to the record of its end. None if that lacks it, as in older
    journals, or is incomplete or damaged, or if no run begins there.
    """
    line = b"".join(_first_line(read, end.offset, size))
    record = None
    with suppress(JournalDamage):
        record = record_of(line, end.number)
    run_bytes = record.run_bytes if isinstance(record, EndedRecord) else None
    if run_bytes is None or not 0 < run_bytes < end.offset:
        return None
    begin = end.offset - run_bytes
    found = _line_in(b"".join(chunks(read, begin - 1, begin + _MARK_BYTES)), begin - 1, _RUN)
    return begin if found is not None and found.offset == begin else None


def _first_line(read: Read, offset: int, size: int) -> list[bytes]:
    pieces: list[bytes] = []
    for chunk in chunks(read, offset, size):
        piece, found, _ = chunk.partition(b"\n")
        pieces.append(piece)
        if found:
            return pieces
    return []


def _line_in(data: bytes, offset: int, kind: bytes) -> _Place | None:
    at = data.rfind(kind)
    while at >= 0:
        begin = data.rfind(_LINE_BEGINS, max(0, at - _SEQ_BYTES), at)
        seq = data[begin + len(_LINE_BEGINS) : at]
        if begin >= 0 and seq.isdigit():
            return _Place(int(seq), offset + begin + 1)
        at = data.rfind(kind, 0, at)
    return None
