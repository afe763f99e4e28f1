"""Does the sandbox's work on the disk before and after each command: makes the sandbox, and compares the protected
files. A file system that does not answer then costs the command and not the run.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ralph.machine.starting import start_job
from ralph.sandbox.protected_changes import changed_since_kill_note, undone_note
from ralph.values.ports import TIMED_OUT
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.machine.starting import ThreadJob
    from ralph.sandbox.command_box import CommandBox
    from ralph.sandbox.protected_files import ProtectedFiles
    from ralph.values.ports import Clock, Waiter

T = TypeVar("T")

# A network file system that is away for longer than this is not there.
_ANSWERS_WITHIN_S = 30.0
# A stopped run ends soon, and a change that is half undone would stay.
_STOPS_WITHIN_S = 2.0
_SILENT = "a file system that the sandbox must look at (protected files, places with secrets) does not answer"
_NOT_COMPARED = (
    "[the protected files were not compared, because their file system does not answer; ralph undoes changes to them "
    "before the next command]"
)


class SilentDiskError(TimeoutError):
    """A file system did not answer in time, so the command must not start."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, _SILENT)

    def __str__(self) -> str:
        return _SILENT


class BoxTurns:
    """The work for the commands of one sandbox. Each piece of work is a job on a thread, which begins when all
    earlier pieces have ended. So no piece for an earlier command runs during a later command.

    All methods must be called on the main thread. They do nothing if there is no sandbox.
    """

    def __init__(self, box: CommandBox | None, directory: str, waiter: Waiter, clock: Clock) -> None:
        """`directory` is the working directory of the commands."""
        self._box = box
        self._directory = directory
        self._waiter = waiter
        self._clock = clock
        self._last: ThreadJob | None = None
        self._waiting: list[Callable[[], None]] = []
        """Pieces of work for which there was no thread."""
        self._files: ProtectedFiles | None = None
        """The protected files, or None before the first look at them."""
        self._notes: list[str] = []
        """Notes about undone changes that no method has returned yet."""
        self._is_kill_told = False
        """Whether `look_after_kill` has returned a note."""

    def prepare_early(self) -> None:
        """Begins to make the sandbox. Does not wait, and raises no error: `before` raises it."""
        if self._box is not None:
            self._begin(self._box.prepare)

    def before(self, environment: Mapping[str, str], waiting_for: str) -> Mapping[str, str]:
        """Makes the sandbox, and stores the state of the protected files. Must be called before each command. Returns
        the command's environment, which is made from `environment`. `waiting_for` is the text of a heartbeat.

        Raises OSError, SilentDiskError and Interrupted. The command must not start then.
        """

        def make_and_look(box: CommandBox) -> Mapping[str, str]:
            variables = _made(box, environment)
            self._files_of(box).look()
            return variables

        return self._looked(make_and_look, environment, waiting_for)

    def before_call(self, waiting_for: str) -> None:
        """Stores the state of the protected files, as `before` does. Must be called before each call of a process that
        runs already, such as an MCP server.
        """
        self._looked(lambda box: self._files_of(box).look(), None, waiting_for)

    def _looked(self, look: Callable[[CommandBox], T], without: T, waiting_for: str) -> T:
        try:
            return self._result_of(look, without, waiting_for)
        except BaseException:
            self._begin(self._compare)  # the command does not start, so no later change is the command's
            raise

    def _files_of(self, box: CommandBox) -> ProtectedFiles:
        self._files = box.protected
        return self._files

    def after(self, waiting_for: str) -> str:
        """Undoes the changes that the command has made to protected files. Must be called when the command has ended.
        Returns a note for the model, which is empty if there were no changes.

        Raises Interrupted. `after_stop` returns the note then.
        """
        try:
            self._result_of(lambda _box: self._compare(), None, waiting_for)
        except SilentDiskError:
            return _NOT_COMPARED
        return self._taken_notes()

    def after_stop(self) -> str:
        """Does the same as `after` when Interrupted or another error was raised. Waits for at most 2 seconds, and is
        not interrupted.
        """
        if self._box is None:
            return ""
        self._join(self._begin(self._compare))
        return self._taken_notes()

    def not_started(self) -> None:
        """Must be called instead of `after` if the command was not started because the working directory is gone.
        Undoes nothing, because another directory may be in its place. Waits for at most 2 seconds.
        """
        if self._files is not None:
            self._join(self._begin(self._files.not_started))

    def between(self) -> str:
        """A note about changes to protected files that no command of this run made. Must be called after `after` or
        `after_stop`. Empty if there were no such changes.
        """
        if self._files is None:
            return ""
        undone, self._files.between = self._files.between, ()
        return undone_note(undone, self._directory, is_between=True)

    def after_kill(self) -> tuple[str, bool]:
        """A note for the model about the protected files that have changed since an earlier run was killed, and
        whether people should read the note too: `look_after_kill` has not returned it. Must be called when the first
        command has ended. Empty if there are none, and at a second call.
        """
        if self._files is None or self._files.after_kill is None:
            return "", False
        paths, self._files.after_kill = self._files.after_kill, ()
        note = changed_since_kill_note(paths, self._directory)
        return note, bool(note) and not self._is_kill_told

    def look_after_kill(self, waiting_for: str) -> str:
        """Returns the note of `after_kill` for people, at the start of a run. Empty if the disk cannot be read. Raises Interrupted."""
        no_paths: tuple[str, ...] = ()
        try:
            paths = self._result_of(
                lambda box: self._files_of(box).changed_since_kill(), no_paths, waiting_for
            )
        except OSError:  # the first command raises it
            return ""
        self._is_kill_told = bool(paths)
        return changed_since_kill_note(paths, os.path.realpath(self._directory))

    def ready(self, environment: Mapping[str, str], waiting_for: str) -> Mapping[str, str]:
        """Makes the sandbox and returns the environment, as `before` does, but does not look at the protected files."""
        return self._result_of(lambda box: _made(box, environment), environment, waiting_for)

    def watch(self, waiting_for: str) -> None:
        """Must be called before a process starts that runs during several commands, such as an MCP server. From then
        on, changes between two commands are undone too. Raises OSError, SilentDiskError and Interrupted.
        """
        self._result_of(lambda box: self._files_of(box).watch(), None, waiting_for)

    def end_watch(self) -> str:
        """Undoes the changes to protected files since the last command. Must be called after the MCP servers have
        ended. Waits for at most 2 seconds. Returns a note for people, which is empty if there were no changes.
        """
        if self._files is not None:
            self._join(self._begin(self._files.end_watch))
        return self.between()

    def _compare(self) -> None:
        if self._files is not None:
            note = undone_note(self._files.undo_changes(), os.path.realpath(self._directory))
            self._notes += [note] if note else []

    def _taken_notes(self) -> str:
        taken = []
        while self._notes:  # a thread may add one meanwhile
            taken.append(self._notes.pop(0))
        return "\n".join(taken)

    def _result_of(self, work: Callable[[CommandBox], T], without: T, waiting_for: str) -> T:
        """Begins a piece of work, waits for its end, and returns its result. Returns `without` if there is no sandbox.
        Raises the error that `work` raises, SilentDiskError and Interrupted.
        """
        box = self._box
        if box is None:
            return without
        mailbox = self._waiter.mailbox()

        def do() -> None:
            try:
                mailbox.put((work(box), None))
            except BaseException as failed:  # noqa: BLE001 - raised where somebody waits for it
                mailbox.put((None, failed))

        self._begin(do)
        until_s = self._clock.now_s() + _ANSWERS_WITHIN_S
        try:
            found = self._waiter.wait(mailbox, until_s=until_s, waiting_for=waiting_for)
        finally:
            mailbox.close()
        if found is TIMED_OUT:
            raise SilentDiskError
        result, failed = found
        if failed is not None:
            raise failed
        done: T = result
        return done

    def _begin(self, work: Callable[[], None]) -> ThreadJob | None:
        """Starts a thread for a piece of work and returns it. If the machine has no thread left, does the work on the
        current thread and returns None. If an earlier piece of work has not ended after 2 seconds then, the next call
        does this piece first.
        """
        earlier, pieces = self._last, [*self._waiting, work]

        def do() -> None:
            if earlier is not None:
                earlier.join()
            for piece in pieces:
                # nobody waits for it, or `_result_of` raises it
                with suppress(OSError, ImportError, MemoryError):
                    piece()

        self._waiting = []
        try:
            self._last = start_job(do, name="sandbox")
        except ShortageError:
            self._join(earlier)
            if earlier is not None and earlier.is_alive():
                self._waiting = pieces
            else:
                do()
            return None
        return self._last

    @staticmethod
    def _join(thread: ThreadJob | None) -> None:
        if thread is not None:
            thread.join(_STOPS_WITHIN_S)


def _made(box: CommandBox, environment: Mapping[str, str]) -> Mapping[str, str]:
    box.prepare()
    return box.variables(environment)
