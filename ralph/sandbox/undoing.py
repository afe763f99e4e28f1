"""Undoes changes that commands made to protected files. Changed files are restored, and new files are moved into a
directory of ralph. Symbolic links are never followed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import opened, replace_at
from ralph.machine.files.paths import HELD_DIRECTORY, is_folder
from ralph.machine.files.trees import entries_below, give_back_rights, remove_tree, remove_tree_if_possible
from ralph.places.git_config import fresh_part
from ralph.sandbox.protected_changes import UNSEEN, UndoResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.sandbox.protected_changes import Change

_KEPT = 100
"""The maximum number of directories with files that commands wrote. The oldest ones are removed."""
_KEPT_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
_MOST_COPIED_BYTES = 64 * 1024 * 1024
_DEEPEST_COPIED = 100
"""Levels of directories. `shutil.move` needs Python's stack for each."""


class Undoing:
    """Undoes the changes to protected files after one command."""

    def __init__(
        self, kept_in: str, git_directories: Sequence[str], statuses: Mapping[str, os.stat_result]
    ) -> None:
        """The versions of commands are kept in a new directory in `kept_in`. `statuses` are those of the files before the command."""
        self._kept_in = kept_in
        self._git_directories = git_directories
        self._statuses = statuses
        self._kept: str | None = None
        self._count = 0

    def undone(self, change: Change) -> UndoResult:
        kept, why_not, is_pending = "", "", False
        try:
            with _opened(os.path.dirname(change.path)) as directory:
                if change.after is not None and not change.is_of_mode:
                    kept = self._put_away(directory, change)
                why_not = self._restored(directory, change)
        except OSError as error:
            why_not, is_pending = error.strerror or str(error), True
        return UndoResult(change.path, change.how, kept, why_not, is_pending)

    def _put_away(self, directory: int, change: Change) -> str:
        """Keeps the command's version of a file and returns its new path, or an empty text if that is impossible. Copies it if
        the old file can replace it atomically. Otherwise moves it, or removes it, because the protection matters more. Raises
        OSError.
        """
        if change.after is not None and change.after.kind == UNSEEN:  # it was not compared
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        name = os.path.basename(change.path)
        source = f"/proc/self/fd/{directory}/{name}"
        old, new = change.before, change.after
        is_copied = bool(old and new and old.content is not None and old.kind == new.kind == "file")
        try:
            target = self._place_for(name)
            try:
                if is_copied:
                    os.link(source, target, follow_symlinks=False)
                else:
                    os.rename(source, target)
            except OSError:  # another file system, or one without links
                _check_size(source)
                if is_copied:
                    shutil.copy2(source, target, follow_symlinks=False)
                else:
                    shutil.move(source, target)
        except OSError:
            if not is_copied:
                remove_tree(source)
            return ""
        return target

    def _place_for(self, name: str) -> str:
        if self._kept is None:
            place = f"{self._kept_in}/{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
            os.makedirs(place, mode=0o700)
            self._kept = place
            with suppress(OSError):
                kept = sorted(filter(_KEPT_NAME.fullmatch, os.listdir(self._kept_in)))
                for old in kept[:-_KEPT]:
                    remove_tree_if_possible(f"{self._kept_in}/{old}")
        self._count += 1
        return f"{self._kept}/{self._count}-{name}"

    def _restored(self, directory: int, change: Change) -> str:
        """Restores the state before the command. Returns an empty text, or the reason why that is impossible."""
        old, name = change.before, os.path.basename(change.path)
        if old is None:
            if kept := self._fresh_part(change):
                replace_at(directory, name, kept, None)
            return ""
        if change.is_of_mode:
            with opened(name, HELD_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory) as held:
                os.chmod(f"/proc/self/fd/{held}", old.mode)
            return ""
        if old.kind == "directory":
            if change.path in self._git_directories:
                return "a git directory that was removed is not made again"
            os.mkdir(name, old.mode, dir_fd=directory)
            return ""
        if old.content is None:
            return "its content was not known" if old.kind == "file" else "it was not a file"
        if old.kind == "link":
            os.symlink(os.fsdecode(old.content), name, dir_fd=directory)
        else:
            try:
                replace_at(directory, name, old.content, self._statuses[change.path])
            except OSError:
                if change.after is None:
                    raise
                # No file is safer than the command's, and on a full file system its place may be enough.
                remove_tree(f"/proc/self/fd/{directory}/{name}")
                replace_at(directory, name, old.content, None, new_mode=old.mode)
        return ""

    def _fresh_part(self, change: Change) -> bytes:
        """The part of a new configuration that stays: a repository that was cloned keeps its remotes. Empty for any other file."""
        above, name = os.path.split(change.path)
        if name != "config" or above not in self._git_directories:
            return b""
        made = change.after
        return b"" if made is None or made.kind != "file" else fresh_part(made.content or b"")


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """Opens a directory without following a symbolic link in any part of its path. Raises OSError."""
    descriptor = os.open("/", HELD_DIRECTORY)
    try:
        for part in path.strip("/").split("/"):
            below = os.open(part, HELD_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _check_size(source: str) -> None:
    """Raises OSError if a file or a directory is too large or too deep to be copied to another file system."""
    pending = [source]
    for path in pending:  # a command may have taken the rights away
        if stat.S_ISDIR(os.lstat(path).st_mode):
            give_back_rights(path)
            with os.scandir(path) as listing:
                pending += [one.path for one in listing if is_folder(one)]
    size = os.lstat(source).st_size
    for entry in entries_below(source):
        size += entry.stat(follow_symlinks=False).st_size
        if size > _MOST_COPIED_BYTES or entry.path.count("/") > source.count("/") + _DEEPEST_COPIED:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    if size > _MOST_COPIED_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
