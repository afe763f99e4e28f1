"""The state of a session, found from the content of its journal and from its lock."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

import pytest

from ralph.conversation.messages import RequestShape
from ralph.conversation.records import run_record
from ralph.sessions.journal import FileJournal, SessionLockedError
from ralph.sessions.looking import holder_of, look_at
from ralph.sessions.store import SessionStore
from tests.sessions.session_journals import SESSION_ID, JournalBuilder, completed, killed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{SESSION_ID}.jsonl"


def outcome(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return look_at(path).outcome


def test_an_end_is_its_outcome_and_without_one_it_was_killed(path) -> None:
    assert (outcome(path, completed().data), outcome(path, killed().data)) == ("completed", "killed")
    assert outcome(path, killed().data + b'{"seq":9,"kin') == "killed"
    assert (outcome(path, JournalBuilder().data), outcome(path, b"")) == ("killed", "empty")


def test_p13_somebody_who_only_looks_does_not_make_a_run_find_its_journal_taken(path, monkeypatch) -> None:
    path.write_bytes(killed().data)
    looker = os.open(path, os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    pauses: list[float] = []

    def looks_for_two_pauses(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 2:
            os.close(looker)

    monkeypatch.setattr(time, "sleep", looks_for_two_pauses)
    FileJournal.open(path).close()
    assert len(pauses) == 2


def test_p13_a_journal_that_stays_locked_is_waited_for_no_longer_than_50_ms(path, monkeypatch) -> None:
    path.write_bytes(killed().data)
    holder = FileJournal.open(path)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(SessionLockedError):
        FileJournal.open(path)
    assert sum(pauses) == pytest.approx(0.05)
    holder.close()


NO_PROCESS = 2**22 + 1
"""A number above the largest process id of Linux."""


@pytest.mark.parametrize(
    ("process_id", "ends", "is_named"),
    [(1, False, True), (1, True, False), (NO_PROCESS, False, False), (2**70, False, False)],
)
def test_only_a_process_that_may_have_it_open_is_named_as_the_holder(
    path, process_id, ends, is_named
) -> None:
    journal = JournalBuilder()
    journal.append(run_record(RequestShape("m", "", ()), "now", process_id))
    path.write_bytes((journal.ends() if ends else journal).data + b'{"seq":')
    assert holder_of(path) == (f"process {process_id}, since now" if is_named else "another process")
    path.write_bytes(b"")
    assert holder_of(path) == "another process"


def test_damage_is_told_with_its_line_and_what_stands_before_is_kept(path) -> None:
    lines = completed().data.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], lines[4].replace(b"c1", b"cX"), *lines[5:]]))
    look = look_at(path)
    assert (look.outcome, look.problem) == ("damaged", "line 5 does not match its checksum")
    assert (look.story.task, len(look.records)) == ("fix the failing test", 4)


def test_a_journal_that_cannot_be_opened_is_unreadable(tmp_path) -> None:
    directory = tmp_path / f"{SESSION_ID}.jsonl"
    directory.mkdir()
    assert look_at(directory).outcome == "unreadable"
    with pytest.raises(FileNotFoundError):
        look_at(tmp_path / "gone.jsonl")


def test_a_store_that_is_only_read_is_not_made(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the system's may hold sessions of others
    store = SessionStore.to_read({"HOME": str(tmp_path)})
    assert (store.root, list(store.all())) == (tmp_path / ".local" / "state" / "ralph" / "sessions", [])
    assert store.last_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    assert SessionStore.to_read({"RALPH_STATE_DIR": "/r", "HOME": "/h"}).root.parts[:2] == ("/", "r")
    named = SessionStore.to_read({"RALPH_STATE_DIR": "/r"}, tmp_path / "mine")
    assert named.root == tmp_path / "mine"
