"""Journals that are in memory as bytes, read as ralph reads a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.conversation import records
from ralph.conversation.journal_lines import CheckedLines, JournalDamage, record_of
from ralph.sessions.story import SessionStory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.conversation.journal_lines import Read, View
    from ralph.conversation.records import Record, SessionRecord


class JournalReading(Struct, frozen=True):
    records: tuple[Record, ...]
    torn: bytes = b""
    """The bytes of an incomplete last line."""
    lacks_break: bool = False


def reads(data: bytes) -> Read:
    return lambda most, offset: data[offset : offset + most]


def read_lines(data: bytes) -> JournalReading:
    """All records. Raises what opening such a journal raises."""
    lines = CheckedLines(reads(data), len(data))
    found = tuple(record_of(line, number) for number, _, _, line in lines)
    return JournalReading(found, data[lines.end :], lines.lacks_break)


def readable_part(data: bytes, view: View | None = None) -> tuple[tuple[Record, ...], JournalDamage | None]:
    """The records before the first damage, and the damage."""
    found: list[Record] = []
    try:
        for number, _, _, line in CheckedLines(reads(data), len(data)):
            found.append(record_of(line, number, view))
    except JournalDamage as damage:
        return tuple(found), damage
    return tuple(found), None


def story_of(told: Sequence[Record]) -> SessionStory:
    story = SessionStory(keeps_steps=True)
    for number, record in enumerate(told):
        story.take(record, number)
    return story


def forked_record(opening: SessionRecord, old: Sequence[Record]) -> SessionRecord:
    """The first record of a fork of the session with the records `old`."""
    first, *copied = old
    has_moved = any(isinstance(record, records.MovedRecord) for record in copied)
    return records.forked_record(opening, first, len(copied), has_moved=has_moved)
