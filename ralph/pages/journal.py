"""Reads the journals of a report page. A journal is read in chunks and never held in memory as a whole. Of a damaged
journal, everything before the damage is read.

In a long journal, only the first and the last lines are decoded completely. Of the lines between them, only the times,
durations, costs and sizes are decoded, because their texts have no room on the page.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.conversation.journal_lines import CHUNK_BYTES, CheckedLines, JournalDamage, record_of, written_at
from ralph.machine.files.opened_file import open_regular_file
from ralph.pages.transcript import PageTranscript, TranscriptOptions
from ralph.sessions.looking import SessionLook, look_by
from ralph.sessions.skimming import record_without_texts
from ralph.sessions.story import DAMAGED, KILLED, NEWER_FORMAT, RUNNING, SessionStory

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.conversation.journal_lines import Read
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


class JournalRead(Struct, frozen=True):
    """A journal that was read."""

    look: SessionLook
    transcript: PageTranscript
    is_unmarked: bool
    """True if an older ralph made a part of it, and did not record where secrets are."""

    @property
    def id(self) -> str:
        return self.look.id

    @property
    def story(self) -> SessionStory:
        return self.transcript.story

    @property
    def is_running(self) -> bool:
        return self.look.outcome == RUNNING

    @property
    def problem(self) -> str | None:
        """Why the journal cannot be shown, or not all of it. None if all is shown."""
        is_cut = self.look.outcome in {DAMAGED, NEWER_FORMAT}
        return f"{self.look.problem}; what follows cannot be shown" if is_cut else self.look.problem

    @property
    def outcome(self) -> str:
        """The outcome of the last run, or `RUNNING`, `KILLED` or `UNKNOWN`."""
        if self.is_running:
            return RUNNING
        if self.problem is not None:
            return UNKNOWN
        ended = self.story.runs[-1].ended if self.story.runs else None
        return KILLED if ended is None else ended.outcome


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
    options = TranscriptOptions(prefix, share.most_chars, most, f"ralph sessions export {path.stem}")
    complete = most * _LINES_PER_ENTRY
    between = range(complete // _SHARE_OF_FIRST, lines - complete + complete // _SHARE_OF_FIRST)
    made = [PageTranscript(options, excerpts)]

    def fold(read: Read, size: int) -> tuple[SessionStory, JournalDamage | None]:
        made[0] = transcript = PageTranscript(options, excerpts)
        try:
            for number, _, kind, line in CheckedLines(read, size):
                record = record_without_texts(line, kind) if number in between else None
                has_texts = record is None
                record = record or record_of(line, number, view)
                transcript.take(record, written_at(line), number, has_texts=has_texts)
        except JournalDamage as damage:
            return transcript.story, damage
        return transcript.story, None

    look = look_by(path, fold)
    return JournalRead(look, made[0], view.has_unmarked)
