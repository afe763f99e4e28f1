"""Keeps a run's protected files as they are: undoes the changes that commands have made to them, and finds out what
has changed since an earlier run was killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.sandbox.killed_command import CommandMark
from ralph.sandbox.protected_changes import changed_since_kill_note, undone_note
from ralph.sandbox.protected_snapshot import ProtectedSnapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.sandbox.protected_changes import Undone

# Directories in ralph's state: one for what commands wrote to protected files, and one for the description of
# protected files while a command runs.
_UNDONE = "undone"
_RUNNING = "running"


class ProtectedFiles:
    """The protected files of one run. Not thread-safe. All methods but `undone_between`, `after_kill` and `close` read the disk."""

    def __init__(self, roots: Sequence[str], git_directories: Sequence[str], state: str) -> None:
        """`roots` and `git_directories` are those of `ProtectedSnapshot`. `state` is ralph's state directory."""
        self._snapshot = ProtectedSnapshot(roots, git_directories, f"{state}/{_UNDONE}")
        self._mark = CommandMark(f"{state}/{_RUNNING}", (*roots, *self._snapshot.git_directories))
        self._is_watching = False
        self._may_have_changed = False
        """True between `look` and `undo_changes`: a command may have changed the files."""
        self._between: tuple[Undone, ...] = ()
        self._has_looked = False
        self._after_kill: tuple[str, ...] = ()

    def watch(self) -> None:
        """Call this if other processes, such as MCP servers, may change protected files between two commands. From
        then on, changes between commands are undone too.
        """
        if not self._is_watching:
            self._remember()
            self._is_watching = True

    def look(self) -> None:
        """Stores the state of the protected files. If `watch` was called, first undoes the changes since the last
        command. Must be called before each command.
        """
        if self._is_watching:
            self._between += self._snapshot.undo_changes()
        self._remember()
        self._may_have_changed = True

    def changed_since_kill(self, working_directory: str) -> str:
        """A note about the protected files that have changed since a command during which an earlier run was killed.
        Empty if there are none. May be called before the first `look`; `after_kill` returns the note too.
        """
        if (
            not self._has_looked
        ):  # another look would take the changes since the first one as the files' own state
            self._look()
        return changed_since_kill_note(self._after_kill, working_directory)

    def _remember(self) -> None:
        self._look()
        self._mark.begin(self._snapshot.known)

    def _look(self) -> None:
        self._snapshot.look()
        if not self._has_looked:
            self._has_looked = True
            self._after_kill = self._mark.changed_since_kill(
                self._snapshot.known, self._snapshot.git_directories
            )

    def undo_changes(self, working_directory: str) -> str:
        """Undoes the changes that the command has made to protected files since the last `look`. Returns a note for
        the model. The note is empty if there were no changes, and at a second call for the same command.
        """
        if not self._may_have_changed:
            return ""
        undone = self._snapshot.undo_changes()
        self._may_have_changed = False
        self._mark.end()
        if self._is_watching:
            self._remember()
        return undone_note(undone, working_directory)

    def not_started(self) -> None:
        """Must be called if no command has started since `look`. No later change is a command's."""
        self._may_have_changed = False
        self._mark.end()

    def undone_between(self, working_directory: str) -> str:
        """A note about changes to protected files that no command of this run made, and that `look` has undone since
        the last call of this method. Empty if there were no such changes.
        """
        undone, self._between = self._between, ()
        return undone_note(undone, working_directory, is_between=True)

    def after_kill(self, working_directory: str) -> str:
        """The note of `changed_since_kill`. Reads no disk. Empty before the first `look`, and at a second call."""
        paths, self._after_kill = self._after_kill, ()
        return changed_since_kill_note(paths, working_directory)

    def end_watch(self, working_directory: str) -> str:
        """Undoes the changes to protected files since the last command. Must be called after the MCP servers have
        ended. Returns the note that `undone_between` returns.
        """
        if self._is_watching:
            self._between += self._snapshot.undo_changes()
            self._mark.end()
        return self.undone_between(working_directory)

    def close(self) -> None:
        """Removes the description of the files from ralph's state, unless changes may not be undone yet."""
        self._mark.close()
