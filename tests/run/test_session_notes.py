"""Records of a session's journal beside the conversation: they are written while the journal is open, in the task
to which they belong.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.agent.session_log import SessionLog
from ralph.conversation.session import Session
from ralph.run.telemetry import SessionNotes
from ralph.values.controls import PermissionMode
from ralph.values.events import Heartbeat, PermissionModeChanged, ResponseDiscarded, SessionOpened
from ralph.values.ports import JournalError
from tests.fakes import FakeJournal

if TYPE_CHECKING:
    from ralph.values.events import Event

OPENED = SessionOpened("s1")


class FullJournal(FakeJournal):
    def append(self, *_entries: Any, **_options: Any) -> None:
        raise JournalError(Path("journal"), OSError(28, "No space left on device"))


def opened() -> SessionNotes:
    notes = SessionNotes(lambda text: text.replace("sk-1", "[redacted]"))
    notes.emit(OPENED)
    return notes


def log_of(journal: FakeJournal) -> SessionLog:
    return SessionLog(journal, Session())


def discarded(name: str) -> Event:
    return ResponseDiscarded(name)


def test_a_note_between_two_tasks_begins_the_next_one_and_one_within_goes_into_the_log() -> None:
    notes, journal = opened(), FakeJournal()
    notes.emit(PermissionModeChanged(PermissionMode.PLAN))
    [waiting] = notes.begin_task(log_of(journal))
    assert "plan" in str(waiting)
    notes.emit(discarded("m1"))
    notes.emit(Heartbeat("the answer", 30))
    assert ["m1" in str(record) for record in journal.records] == [True]
    notes.end_task()
    notes.emit(discarded("m2"))
    assert len(journal.records) == 1
    assert len(notes.begin_task(log_of(journal))) == 1


def test_no_secret_is_noted() -> None:
    notes = opened()
    notes.emit(discarded("sk-1"))
    assert "[redacted]" in str(notes.begin_task(log_of(FakeJournal())))


def test_a_journal_that_is_full_is_said_once() -> None:
    notes = opened()
    notes.begin_task(log_of(FullJournal()))
    with pytest.raises(JournalError):
        notes.emit(discarded("m1"))
    notes.emit(discarded("m2"))
