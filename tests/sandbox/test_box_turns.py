"""The work for an earlier command is over before the work for a later one begins, and a disk that does not answer never
makes the main thread wait without end.
"""

from __future__ import annotations

from typing import Any, NoReturn, cast

import pytest

from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.sandbox import box_turns
from ralph.sandbox.box_turns import BoxTurns, SilentDiskError
from ralph.values.ports import SignalReceived
from ralph.values.shortage import ShortageError
from tests.fakes.box import FakeBox, note_of
from tests.patience import wait_until, within_s


@pytest.fixture
def waiter() -> InboxWaiter:
    return InboxWaiter(SystemClock())


@pytest.fixture
def turns_of(waiter, monkeypatch):
    def make(box: FakeBox, *, answers_within_s: float = 0.05) -> BoxTurns:
        monkeypatch.setattr(box_turns, "_ANSWERS_WITHIN_S", answers_within_s)
        return BoxTurns(cast("Any", box), "/", waiter, SystemClock())

    return make


def test_a_look_comes_after_the_thread_that_prepares_the_sandbox(turns_of) -> None:
    box = FakeBox(silent="prepare")
    turns = turns_of(box)
    turns.prepare_early()
    with pytest.raises(SilentDiskError, match="does not answer"):
        turns.before_call("test")
    assert box.done == []
    box.answers.set()
    turns_of(box, answers_within_s=within_s(60))
    turns.before_call("test")
    assert box.done == ["prepare", "look", "undo", "look"], "the command of the first look did not start"


def test_what_is_undone_too_late_is_told_with_the_next_command(turns_of) -> None:
    box = FakeBox("x", silent="undo")
    turns = turns_of(box)
    turns.before_call("test")
    assert "were not compared" in turns.after("test")
    with pytest.raises(SilentDiskError):
        turns.before_call("test")
    box.answers.set()
    turns_of(box, answers_within_s=within_s(60))
    turns.before_call("test")
    assert box.done[:2] == ["look", "undo"], "an earlier change is not a later command's"
    assert turns.after("test").split("\n")[0] == note_of("x")


def test_without_a_thread_the_main_thread_does_not_wait_for_a_silent_disk(turns_of, monkeypatch) -> None:
    box = FakeBox("x", silent="prepare")
    turns = turns_of(box)
    turns.prepare_early()

    def no_thread(*_arguments: object, **_options: object) -> NoReturn:
        raise ShortageError("thread")

    monkeypatch.setattr(box_turns, "_STOPS_WITHIN_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(box_turns, "start_job", no_thread)
        with pytest.raises(SilentDiskError):
            turns.before_call("test")
        assert box.done == []
    box.answers.set()
    turns_of(box, answers_within_s=within_s(60))
    turns.before_call("test")
    assert box.done == ["prepare", "look", "undo", "look"]


def test_a_signal_ends_the_wait_and_the_note_is_not_lost(turns_of, waiter) -> None:
    box = FakeBox("x", silent="undo")
    turns = turns_of(box, answers_within_s=within_s(60))
    turns.before_call("test")
    waiter.inbox.note_signal(15)
    with pytest.raises(SignalReceived):
        turns.after("test")
    box.answers.set()
    assert turns.after_stop() == note_of("x")


def test_without_a_working_directory_nothing_is_undone_and_no_command_is_said_to_run(turns_of) -> None:
    """Another directory may be in its place, with files of its own."""
    box = FakeBox("x")
    turns = turns_of(box, answers_within_s=within_s(60))
    turns.not_started()
    turns.before_call("test")
    turns.not_started()
    assert box.done == ["look", "not started"]
    assert turns.after("test") == ""


def test_a_command_that_does_not_start_is_compared_at_once(turns_of) -> None:
    """Otherwise the state directory would say that a command is running."""

    class Fails(FakeBox):
        def look(self) -> None:
            super().look()
            raise PermissionError

    box = Fails()
    with pytest.raises(PermissionError):
        turns_of(box, answers_within_s=within_s(60)).before({}, "test")
    wait_until(lambda: box.done == ["prepare", "look", "undo"])


def test_the_changes_since_a_killed_run_are_told_once_and_not_as_those_between_commands(turns_of) -> None:
    """A hook asks for the changes between commands, and must not take the note for the model."""
    box = FakeBox()
    box.after_kill = ("/x",)
    turns = turns_of(box, answers_within_s=within_s(60))
    assert turns.after_kill() == ("", False), "nothing was looked at"
    turns.before_call("test")
    assert turns.between() == ""
    note, is_news = turns.after_kill()
    assert "killed during a command" in note
    assert is_news
    assert turns.after_kill() == ("", False)
