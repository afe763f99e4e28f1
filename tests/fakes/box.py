"""A sandbox without a kernel, whose file system may not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.patience import within_s

if TYPE_CHECKING:
    from collections.abc import Mapping


class FakeBox:
    """Stands for a `CommandBox`, and for its `ProtectedFiles`."""

    confinement = None

    def __init__(self, undone: str = "", *, silent: str = "") -> None:
        """`silent` names the method that does not return before `answers` is set. `undone` is the note about changes of
        each command.
        """
        self.answers = threading.Event()
        self.silent = silent
        self.done: list[str] = []
        """The names of the methods that have returned."""
        self._undone = undone
        self._has_changes = False

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

    def undo_changes(self, _working_directory: str) -> str:
        self._do("undo")
        had, self._has_changes = self._has_changes, False
        return self._undone if had else ""

    def not_started(self) -> None:
        self._do("not started")
        self._has_changes = False

    def after_kill(self, _working_directory: str) -> str:
        return ""

    def undone_between(self, _working_directory: str) -> str:
        return ""

    def watch(self) -> None:
        self._do("watch")

    def end_watch(self, _working_directory: str) -> str:
        return ""

    def refusals(self) -> tuple[str, ...]:
        return ()

    def denial_note(self, _output: str, _working_directory: str) -> str:
        self._do("denial")
        return "too late"

    def close(self) -> None:
        self.answers.set()
