"""Tests which folder belongs to a loop, and which of them is the newest."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from ralph.loop.record import ALWAYS_KEPT, KEPT_DAYS, LoopStore, RecordError
from ralph.loop.state import LoopState
from ralph.loop.values import LoopPlan
from ralph.values.outcome import CannotError, Outcome

if TYPE_CHECKING:
    from pathlib import Path

STATE = LoopState(LoopPlan("/work", "/work"), "2026-11-21T12:00:00+00:00", 4711)


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch) -> None:
    """The system's may hold loops of the user, which a test would move away."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def store(tmp_path: Path, work: Path) -> LoopStore:
    return LoopStore.for_user({"HOME": str(tmp_path)}, work)


def test_each_loop_has_a_private_folder_and_the_last_one_with_a_record_is_the_newest(store) -> None:
    first, second = store.begin(), store.begin()
    second.save(STATE)
    first.save(STATE)
    store.begin()  # killed before its first record
    os.utime(second.path, (1, 1))  # whatever the clock says
    assert store.newest().path == second.path
    assert stat.S_IMODE(second.folder.stat().st_mode) == 0o700
    assert store.place.parent == store.roots[0]


def test_a_new_loop_removes_an_earlier_one_only_if_many_followed_it_and_it_is_old(store) -> None:
    folders = [store.begin().folder for _ in range(ALWAYS_KEPT + 2)]
    assert all(folder.exists() for folder in folders)
    long_ago_s = folders[-1].stat().st_mtime - KEPT_DAYS * 86_400 - 60
    for folder in (folders[1], folders[-1]):
        os.utime(folder, (long_ago_s, long_ago_s))
    store.begin()
    assert [folder.exists() for folder in folders] == [True, False] + [True] * ALWAYS_KEPT


def test_a_directory_has_one_place_by_whatever_name_and_another_one_another(tmp_path, work, store) -> None:
    (tmp_path / "link").symlink_to(work)
    (tmp_path / "other").mkdir()
    environment = {"HOME": str(tmp_path)}
    assert LoopStore.to_read(environment, tmp_path / "link").place == store.place
    assert LoopStore.to_read(environment, tmp_path / "other").place != store.place


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"RALPH_STATE_DIR": "{}/mine", "HOME": "{}"}, "mine/loops"),
        ({"XDG_STATE_HOME": "{}/xdg", "HOME": "{}"}, "xdg/ralph/loops"),
        ({"HOME": "{}"}, ".local/state/ralph/loops"),
    ],
)
def test_it_lies_beside_the_sessions(tmp_path, work, environment, root) -> None:
    told = {name: value.format(tmp_path) for name, value in environment.items()}
    store = LoopStore.for_user(told, work)
    assert store.roots[0] == tmp_path / root
    assert (store.roots[0].parent / "sessions").is_dir()


def test_no_record_is_made_where_a_link_in_the_work_leads(tmp_path, work) -> None:
    (tmp_path / "elsewhere").mkdir()
    (work / "s").symlink_to(tmp_path / "elsewhere")
    for place in (work / "s", work / "state"):
        with pytest.raises(CannotError, match="commands may write where"):
            LoopStore.for_user({"RALPH_STATE_DIR": str(place)}, work)
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_without_a_home_it_lies_within_the_temporary_place_which_is_told(tmp_path, work, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    store = LoopStore.for_user({}, work)
    assert store.roots[0] == tmp_path / f"ralph-sessions-{os.getuid()}" / "loops"
    assert store.notice is not None
    assert store.notice.startswith("the loop's record and its sessions are kept in ")
    store.begin().save(STATE)
    again = LoopStore.to_read({"HOME": str(tmp_path / "back")}, work)
    assert again.newest().load() == STATE


def test_a_home_that_is_a_file_is_none(tmp_path, work, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    home = tmp_path / "file"
    home.write_text("")
    store = LoopStore.for_user({"HOME": str(home)}, work)
    with pytest.raises(RecordError, match=r"^there is no loop in "):
        store.newest()
    store.begin().save(STATE)
    assert LoopStore.to_read({"HOME": str(home)}, work).newest().load() == STATE


def test_where_nothing_is_nothing_is_made(tmp_path, work) -> None:
    store = LoopStore.to_read({"HOME": str(tmp_path)}, work)
    with pytest.raises(RecordError, match=rf"^there is no loop in {work} ") as caught:
        store.newest()
    assert caught.value.outcome is Outcome.USAGE
    assert not (tmp_path / ".local").exists()


def store_of(home: Path, directory: Path) -> LoopStore:
    directory.mkdir(exist_ok=True)
    return LoopStore.for_user({"HOME": str(home)}, directory)


def test_the_loops_of_the_only_other_directory_are_taken_over_and_once(tmp_path, store) -> None:
    store.begin().save(STATE)
    store.begin().save(STATE)
    (store.place / "lock").touch()
    here = store_of(tmp_path, tmp_path / "here")
    (here.place / "lock").touch()
    here.take_over()
    here.take_over()
    assert here.newest().folder == here.place / "0002"
    assert not store.place.exists()
    assert {path.name for path in here.place.iterdir()} == {"0001", "0002", "lock"}


def test_loops_of_several_directories_are_not_guessed_about(tmp_path, store) -> None:
    here = store_of(tmp_path, tmp_path / "here")
    here.take_over()  # nobody has a loop
    store.begin().save(STATE)
    store_of(tmp_path, tmp_path / "third").begin().save(STATE)
    with pytest.raises(RecordError, match="the loops of 2 directories") as refused:
        here.take_over()
    assert refused.value.outcome is Outcome.USAGE
    here.begin().save(STATE)
    here.take_over()  # its own loops come first
    assert len(here.all_records(of_all=True)) == 3
