"""A sandbox without a kernel, whose file system may not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ralph.sandbox.protected_changes import Undone, undone_note
from tests.patience import within_s

if TYPE_CHECKING:
    from collections.abc import Mapping


def note_of(path: str) -> str:
    """The note about the change of `path` that a `FakeBox` has undone."""
    return undone_note([Undone(path, "changed")], "/work")


class FakeBox:
    """Stands for a `CommandBox`, and for its `ProtectedFiles`."""

    confinement = None

    def __init__(self, undone: str = "", *, silent: str = "") -> None:
        """`silent` names the method that does not return before `answers` is set. `undone` is the path that each command
        changes.
        """
        self.answers = threading.Event()
        self.silent = silent
        self.done: list[str] = []
        """The names of the methods that have returned."""
        self._undone = undone
        self._has_changes = False
        self.between: tuple[Undone, ...] = ()
        self.after_kill: tuple[str, ...] = ()

    @property
    def protected(self) -> FakeBox:
        return self

    def _do(self, name: str) -> None:
        if name == self.silent:
            self.answers.wait(within_s(60))
        self.done.append(name)

    def prepare(self) -> None:
        self._do("prepare")

    def variables(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        return environment

    def look(self) -> None:
        self._do("look")
        self._has_changes = True

    def undo_changes(self) -> tuple[Undone, ...]:
        self._do("undo")
        had, self._has_changes = self._has_changes, False
        return (Undone(self._undone, "changed"),) if had and self._undone else ()

    def not_started(self) -> None:
        self._do("not started")
        self._has_changes = False

    def watch(self) -> None:
        self._do("watch")

    def end_watch(self) -> None:
        self._do("end watch")

    def refusals(self) -> tuple[str, ...]:
        return ()

    def denial_note(self, _output: str, _working_directory: str) -> str:
        self._do("denial")
        return "too late"

    def close(self) -> None:
        self.answers.set()
