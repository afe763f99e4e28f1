"""Reads the parts of a journal that a list of sessions shows. No I/O happens here: the caller passes in a function
that reads bytes.

The record of a run's end contains the turns and the cost of the run. It usually also says where the run began. For a
long run, all lines between the run's first message and this record are therefore skipped. In all other lines, the
checksum and the line number are checked. Damage in skipped lines is not noticed here. `show`, `export` and a resumed
run read all lines and report it.

The memory needed depends on the longest line and on the number of answers in runs without a recorded end. It does not
depend on the size of the journal.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
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
from ralph.conversation.records import AssistantRecord, EndedRecord, EventRecord, Record, UserRecord
from ralph.sessions.history import SessionHistory, history_of_numbered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.conversation.journal_lines import Read, View

_CALLS = ("tool_intent", "tool_result")
_OFTEN = (*_CALLS, "event")
"""The most frequent kinds of lines. They are not needed to list a run that has a recorded end."""
_NOT_SHOWN = frozenset({"target", "queued", "compacted", "thinking_refused"})
_ANSWER = "assistant"
# How JSON spells the kind of the events that have a cost.
_ATTEMPT = b'"attempt"'

# How a line of these kinds begins. Quotes within JSON text are escaped, but nested objects may have a kind too.
_RUN, _ENDED = _KINDS = (b',"kind":"run",', b',"kind":"ended",')
_LINE_BEGINS = b'\n{"seq":'
_SEQ_BYTES = len(_LINE_BEGINS) + 19
_MARK_BYTES = _SEQ_BYTES + len(_ENDED)


class Skimmed(Struct, frozen=True):
    has_lines: bool
    history: SessionHistory
    """The history of the session, without the records that a list does not show."""
    damage: JournalDamage | None
    """The first damage in the lines that were read, or None."""


class _Mark(Struct, frozen=True):
    """The position of a record of kind `run` or `ended`. A `run` record begins a run, and an `ended` record ends it."""

    number: int
    """The index of the line in the journal."""
    offset: int
    is_end: bool


class _FoundRun(Struct, frozen=True):
    offset: int
    end: _Mark | None = None
    """The position of the record of the run's end. None if there is no such record."""
    is_passed_over: bool = False
    """True if the lines between the run's first message and the record of its end are skipped."""


class _AttemptCost(Struct, frozen=True, tag_field="subtype", tag="attempt"):
    cost_usd: int | float | None


class _AttemptLine(Struct, frozen=True):
    event: _AttemptCost


class _AnswerUsage(Struct, frozen=True):
    usage: dict[str, Any]


class _AnswerLine(Struct, frozen=True):
    message: _AnswerUsage


LONG_BYTES = 64 * 1024
"""A run of at least this size in bytes is skipped. Reading and checking a run of this size takes 0.1 ms."""


def skim(read: Read, size: int, *, long_bytes: int = LONG_BYTES, view: View | None = None) -> Skimmed:
    """Reads a journal of `size` bytes. In a run of at least `long_bytes` bytes, the lines between its first and its
    last line are skipped. `view` makes the records safe to show. Raises NewerFormatError.
    """
    return _Skim(read, view).done(_runs(read, size, long_bytes), size)


class _Skim:
    """Reads the lines of a journal in order, and leaves out the lines to be skipped."""

    def __init__(self, read: Read, view: View | None) -> None:
        self._read, self._view = read, view
        self._found: dict[int, Record] = {}
        """Decoded records by the index of their line."""
        self._number = self._offset = 0
        """The index and the offset of the next line."""
        self._has_prompt = False

    def done(self, runs: list[_FoundRun], size: int) -> Skimmed:
        damage = None
        try:
            for run, following in pairwise([*runs, _FoundRun(size)]):
                self._read_shown(run.offset)
                if run.end is None:
                    self._read_open(following.offset)
                else:
                    self._read_ended(run, run.end)
            self._read_shown(size)
        except JournalDamage as found:
            damage = found
            self._found = {at: record for at, record in self._found.items() if at < found.line - 1}
        return Skimmed(self._offset > 0, history_of_numbered(sorted(self._found.items())), damage)

    def _read_shown(self, end: int) -> None:
        """Reads lines that are not part of a run, up to the offset `end`: the lines before the first run and after a
        run's end.
        """
        for number, _, kind, line in self._lines(end, _OFTEN):
            if kind not in _NOT_SHOWN:
                self._note(record_of(line, number, self._view), number)

    def _read_ended(self, run: _FoundRun, end: _Mark) -> None:
        """Reads a run whose end is recorded. `end` is the position of that record. If the run is to be skipped, stops
        as soon as two records have been read: a message of this run, and the session's first prompt.
        """
        first = self._number, self._offset
        try:
            is_whole = self._read_up_to(end, is_passed_over=run.is_passed_over)
        except JournalDamage:
            is_whole = False
        if not is_whole:  # behind damage no record counts, so this run has no end
            self._number, self._offset = first
            self._read_open(end.offset)
        elif run.is_passed_over:
            self._number, self._offset = end.number, end.offset

    def _read_up_to(self, end: _Mark, *, is_passed_over: bool) -> bool:
        """Reads lines up to the record at `end`. If the run is skipped, stops early as `_read_ended` says, and
        returns True. Otherwise returns whether no line before `end` is missing. Raises JournalDamage.
        """
        has_message = False
        for number, _, kind, line in self._lines(end.offset, _OFTEN):
            if kind in _NOT_SHOWN or (has_message and kind == _ANSWER):
                continue
            record = record_of(line, number, self._view)
            self._note(record, number)
            has_message = has_message or isinstance(record, UserRecord | AssistantRecord)
            if is_passed_over and has_message and self._has_prompt:
                return True
        return self._number == end.number

    def _read_open(self, end: int) -> None:
        """Reads a run without a recorded end, up to the offset `end`. Keeps its answers and attempts, from which its
        turns and its cost are computed later.
        """
        last_answer = self._number, self._offset
        try:
            for number, offset, kind, line in self._lines(end, _CALLS):
                if kind == _ANSWER:
                    last_answer = number, offset
                    self._note(_answer_of(line, number), number)
                elif kind == "event":
                    if _ATTEMPT in line:
                        self._note(_attempt_of(line, number), number)
                elif kind not in _NOT_SHOWN:
                    self._note(record_of(line, number, self._view), number)
        finally:  # behind the last answer every record counts, also before damage
            end = self._offset
            self._number, self._offset = last_answer
            for number, _, _, line in self._lines(end):
                self._note(record_of(line, number, self._view), number)

    def _note(self, record: Record, number: int) -> None:
        self._found[number] = record
        self._has_prompt = self._has_prompt or isinstance(record, UserRecord)

    def _lines(self, end: int, skipped: tuple[str, ...] = ()) -> Iterator[tuple[int, int, str, bytes]]:
        """Yields the index, offset, kind and bytes of each line up to the offset `end`. Leaves out the kinds of lines
        in `skipped`. Raises JournalDamage.
        """
        lines = CheckedLines(self._read, end, skipped=skipped, number=self._number, offset=self._offset)
        try:
            yield from lines
        finally:
            self._number, self._offset = lines.number, lines.end


def _answer_of(line: bytes, number: int) -> Record:
    """Decodes the record of an answer, but only its token counts."""
    try:
        usage = msgspec.json.decode(line, type=_AnswerLine).message.usage
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return record_of(line, number)
    return AssistantRecord(
        message={"content": [], "stop_reason": None, "usage": usage}, request_id=None, calls=(), malformed={}
    )


def _attempt_of(line: bytes, number: int) -> Record:
    """Decodes the record of an attempt, but only its cost. If the line contains an event of another kind, decodes the
    whole record.
    """
    try:
        cost_usd = msgspec.json.decode(line, type=_AttemptLine).event.cost_usd
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return record_of(line, number)
    return EventRecord(event={"subtype": "attempt", "cost_usd": cost_usd})


def _runs(read: Read, size: int, long_bytes: int) -> list[_FoundRun]:
    """Finds the runs of the journal, and returns them in order. Searches backwards, from the last run to the first."""
    runs: list[_FoundRun] = []
    end: _Mark | None = None
    offset = size
    while mark := _last_mark(read, offset):
        offset = mark.offset
        if not mark.is_end:
            runs.append(_FoundRun(offset, end))
            end = None
        elif (ended := _end_at(read, mark, size)) is not None:
            end = mark  # the first end of a run counts
            begin = _beginning_by(read, mark, ended)
            if begin is not None:
                runs.append(_FoundRun(begin, end, is_passed_over=mark.offset - begin >= long_bytes))
                end, offset = None, begin
    return runs[::-1]


def _end_at(read: Read, mark: _Mark, size: int) -> EndedRecord | None:
    """The record of a run's end at the position `mark`. None if the line is incomplete or damaged. The run is then
    treated as a run without a recorded end.
    """
    line = _line_at(read, mark.offset, size)
    if line is None:
        return None
    with suppress(JournalDamage):
        record = record_of(line, mark.number)
        return record if isinstance(record, EndedRecord) else None
    return None


def _line_at(read: Read, offset: int, size: int) -> bytes | None:
    """The line that begins at `offset`, without its line break. None if it has no line break."""
    pieces: list[bytes] = []
    for chunk in chunks(read, offset, size):
        piece, found, _ = chunk.partition(b"\n")
        pieces.append(piece)
        if found:
            return b"".join(pieces)
    return None


def _beginning_by(read: Read, mark: _Mark, end: EndedRecord) -> int | None:
    """The offset at which the run begins, according to `end`, the record of its end. None if `end` does not say this,
    as in older journals, or if no run begins at the offset.
    """
    if end.run_bytes is None or not 0 < end.run_bytes < mark.offset:
        return None
    begin = mark.offset - end.run_bytes
    found = _mark_in(b"".join(chunks(read, begin - 1, begin + _MARK_BYTES)), begin - 1)
    return begin if found is not None and found.offset == begin and not found.is_end else None


def _last_mark(read: Read, limit: int) -> _Mark | None:
    """The last record of kind `run` or `ended` that begins before the offset `limit`. None if there is no such
    record.
    """
    end, most = limit, FIRST_BYTES
    while end > 0:
        begin = max(0, end - most)
        # A mark may begin before `end` and end behind it.
        data = b"".join(chunks(read, begin, min(end + _MARK_BYTES, limit), most=CHUNK_BYTES))
        mark = _mark_in(b"\n" + data, -1) if begin == 0 else _mark_in(data, begin)
        if mark is not None:
            return mark
        end, most = begin, min(2 * most, CHUNK_BYTES)
    return None


def _mark_in(data: bytes, offset: int) -> _Mark | None:
    """The last `run` or `ended` record in `data`. `data` begins at `offset` in the journal. Searches for the text of
    these two kinds, which is fast because they are rare.
    """
    mark: _Mark | None = None
    for kind in _KINDS:
        at = data.rfind(kind)
        while at >= 0:
            begin = data.rfind(_LINE_BEGINS, max(0, at - _SEQ_BYTES), at)
            seq = data[begin + len(_LINE_BEGINS) : at]
            if begin >= 0 and seq.isdigit():
                found = _Mark(int(seq), offset + begin + 1, kind is _ENDED)
                mark = found if mark is None or found.offset > mark.offset else mark
                break
            at = data.rfind(kind, 0, at)
    return mark
