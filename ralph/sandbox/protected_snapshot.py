# os instead of pathlib: this runs before and after each command, and names entries of open directories.
# ruff: noqa: PTH103, PTH104, PTH108, PTH115, PTH118, PTH119, PTH120, PTH208
"""Undoes changes that commands made to protected files, if no mount prevents such changes.

The files are compared before and after a command. Changed files are restored, and new files are moved into a
directory of ralph. Symbolic links are never followed. `protected_changes.py` decides which changes are undone.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ralph.machine.atomic_write import replace_at
from ralph.machine.repository import HELD_DIRECTORY
from ralph.places.gather import GuardedFiles
from ralph.places.table import COMPARED
from ralph.sandbox.protected_changes import Entry, Undone, changes_of, missing_directories

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.sandbox.protected_changes import Change

_MOST_BYTES = 1024 * 1024
"""The maximum size of a file that can be restored. Changes of a larger file are noticed, but not undone."""
_MOST_HOOKS = 512
"""The maximum number of entries below a directory of hooks. A larger directory is compared only as a whole."""
_MOST_REMEMBERED_BYTES = 4 * 1024 * 1024
"""The maximum number of bytes that are kept in memory for all files together. Hooks are scripts of some kilobytes."""
_KEPT = 100
"""The maximum number of directories with files that commands wrote. The oldest ones are removed."""
_KEPT_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
_MOST_COPIED_BYTES = 64 * 1024 * 1024
# A file that changed this shortly before it was read may have changed again within one tick of the kernel's clock.
_SETTLED_NS = 100_000_000

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ProtectedSnapshot:
    """The stored state of a run's protected files. For each command, call `look` before it and `undo_changes` after
    it. Not thread-safe.
    """

    def __init__(self, roots: Sequence[str], git_directories: Sequence[str], kept_in: str) -> None:
        """`roots` are the working directory and each `--add-dir`. `git_directories` are the git directories that
        commands may write. All are absolute and contain no symbolic links. If a command has written a protected file,
        the command's version is kept in a new directory beneath `kept_in`, which need not exist.
        """
        self._files = GuardedFiles(COMPARED, roots, git_directories)
        self.git_directories = self._files.git_directories
        self._kept_in = kept_in
        self._known: dict[str, Entry] = {}
        self._statuses: dict[str, os.stat_result] = {}
        self._left_bytes = 0

    def look(self) -> None:
        """Stores the state of the protected files before a command. If an earlier command removed a repository, its
        stored files are kept, so that they can be compared when the repository exists again.
        """
        found = self._found()
        gone = tuple(f"{one}/" for one in missing_directories(found, self.git_directories))
        kept = {path: entry for path, entry in self._known.items() if path.startswith(gone)} if gone else {}
        self._known = kept | found

    @property
    def known(self) -> Mapping[str, Entry]:
        """The state of the protected files at the last call of `look`, by path."""
        return self._known

    def undo_changes(self) -> tuple[Undone, ...]:
        """Restores the protected files after a command, and returns the changes. Raises no OSError: if a change
        cannot be undone, the returned `Undone` contains the reason.
        """
        undoing = _Undoing(self._kept_in, self.git_directories, dict(self._statuses))
        changes = self._changes()
        opened = [undoing.undone(change) for change in changes if change.is_of_mode]
        if opened:  # what could not be seen in a closed directory can be seen now
            changes = self._changes()
        return (*opened, *(undoing.undone(change) for change in changes if not change.is_of_mode))

    def _changes(self) -> list[Change]:
        return [*changes_of(self._known, self._found(), self.git_directories)]

    def _found(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        self._left_bytes = _MOST_REMEMBERED_BYTES
        for path, kind in self._files.found():
            if kind == "tree":
                self._add_tree(found, path)
            else:
                self._add(found, path)
        return found

    def _add_tree(self, found: dict[str, Entry], top: str) -> None:
        pending, count = [top], 0
        inside: dict[str, Entry] = {}
        for path in pending:
            if not self._add(inside, path):
                continue
            names = _names(path)
            count += _MOST_HOOKS + 1 if names is None else len(names)
            if count > _MOST_HOOKS:
                inside = {top: Entry("other")}
                break
            pending += [f"{path}/{name}" for name in names or ()]
        found |= inside

    def _add(self, found: dict[str, Entry], path: str) -> bool:
        """If the path exists, adds its entry to `found`. Returns whether the path is a directory."""
        try:
            status = os.lstat(path)
        except OSError:
            return False
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            found[path] = Entry("directory", stat.S_IMODE(mode))
            return True
        stamp = _stamp(status)
        known = self._known.get(path)
        if known is not None and known.is_settled and known.stamp == stamp:
            self._left_bytes -= len(known.content or b"")
            found[path] = known
            return False
        is_settled = status.st_ctime_ns < time.time_ns() - _SETTLED_NS
        self._statuses[path] = status
        if stat.S_ISREG(mode):
            content = _content(path) if status.st_size <= min(_MOST_BYTES, self._left_bytes) else None
            self._left_bytes -= len(content or b"")
            found[path] = Entry("file", stat.S_IMODE(mode), content, stamp, is_settled)
        elif stat.S_ISLNK(mode):
            found[path] = Entry("link", content=_target(path))
        else:
            found[path] = Entry("other")
        return False


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_ino,
        status.st_dev,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _names(directory: str) -> list[str] | None:
    """The names in a directory, or None if it cannot be listed."""
    try:
        return os.listdir(directory)
    except OSError:
        return None


def _content(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        found = os.read(descriptor, _MOST_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found if len(found) <= _MOST_BYTES else None


def _target(path: str) -> bytes | None:
    try:
        return os.fsencode(os.readlink(path))
    except OSError:
        return None


class _Undoing:
    """Undoes the changes to protected files after one command."""

    def __init__(
        self, kept_in: str, git_directories: Sequence[str], statuses: dict[str, os.stat_result]
    ) -> None:
        self._kept_in = kept_in
        self._git_directories = git_directories
        self._statuses = statuses
        self._kept: str | None = None
        self._count = 0

    def undone(self, change: Change) -> Undone:
        kept, why_not = "", ""
        try:
            with _opened(os.path.dirname(change.path)) as directory:
                if change.after is not None and not change.is_of_mode:
                    kept = self._put_away(directory, change)
                why_not = self._restored(directory, change)
        except OSError as error:
            why_not = error.strerror or str(error)
        return Undone(change.path, change.how, kept, why_not)

    def _put_away(self, directory: int, change: Change) -> str:
        """Keeps the command's version of a file and returns its new path, or an empty string if the version cannot be
        kept.

        If the old file can atomically replace the version, the version is copied. Otherwise it is moved, or removed
        if that is impossible, because the protection matters more. Raises OSError.
        """
        name = os.path.basename(change.path)
        source = f"/proc/self/fd/{directory}/{name}"
        try:
            target = self._place_for(name)
            if _is_replaced(change):
                _keep_copy(source, target)
            else:
                _move(source, target)
        except OSError:
            if not _is_replaced(change):
                _remove(source)
            return ""
        return target

    def _place_for(self, name: str) -> str:
        if self._kept is None:
            place = f"{self._kept_in}/{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
            os.makedirs(place, mode=0o700)
            self._kept = place
            _prune(self._kept_in)
        self._count += 1
        return f"{self._kept}/{self._count}-{name}"

    def _restored(self, directory: int, change: Change) -> str:
        """Restores the state before the command. Returns an empty string, or the reason if the state cannot be
        restored.
        """
        old, name = change.before, os.path.basename(change.path)
        if old is None:
            return ""
        if change.is_of_mode:
            os.chmod(name, old.mode, dir_fd=directory)
            return ""
        if old.kind == "directory":
            if change.path in self._git_directories:
                return "a git directory that was removed is not made again"
            os.mkdir(name, old.mode, dir_fd=directory)
            return ""
        if old.content is None:
            return "its content was not known" if old.kind == "file" else "it was no file"
        if old.kind == "link":
            os.symlink(os.fsdecode(old.content), name, dir_fd=directory)
        else:
            try:
                replace_at(directory, name, old.content, self._statuses[change.path])
            except OSError:
                if change.after is not None:  # no file is safer than the command's
                    _remove(f"/proc/self/fd/{directory}/{name}")
                raise
        return ""


def _is_replaced(change: Change) -> bool:
    """Whether a command changed the content of a file whose old content is stored. The old content then replaces the
    file atomically.
    """
    old, new = change.before, change.after
    return (
        old is not None
        and new is not None
        and (old.kind, new.kind) == ("file", "file")
        and old.content is not None
    )


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


def _keep_copy(source: str, target: str) -> None:
    """Copies a regular file to another path. Raises OSError."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, or one without links
        _check_size(source)
        import shutil  # noqa: PLC0415 - only for a change, and takes milliseconds

        shutil.copy2(source, target, follow_symlinks=False)


def _move(source: str, target: str) -> None:
    """Moves a file or a directory. Raises OSError."""
    try:
        os.rename(source, target)
    except OSError:  # another file system
        _check_size(source)
        import shutil  # noqa: PLC0415 - only for a change, and takes milliseconds

        shutil.move(source, target)


def _check_size(source: str) -> None:
    """Raises OSError if a file or a directory is too large to be copied to another file system."""
    sizes = [os.lstat(source).st_size]
    for directory, _, names in os.walk(source):
        sizes += [os.lstat(os.path.join(directory, name)).st_size for name in names]
    if sum(sizes) > _MOST_COPIED_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def _prune(kept_in: str) -> None:
    """Removes the oldest directories in `kept_in` if there are too many. Each of these directories contains files
    that commands wrote.
    """
    import shutil  # noqa: PLC0415 - only for a change, and takes milliseconds

    kept = sorted(name for name in _names(kept_in) or () if _KEPT_NAME.fullmatch(name))
    for name in kept[:-_KEPT]:
        shutil.rmtree(f"{kept_in}/{name}", ignore_errors=True)


def _remove(source: str) -> None:
    """Removes a file or a directory with everything in it. Raises OSError."""
    if stat.S_ISDIR(os.lstat(source).st_mode):
        import shutil  # noqa: PLC0415 - only for a change, and takes milliseconds

        shutil.rmtree(source)
    else:
        os.unlink(source)
