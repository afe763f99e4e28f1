"""What a journal is found to be, by its content and by who has it open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ralph.effects.sessions.journal import FileJournal
from ralph.effects.sessions.looking import is_locked, look_at
from ralph.effects.sessions.store import SessionStore
from tests.session_journals import SESSION_ID, Told, completed, killed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{SESSION_ID}.jsonl"


def outcome(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return look_at(path).outcome


def test_an_end_is_its_outcome_and_without_one_it_was_killed(path: Path) -> None:
    assert outcome(path, completed().data) == "completed"
    assert outcome(path, killed().data) == "killed"
    assert outcome(path, killed().data + b'{"seq":9,"kin') == "killed"
    assert outcome(path, Told().data) == "killed"
    assert outcome(path, b"") == "empty"


def test_a_journal_without_an_end_that_is_open_is_running(path: Path) -> None:
    path.write_bytes(killed().data)
    journal = FileJournal.open(path)
    assert look_at(path).outcome == "running"
    journal.close()
    assert look_at(path).outcome == "killed"


def test_looking_leaves_no_lock_behind(path: Path) -> None:
    path.write_bytes(killed().data)
    look_at(path)
    assert not is_locked(path)
    FileJournal.open(path).close()


def test_damage_is_told_with_its_line_and_what_stands_before_is_kept(path: Path) -> None:
    lines = completed().data.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], lines[4].replace(b"c1", b"cX"), *lines[5:]]))
    look = look_at(path)
    assert (look.outcome, look.problem) == ("damaged", "line 5 does not match its checksum")
    assert look.history.task == "fix the failing test"
    assert len(look.records) == 4


def test_a_journal_that_cannot_be_opened_is_unreadable(tmp_path: Path) -> None:
    directory = tmp_path / f"{SESSION_ID}.jsonl"
    directory.mkdir()
    assert look_at(directory).outcome == "unreadable"
    with pytest.raises(FileNotFoundError):
        look_at(tmp_path / "gone.jsonl")


def test_a_store_that_is_only_read_is_not_made(tmp_path: Path) -> None:
    store = SessionStore.to_read({"HOME": str(tmp_path)})
    assert store.root == tmp_path / ".local" / "state" / "ralph" / "sessions"
    assert list(store.all()) == []
    assert store.last_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    assert SessionStore.to_read({"RALPH_STATE_DIR": "/r", "HOME": "/h"}).root.parts[:2] == ("/", "r")
    named = SessionStore.to_read({"RALPH_STATE_DIR": "/r"}, tmp_path / "mine")
    assert named.root == tmp_path / "mine"
