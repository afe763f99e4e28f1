"""The work for an earlier command is over before the work for a later one begins, and a disk that does not answer never
makes the main thread wait without end. Entries that come or go in watched directories are noticed.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.sandbox import disk_work
from ralph.sandbox.disk_work import SilentDiskError
from ralph.sandbox.landlock import WatchedDirectories
from ralph.sandbox.protected_changes import UndoResult
from ralph.values.outcome import ShortageError
from ralph.values.ports import SignalReceived
from tests.fakes.box import FakeBox, no_box, note_of
from tests.patience import wait_until, within_s

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def waiter() -> InboxWaiter:
    return InboxWaiter(SystemClock())


@pytest.fixture
def answers_within(monkeypatch):
    def wait(limit_s: float) -> None:
        monkeypatch.setattr(disk_work, "_ANSWERS_WITHIN_S", limit_s)

    return wait


def test_a_look_comes_after_the_thread_that_prepares_the_sandbox(answers_within) -> None:
    box = FakeBox(silent="prepare")
    answers_within(0.05)
    box.prepare_early()
    with pytest.raises(SilentDiskError, match="does not answer"):
        box.before({}, "test")
    assert box.done == []
    box.answers.set()
    answers_within(within_s(60))
    box.before({}, "test")
    assert box.done == ["prepare", "look", "prepare", "undo", "look", "prepare"], (
        "the command of the first look did not start"
    )


def test_the_box_is_made_after_a_look_which_may_take_its_mounts_away() -> None:
    """The kernel removes what was mounted on a file that a look replaces."""
    box = FakeBox()
    box.before({}, "test")
    assert box.done == ["look", "prepare"]


def test_what_is_undone_too_late_is_told_with_the_next_command(answers_within) -> None:
    box = FakeBox("x", silent="undo")
    answers_within(0.05)
    box.before({}, "test")
    assert "were not compared" in box.after("test")
    with pytest.raises(SilentDiskError):
        box.before({}, "test")
    box.answers.set()
    answers_within(within_s(60))
    box.before({}, "test")
    assert box.done[:3] == ["look", "prepare", "undo"], "an earlier change is not a later command's"
    assert box.after("test").split("\n")[0] == note_of("x")


def test_without_a_thread_the_main_thread_does_not_wait_for_a_silent_disk(
    answers_within, monkeypatch
) -> None:
    box = FakeBox("x", silent="prepare")
    answers_within(0.05)
    box.prepare_early()

    def no_thread(*_arguments: object, **_options: object) -> NoReturn:
        raise ShortageError("thread")

    monkeypatch.setattr(disk_work, "_STOPS_WITHIN_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(disk_work, "start_job", no_thread)
        with pytest.raises(SilentDiskError):
            box.before({}, "test")
        assert box.done == []
    box.answers.set()
    answers_within(within_s(60))
    box.before({}, "test")
    assert box.done == ["prepare", "look", "prepare", "undo", "look", "prepare"]


def test_a_signal_ends_the_wait_and_the_note_is_not_lost(waiter) -> None:
    box = FakeBox("x", silent="undo", waiter=waiter)
    box.before({}, "test")
    waiter.inbox.note_signal(15)
    with pytest.raises(SignalReceived):
        box.after("test")
    box.answers.set()
    assert box.after_stop() == note_of("x")


def test_without_a_working_directory_nothing_is_undone_and_no_command_is_said_to_run() -> None:
    """Another directory may be in its place, with files of its own."""
    box = FakeBox("x")
    box.not_started()
    box.before({}, "test")
    box.not_started()
    assert box.done == ["look", "prepare", "not started"]
    assert box.after("test") == ""


def test_a_command_that_does_not_start_is_compared_at_once(monkeypatch) -> None:
    """Otherwise the state directory would say that a command is running."""
    box = FakeBox()

    def fails() -> NoReturn:
        box.do("look")
        raise PermissionError

    monkeypatch.setattr(box.files, "look", fails)
    with pytest.raises(PermissionError):
        box.before({}, "test")
    wait_until(lambda: box.done == ["look", "undo"])


def test_the_changes_since_a_killed_run_are_told_once_and_not_as_those_between_commands() -> None:
    """A hook asks for the changes between commands, and must not take the note for the model."""
    box = FakeBox()
    box.files.after_kill = ("/x",)
    assert box.told() == ([], []), "nothing was looked at"
    box.before({}, "test")
    assert box.between() == ""
    told, news = box.told()
    assert "broke off during a command" in told[0]
    assert (news, box.told()) == (told, ([], []))


def test_people_are_told_once_what_could_not_be_undone(monkeypatch) -> None:
    box = FakeBox("x")
    failed = UndoResult("/x", "changed", why_not="Permission denied")
    monkeypatch.setattr(box.files, "undo_changes", lambda: (failed,))
    box.before({}, "test")
    note = box.after("test")
    assert "could not be undone: /x (Permission denied)" in note
    assert (box.told(), box.told()) == (([], [note]), ([], []))


def test_a_plan_without_a_sandbox_leaves_a_command_as_it_is() -> None:
    box = no_box()
    assert box.confine() is None
    assert box.before({"A": "b"}, "test") == {"A": "b"}
    assert (box.after("test"), box.after_stop(), box.end_watch(), box.told()) == ("", "", "", ([], []))
    process = box.start(["/bin/sh", "-c", "exit 3"])
    assert process.wait() == 3
    box.close()


@pytest.mark.parametrize(
    ("mounted", "are_all"),
    [
        ({"/": "ext4", "/tmp": "tmpfs", "/proc": "proc", "/run/user/1/doc": "fuse.portal"}, True),
        ({"/": "ext4", "/home": "nfs4"}, False),
        ({"/": "virtiofs"}, False),
    ],
)
def test_a_disk_that_may_not_answer_is_noticed(monkeypatch, mounted, are_all) -> None:
    monkeypatch.setattr(disk_work, "mount_points", lambda: mounted)
    disks = disk_work.OwnDisks()
    try:
        assert [disks.are_all(), disks.are_all()] == [are_all, are_all]
    finally:
        disks.close()


def test_work_is_done_on_this_thread_where_all_disks_are_own(monkeypatch) -> None:
    clock = SystemClock()
    mounted = {"/": "ext4"}
    monkeypatch.setattr(disk_work, "mount_points", lambda: mounted)
    work = disk_work.DiskWork(InboxWaiter(clock), clock, disk_work.OwnDisks())
    assert work.result_of(threading.get_ident, "x") == threading.get_ident()
    work.close()
    mounted["/work"] = "nfs"
    assert work.result_of(threading.get_ident, "x") != threading.get_ident()
    work.close()


def replace_by_another(top: Path) -> None:
    (top / "other").mkdir()
    (top / "there").rename(top / "old")
    (top / "other").rename(top / "there")


def set_the_time_back(top: Path) -> None:
    status = (top / "there").stat()
    (top / "there/new").touch()
    os.utime(top / "there", ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = {
    "a new entry": ("there", lambda top: (top / "there/new").touch()),
    "a removed entry": ("there", lambda top: (top / "there/old").unlink()),
    "another directory": ("there", replace_by_another),
    "a new entry whose time was set back": ("there", set_the_time_back),
    "the directory itself": ("missing", lambda top: (top / "missing").mkdir()),
    "a directory far above": ("a/b/c", lambda top: (top / "a").mkdir()),
    "a directory above, where everybody may write": ("shared/a/b", lambda top: (top / "shared/a").mkdir()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(tmp_path, change) -> None:
    directory, make = CHANGES[change]
    (tmp_path / "there").mkdir()
    (tmp_path / "there/old").touch()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    watched = WatchedDirectories()
    watched.add(str(tmp_path / directory))
    assert not watched.have_changed()
    make(tmp_path)
    assert watched.have_changed()


def test_what_others_make_where_everybody_may_write_is_no_change(tmp_path) -> None:
    tmp_path.chmod(0o1777)
    watched = WatchedDirectories()
    watched.add(str(tmp_path / "a/b"))
    (tmp_path / "other").mkdir()
    assert not watched.have_changed()
