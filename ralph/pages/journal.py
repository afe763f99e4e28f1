"""Reads the journals of a report page. A journal is read in chunks and never held in memory as a whole. Of a damaged
journal, everything before the damage is read.

In a long journal, only the first and the last lines are decoded completely. Of the lines between them, only the times,
durations, costs and sizes are decoded, because their texts have no room on the page.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ralph.conversation.journal_lines import CHUNK_BYTES, CheckedLines, JournalDamage, record_of, written_at
from ralph.conversation.records import NewerFormatError
from ralph.machine.opened_file import open_regular_file
from ralph.pages.story import Incidents, PassedAttempt, SessionStory, StoryOptions
from ralph.sessions.history import KILLED, RUNNING
from ralph.sessions.looking import is_locked
from ralph.values.outcome import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.conversation.secret_spans import RecordView
    from ralph.pages.excerpts import Excerpts

UNKNOWN = "unknown"

# The texts of all entries of a page, in bytes of HTML. A page must stay under 10 MB, and the rest takes about 4 MB.
_BUDGET_BYTES = 5_000_000
_MOST_CHARS, _LEAST_CHARS = 16_000, 250
_MOST_ENTRIES = 6_000
_LEAST_ENTRIES = 6
_LINES_PER_ENTRY = 2
"""A turn with one call has five lines or more: the attempt, its sum, the answer, the intent and the result. They make
one or two entries."""
_SHARE_OF_FIRST = 3
"""A third of the lines that are decoded completely is at the beginning."""
_TURN_ASKED = b'"subtype":"turn_asked"'
_ATTEMPT = b'"subtype":"attempt"'


class _PassedEvent(Struct, frozen=True):
    event: PassedAttempt
    at: float | None = None
    secrets: tuple[Any, ...] = ()


class _PassedUsage(Struct, frozen=True):
    usage: dict[str, Any]


class _PassedAnswer(Struct, frozen=True):
    message: _PassedUsage
    at: float | None = None


class _PassedIntent(Struct, frozen=True):
    id: str
    name: str
    at: float | None = None
    secrets: tuple[Any, ...] = ()


class _PassedResult(Struct, frozen=True):
    tool_use_id: str
    is_error: bool = False
    at: float | None = None


class JournalRead:
    """A journal that was read."""

    def __init__(self, path: Path, story: SessionStory, incidents: Incidents, written_at_s: float) -> None:
        """`written_at_s` is the time of the last write to the file."""
        self.path = path
        self.story = story
        self.incidents = incidents
        self.written_at_s = written_at_s
        self.is_running = False
        self.is_unmarked = False
        """True if an older ralph made a part of it, and did not record where secrets are."""
        self.is_newer = False
        """True if a newer ralph wrote the journal in a format that this one cannot read."""
        self.problem: str | None = None
        """Why the journal cannot be shown, or not all of it. None if all is shown."""

    @property
    def id(self) -> str:
        return self.path.stem

    @property
    def outcome(self) -> str:
        """The outcome of the last run, or `RUNNING`, `KILLED` or `UNKNOWN`."""
        runs = self.story.runs
        if self.is_running:
            return RUNNING
        if self.problem is not None:
            return UNKNOWN
        return KILLED if not runs or runs[-1].ended is None else runs[-1].ended.outcome


class PageShare(Struct, frozen=True):
    """The room on the page for the records of all journals."""

    lines: int
    """The number of lines in all journals."""

    @property
    def most_chars(self) -> int:
        """The length to which texts are cut."""
        entries = max(min(self.lines // _LINES_PER_ENTRY, _MOST_ENTRIES), 1)
        # An entry has a text and often a result.
        return min(max(_BUDGET_BYTES // entries // 2, _LEAST_CHARS), _MOST_CHARS)

    def entries_of(self, lines: int) -> int:
        """The number of entries for a journal of `lines` lines."""
        return max(_MOST_ENTRIES * lines // max(self.lines, 1), _LEAST_ENTRIES)


def number_of_lines(path: Path) -> int:
    """The number of lines of a file. 0 if it cannot be read."""
    try:
        with os.fdopen(open_regular_file(path), "rb", 0) as file:
            return sum(chunk.count(b"\n") for chunk in iter(partial(file.read, CHUNK_BYTES), b""))
    except OSError:
        return 0


def read_journal(
    path: Path, share: PageShare, lines: int, excerpts: Excerpts, *, prefix: str, view: RecordView
) -> JournalRead:
    """Reads a journal. `lines` is its number of lines, and `prefix` begins the ids of its entries. `view` cuts the
    secrets out of the records. Raises FileNotFoundError.
    """
    most = share.entries_of(lines)
    incidents = Incidents()
    options = StoryOptions(prefix, share.most_chars, most, f"ralph sessions export {path.stem}")
    story = SessionStory(options, excerpts, incidents)
    read = JournalRead(path, story, incidents, path.stat().st_mtime)
    shown = most * _LINES_PER_ENTRY
    passed = range(shown // _SHARE_OF_FIRST, lines - shown + shown // _SHARE_OF_FIRST)
    try:
        with os.fdopen(open_regular_file(path), "rb", 0) as file:
            descriptor = file.fileno()
            for number, _, kind, line in CheckedLines(
                partial(os.pread, descriptor), os.fstat(descriptor).st_size
            ):
                if (
                    number in passed
                    and (passes := _PASSED.get(kind)) is not None
                    and _has_passed(passes, story, line)
                ):
                    continue
                story.take(record_of(line, number, view), written_at(line), number)
        read.is_running = _may_run(story) and is_locked(path)
    except (JournalDamage, NewerFormatError) as found:
        read.is_newer = isinstance(found, NewerFormatError)
        read.problem = f"{found}; what follows cannot be shown"
    except FileNotFoundError:
        raise
    except OSError as error:
        read.problem = error.strerror or type(error).__name__
    read.is_unmarked = view.has_unmarked
    return read


def _may_run(story: SessionStory) -> bool:
    """Whether a process may be at work on the session. If the last result was delivered, there is none. The lock is
    then not tried, because that may disturb a run that is just starting.
    """
    last = story.runs[-1] if story.runs else None
    if last is None or last.ended is None:
        return True
    return not last.ended.delivered and (last.delivery is None or last.delivery.state is Delivery.FAILED)


def _has_passed(passes: Callable[[SessionStory, bytes], bool], story: SessionStory, line: bytes) -> bool:
    try:
        return passes(story, line)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # it is decoded completely, which tells what is wrong
        return False


def _pass_event(story: SessionStory, line: bytes) -> bool:
    if _TURN_ASKED in line:
        return True
    if _ATTEMPT not in line:
        return False
    event = _EVENTS.decode(line)
    if event.secrets:  # `view` must cut them
        return False
    story.pass_attempt(event.event, event.at)
    return True


def _pass_answer(story: SessionStory, line: bytes) -> bool:
    answer = _ANSWERS.decode(line)
    story.pass_answer(answer.message.usage, answer.at)
    return True


def _pass_intent(story: SessionStory, line: bytes) -> bool:
    intent = _INTENTS.decode(line)
    if intent.secrets:
        return False
    story.pass_intent(intent.id, intent.name, intent.at)
    return True


def _pass_result(story: SessionStory, line: bytes) -> bool:
    result = _RESULTS.decode(line)
    story.pass_result(result.tool_use_id, result.at, is_error=result.is_error)
    return True


_EVENTS = msgspec.json.Decoder(_PassedEvent)
_ANSWERS = msgspec.json.Decoder(_PassedAnswer)
_INTENTS = msgspec.json.Decoder(_PassedIntent)
_RESULTS = msgspec.json.Decoder(_PassedResult)
_PASSED: dict[str, Callable[[SessionStory, bytes], bool]] = {
    "event": _pass_event,
    "assistant": _pass_answer,
    "tool_intent": _pass_intent,
    "tool_result": _pass_result,
}
