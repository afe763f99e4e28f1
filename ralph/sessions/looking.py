"""Finds the session that the user means, reads its journal without opening it for writing, and finds out whether a run of
it is active.

To find this out, ralph must lock the journal for a moment, which may disturb a run that is just starting. If the
journal shows that the last run has ended and delivered its result, ralph does not lock it.

A list of sessions shows only parts of a journal. The record of a run's end contains the turns and the cost of the run. It
usually also says where the run began. For a long run, all lines between the run's first message and this record are
therefore skipped. In all other lines, the checksum and the line number are checked, and texts that a list does not show
are not decoded. Damage in skipped lines is not noticed then. `show`, `export` and a resumed run read all lines and report it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ralph.conversation.journal_lines import (
    CHUNK_BYTES,
    FIRST_BYTES,
    CheckedLines,
    JournalDamage,
    Read,
    RecordView,
    View,
    chunks,
    record_of,
)
from ralph.conversation.records import (
    AssistantRecord,
    EndedRecord,
    EventRecord,
    IntentRecord,
    NewerFormatError,
    Record,
    ResultRecord,
)
from ralph.machine.files.opened_file import closed_after, open_regular_file
from ralph.sessions import story as outcomes
from ralph.sessions.places import SHORT_ID_CHARS, named_session, written_at
from ralph.sessions.story import SessionStory
from ralph.values.outcome import UsageError
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ralph.conversation.journal_lines import View
    from ralph.conversation.records import Record
    from ralph.sessions.store import SessionStore


_MOST_READINGS = 3
Fold = Callable[[Read, int], tuple[SessionStory, JournalDamage | None]]
"""Makes the story of a journal of this size. The damage is the first in the lines that it read."""


class SessionLook(Struct, frozen=True):
    """The state of a session when its journal was read."""

    path: Path
    written_at_s: float
    """The time of the last write to the journal, in seconds since the epoch."""
    outcome: str
    """The outcome of the last run, or one of the constants in `sessions/story.py`."""
    story: SessionStory = field(default_factory=SessionStory)
    records: tuple[Record, ...] = ()
    problem: str | None = None
    """The reason why a part of the session cannot be shown. None if the whole session can be shown."""

    @property
    def id(self) -> str:
        return self.path.stem

    @property
    def task(self) -> str:
        """The title of the session. If there is no title, the first prompt. Empty if neither can be read."""
        return self.story.given_title or self.story.task


def look_at(path: Path, view: View | None = None) -> SessionLook:
    """Reads the whole journal. Raises FileNotFoundError if it does not exist. Any other problem is described by
    `outcome` and `problem` of the result. `view` makes the records safe to show. None for the records as they are.
    """
    records: list[Record] = []

    def fold(read: Read, size: int) -> tuple[SessionStory, JournalDamage | None]:
        records.clear()
        story = SessionStory(keeps_steps=True)
        try:
            for number, _, _, line in CheckedLines(read, size):
                record = record_of(line, number, view)
                story.take(record, number)
                records.append(record)
        except JournalDamage as damage:
            return story, damage
        return story, None

    look = look_by(path, fold)
    return replace(look, records=tuple(records))


def look_to_list(path: Path, view: View | None = None) -> SessionLook:
    """Reads only what a list of sessions shows. The story of the result has no steps. Errors are as in `look_at`. If
    `view` is None, the secrets whose places the journal has are cut: this process may not know them.
    """
    return look_by(path, partial(skim, view=view or RecordView(Redactor())))


def look_by(path: Path, fold: Fold) -> SessionLook:
    """Reads a journal with `fold`. Errors are as in `look_at`."""
    try:
        for _ in range(_MOST_READINGS):
            size, look = _read(path, fold)
            if look.outcome not in {outcomes.KILLED, outcomes.NOT_DELIVERED}:
                break
            if _is_locked(path):
                return replace(look, outcome=outcomes.RUNNING)
            if path.stat().st_size == size:  # otherwise a run may have written its end since
                break
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = error.strerror or type(error).__name__
        return SessionLook(path, 0.0, outcomes.UNREADABLE, problem=problem)
    return look


def _read(path: Path, fold: Fold) -> tuple[int, SessionLook]:
    """The size of the journal, and its state if no run has it open."""
    with closed_after(open_regular_file(path)) as descriptor:
        status = os.fstat(descriptor)
        try:
            story, damage = fold(partial(os.pread, descriptor), status.st_size)
        except NewerFormatError as error:
            return 0, SessionLook(path, status.st_mtime, outcomes.NEWER_FORMAT, problem=str(error))
    if damage is not None:
        return 0, SessionLook(path, status.st_mtime, outcomes.DAMAGED, story, problem=str(damage))
    is_empty = story.opening is None and not story.runs
    outcome = outcomes.EMPTY if is_empty else story.end or outcomes.KILLED
    return status.st_size, SessionLook(path, status.st_mtime, outcome, story)


def holder_of(path: Path) -> str:
    """Describes the process that has the journal open, as recorded for the last run. Returns "another process" if the
    last run has ended and its delivery is recorded, or if the recorded process does not exist on this machine.
    """
    with suppress(OSError):
        for run in _read(path, skim)[1].story.runs[-1:]:
            is_over = run.ended is not None and (run.ended.delivered or run.delivery is not None)
            if not is_over and _is_there(run.opening.pid):
                return f"process {run.opening.pid}, since {run.opening.started_at}"
    return "another process"


def _is_there(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)  # signal 0 only checks whether the process exists
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _is_locked(path: Path) -> bool:
    """Whether a process has the journal open for writing. False if the file system does not support locks."""
    with closed_after(open_regular_file(path)) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


# --- Finding a session
# Finds the session that the user means: by the beginning of its id, by its title, or as the newest one.

_MOST_AMBIGUOUS = 5


def last_resumable(store: SessionStore, cwd: Path) -> Path | None:
    """The most recently written journal of the working directory `cwd` that contains a message. None if `cwd` has
    no journal. If none contains a message, the most recently written one: opening it raises an error that explains
    the problem.
    """
    newest_first = sorted(store.of(cwd), key=written_at, reverse=True)
    return next((path for path in newest_first if _has_message(path)), store.last_of(cwd))


def _has_message(path: Path) -> bool:
    """Whether the journal contains a user message, without which it cannot be resumed. Also True if it cannot be
    read: opening it reports why.
    """
    try:
        look = look_to_list(path)
    except FileNotFoundError:  # it was deleted just now
        return False
    return look.problem is not None or look.story.has_message


def named_journal(store: SessionStore, name: str) -> Path:
    """The journal whose id begins with `name`, or whose session has it as its title. Raises UsageError if there is
    none, or more than one.
    """
    found = store.starting_with(name)
    titled = [] if len(found) == 1 and len(name) >= SHORT_ID_CHARS else _titled(store, name)
    both = [*dict.fromkeys((*found, *titled))]
    if not both:
        none = f"no session has an id that begins with {name!r}, or this title (in {store.root})"
        raise UsageError(none)
    if len(both) > 1:
        newest = sorted(both, key=written_at, reverse=True)[:_MOST_AMBIGUOUS]
        names = _names(newest) if titled else ", ".join(path.stem for path in found[:_MOST_AMBIGUOUS])
        have = "have an id that begins with, or the title" if titled else "begin with"
        raise UsageError(f"{len(both)} sessions {have} {name!r}: {names}")
    return both[0]


def _titled(store: SessionStore, title: str) -> list[Path]:
    """The journals of the sessions with this title, as a list of sessions shows it. Case and white space do not
    count.
    """

    def plain(text: str | None) -> str:
        return " ".join((text or "").casefold().split())

    wanted = plain(title)
    found: list[Path] = []
    for path in store.all():
        with suppress(FileNotFoundError):  # it was deleted just now
            if plain(look_to_list(path).story.title) == wanted != "":
                found.append(path)
    return found


def _names(paths: Iterable[Path]) -> str:
    now_s = time.time()
    named = []
    for path in paths:
        with suppress(FileNotFoundError):
            look = look_to_list(path)
            named.append(named_session(look.id, now_s - look.written_at_s, look.task))
    return ", ".join(named)


# --- The parts of a journal that a list shows

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
