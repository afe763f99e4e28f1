"""Two threads never make parts of the sandbox at the same time, and none waits for one that waits for it."""

from __future__ import annotations

from threading import Event
from typing import Any, cast

import pytest

from ralph.sandbox.command_box import CommandBox
from tests.patience import PATIENCE_S


class Facts:
    """Stands for the protected files, of which there are none."""

    known: Any = ()
    git_directories = ()

    def look(self) -> None: ...

    def begin(self, known: object) -> None: ...

    def changed_since_kill(self, known: object, git_directories: object) -> tuple[str, ...]:
        del known, git_directories
        return ()


@pytest.fixture
def box() -> CommandBox:
    made = CommandBox(cast("Any", None), cast("Any", None))
    vars(made).update(_snapshot=Facts(), _mark=Facts())
    return made


def test_a_look_waits_for_the_thread_that_prepares_the_sandbox(box: CommandBox) -> None:
    may_end, done = Event(), list[str]()

    def prepare() -> None:
        assert may_end.wait(PATIENCE_S)
        done.append("prepared")

    box.in_turn(prepare)
    box.in_turn(lambda: done.append("second"))
    may_end.set()
    box.look()
    assert done == ["prepared", "second"]


def test_a_look_in_turn_does_not_wait_for_the_thread_behind_it(box: CommandBox) -> None:
    second_is_there, failed = Event(), list[BaseException]()

    def look() -> None:
        assert second_is_there.wait(PATIENCE_S)
        try:
            box.look()
        except OSError as error:
            failed.append(error)

    box.in_turn(look)
    box.in_turn(lambda: None)
    second_is_there.set()
    box.look()
    assert not failed
