"""Tests which journals each place has, and which of them a run would resume."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING

import pytest

from ralph.sessions.journal import FileJournal
from ralph.sessions.looking import last_resumable, look_at, look_to_list
from ralph.sessions.store import SessionStore
from ralph.values.ports import JournalError
from tests.sessions.session_journals import JournalBuilder, completed

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_MESSAGE = JournalBuilder().run().data


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return written(tmp_path, "older", completed().data, 1)


def written(root: Path, name: str, data: bytes, at_s: float) -> Path:
    journal = SessionStore(root).create(name, root)
    journal.close()
    journal.path.write_bytes(data)
    os.utime(journal.path, (at_s, at_s))
    return journal.path


@pytest.mark.parametrize(
    ("data", "continues"),
    [
        (b"", False),
        (WITHOUT_MESSAGE, False),
        (WITHOUT_MESSAGE + b'{"seq":2,"kind":"user","content":[{"type":"te', False),
        (JournalBuilder().run().prompt("x").data, True),
        (JournalBuilder().run().prompt("x").data[:-1], True),
        (JournalBuilder().run().prompt("x" * 200_000).data, True),
        (JournalBuilder().run().prompt("x" * 200_000).data[:-2], False),
        (JournalBuilder().run(model='"kind":"user"').data, False),
    ],
)
def test_the_newest_that_has_a_whole_message_is_resumed(tmp_path, older, data, continues) -> None:
    newer = written(tmp_path, "newer", data, 2)
    assert last_resumable(SessionStore(tmp_path), tmp_path) == (newer if continues else older)


def test_what_is_no_file_is_not_passed_over_in_silence(tmp_path, older) -> None:
    newer, store = older.with_name("newer.jsonl"), SessionStore(tmp_path)
    newer.mkdir()
    assert last_resumable(store, tmp_path) == older
    for cwd in (tmp_path, None):
        assert [*store.skipped(cwd)] == [f"skipped {newer}: it is not a regular file"]


def test_a_file_that_took_the_place_of_a_listed_one_is_not_waited_for(tmp_path, older) -> None:
    older.unlink()
    os.mkfifo(older)
    assert look_at(older).problem == look_to_list(older).problem == "it is not a regular file"
    with pytest.raises(JournalError, match="it is not a regular file"):
        FileJournal.open(older)


def test_journals_of_all_its_places_are_found(tmp_path) -> None:
    places = tmp_path / "one", tmp_path / "two"
    for place, name in zip(places, ("a", "b"), strict=True):
        SessionStore(place).create(name, tmp_path).close()
    store = SessionStore(places[0], others=places[1:])
    assert [path.stem for path in store.of(tmp_path)] == ["a", "b"]
    assert [path.stem for path in store.starting_with("B")] == ["b"]
    assert store.create("c", tmp_path).path.is_relative_to(places[0])


def test_a_store_that_cannot_be_listed_is_not_an_empty_one(tmp_path, older) -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, usual[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as error:
            list(SessionStore(tmp_path).all())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert (error.value.errno, list(SessionStore(tmp_path).all())) == (errno.EMFILE, [older])


def test_no_journal_is_written_where_a_link_in_the_work_leads(tmp_path, monkeypatch) -> None:
    work, added, elsewhere = (tmp_path / name for name in ("work", "added", "elsewhere"))
    for directory in (work, added, elsewhere, work / "real"):
        directory.mkdir()
    for link in (work / "s", added / "s", tmp_path / "of-user"):
        link.symlink_to(elsewhere)
    works = (work, added)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for named, variables in (
        (work / "s", {}),
        (work / "s/below", {}),
        (added / "s", {}),
        (None, {"RALPH_STATE_DIR": str(work / "s")}),
    ):
        with pytest.raises(JournalError, match="/s is a link that leads out of its repository"):
            SessionStore.for_user(variables, named, works)
    store = SessionStore.for_user({"XDG_STATE_HOME": str(work / "s")}, None, works)
    assert store.root.parent == tmp_path
    assert "/s is a link that leads out" in (store.notice or "")
    assert [*elsewhere.iterdir()] == []
    assert SessionStore.for_user({}, tmp_path / "of-user/x", works).notice is None
    store = SessionStore.for_user({}, work / "real", works)
    store.place_of(work).symlink_to(elsewhere)
    with pytest.raises(JournalError, match="is a link that leads out of its repository"):
        store.create("x", work)
    assert [path.name for path in elsewhere.iterdir()] == ["x"], "the user's own link is followed"
