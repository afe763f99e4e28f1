"""A sandbox without a kernel, whose file system may not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.sandbox.box_plan import BoxPlan, Means
from ralph.sandbox.command_box import CommandBox
from ralph.sandbox.detection import no_means
from ralph.sandbox.disk_work import DiskWork
from ralph.sandbox.landlock import Support
from ralph.sandbox.protected_changes import UndoResult, undone_note
from tests.patience import within_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.sandbox.protected_files import ProtectedFiles


def note_of(path: str) -> str:
    """The note about the change of `path` that a `FakeBox` has undone."""
    return undone_note([UndoResult(path, "changed")], "/work")


NO_BOX = BoxPlan(no_means("--sandbox off"))
"""The plan of a run without a sandbox."""


def no_box() -> CommandBox:
    """A `CommandBox` that leaves commands as they are. An error is raised if it looks for places."""
    return CommandBox(NO_BOX, ("/work",), {}, cast("Any", None))


class FakeBox(CommandBox):
    """A sandbox that confines nothing, with protected files that lie nowhere. Its work on the disk is really queued."""

    def __init__(self, undone: str = "", *, silent: str = "", waiter: InboxWaiter | None = None) -> None:
        """`silent` names the method that does not return before `answers` is set. `undone` is the path that each command
        changes.
        """
        self.answers = threading.Event()
        self.silent = silent
        self.done: list[str] = []
        """The names of the methods that have returned."""
        self.files = FakeFiles(self, undone)
        clock = SystemClock()
        disk = DiskWork(waiter or InboxWaiter(clock), clock)
        super().__init__(BoxPlan(Means(Support(0))), ("/work",), {}, cast("Any", None), disk=disk)

    def protected(self) -> ProtectedFiles:
        self._protected = cast("Any", self.files)
        return self._protected

    def do(self, name: str) -> None:
        if name == self.silent:
            self.answers.wait(within_s(60))
        self.done.append(name)

    def prepare(self) -> None:
        self.do("prepare")

    def variables(self, environment: Mapping[str, str], *, has_caches: bool = True) -> dict[str, str]:
        return dict(environment)

    def confine(self, **_options: object) -> None:
        return None

    def denial_note(self, _output: str, _working_directory: str) -> str:
        self.do("denial")
        return "too late"

    def close(self) -> None:
        self.answers.set()


class FakeFiles:
    """Stands for `ProtectedFiles`."""

    def __init__(self, box: FakeBox, undone: str) -> None:
        self._box = box
        self._undone = undone
        self._has_changes = False
        self.between: tuple[UndoResult, ...] = ()
        self.after_kill: tuple[str, ...] = ()

    def look(self) -> None:
        self._box.do("look")
        self._has_changes = True

    def undo_changes(self) -> tuple[UndoResult, ...]:
        self._box.do("undo")
        had, self._has_changes = self._has_changes, False
        return (UndoResult(self._undone, "changed"),) if had and self._undone else ()

    def not_started(self) -> None:
        self._box.do("not started")
        self._has_changes = False

    def watch(self) -> None:
        self._box.do("watch")

    def end_watch(self) -> None:
        self._box.do("end watch")
