"""Directories with everything in them, at any depth: commands can make them deeper than Python's stack and than the longest path,
which the functions of the standard library do not survive. Also makes the temporary directories of a run: one for any use, another
for the complete output of commands that is too long for an answer. If ralph is killed, a later run removes them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import opened
from ralph.machine.files.paths import (
    HELD_DIRECTORY,
    beginning_of,
    entries_in,
    git_directory,
    is_folder,
    is_within_any,
    repository_top,
)
from ralph.machine.own_process import temporary_directory
from ralph.machine.starting import start_thread
from ralph.values.outcome import ShortageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from threading import Thread

_DEEPEST = 50
"""The levels of directories that are open at a time."""
_MOST_PATHS = 50_000
"""The maximum number of paths in a directory that are compared with the rules. A larger directory counts as one that
contains a denied file."""
_MOST_INDEX_BYTES = 64 * 1024 * 1024
"""A larger index of git is not read: any file may be tracked."""


def entries_below(top: str) -> Iterator[os.DirEntry[str]]:
    """Yields all that is below a directory. Follows no links. Leaves out what cannot be listed."""
    pending = [top]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as listing:
            entries = list(listing)
            pending += [one.path for one in entries if is_folder(one)]
            yield from entries


def remove_tree(top: str | os.PathLike[str]) -> None:
    """Removes a directory, whatever the modes in it, or a file. Follows no links. Removes what it can, then raises the first
    OSError.
    """
    top = os.fspath(top).rstrip(os.sep)  # with it, a link would be followed
    if not stat.S_ISDIR(os.lstat(top).st_mode):
        return os.unlink(top)
    errors: list[OSError] = []
    with _opened_up(top, None) as directory:
        moved = _emptied(directory, directory, 0, errors)
        while moved:
            name = moved.pop()
            try:
                with _opened_up(name, directory) as below:
                    moved += _emptied(below, directory, 0, errors)
                os.rmdir(name, dir_fd=directory)
            except OSError as error:
                errors.append(error)
    if errors:
        raise errors[0]
    return os.rmdir(top)


def remove_tree_if_possible(top: str | os.PathLike[str]) -> None:
    """Like `remove_tree`, but what cannot be removed stays."""
    with suppress(OSError):
        remove_tree(top)


def _emptied(directory: int, top: int, depth: int, errors: list[OSError]) -> list[str]:
    """Removes what is in a directory. What is `_DEEPEST` levels down is moved into `top`, to be removed later: its new names."""
    moved: list[str] = []
    for name in os.listdir(directory):
        try:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                os.unlink(name, dir_fd=directory)
                continue
            with _opened_up(name, directory) as below:  # a directory that may not be changed cannot be moved
                if depth >= _DEEPEST:
                    new = os.urandom(8).hex()
                    os.rename(name, new, src_dir_fd=directory, dst_dir_fd=top)
                    moved.append(new)
                    continue
                moved += _emptied(below, top, depth + 1, errors)
            os.rmdir(name, dir_fd=directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            errors.append(error)
    return moved


@contextmanager
def _opened_up(name: str, directory: int | None) -> Iterator[int]:
    """Opens a directory, after its owner has got the right to list and to change it. Raises OSError."""
    give_back_rights(name, directory)
    with opened(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory) as listed:
        yield listed


def give_back_rights(name: str, directory: int | None = None) -> None:
    """Lets the owner of a directory list, change and enter it. Follows no link. Raises OSError."""
    with opened(name, HELD_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory) as held:
        mode = stat.S_IMODE(os.fstat(held).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{held}", mode | stat.S_IRWXU)


class LocalDisk:
    """Answers questions about the paths on this machine's disk. Implements `Disk` of the permission rules."""

    def real(self, path: str) -> str:
        return os.path.realpath(path)

    def names_in(self, directory: str) -> list[str]:
        with suppress(OSError):
            return os.listdir(directory)
        return []

    def may_be_tracked(self, path: str) -> bool:
        top = repository_top(Path(path).parent)
        index = (
            beginning_of(f"{git_directory(str(top))}/index", _MOST_INDEX_BYTES) if top is not None else b""
        )
        # gitformat-index(5): version 2 has each path whole, behind two bytes with its length, unless the index is split.
        if not index.startswith(b"DIRC\0\0\0\2") or b"link" in index or len(index) == _MOST_INDEX_BYTES:
            return True
        name = os.fsencode(os.path.relpath(path, top or "/"))
        begins = (found.start() for found in re.finditer(re.escape(name) + b"\0", index))
        return any(int.from_bytes(index[at - 2 : at]) & 0xFFF == min(len(name), 0xFFF) for at in begins)

    def paths_below(self, directory: str) -> list[str] | None:
        found = [entry.path for entry in islice(entries_below(directory), _MOST_PATHS + 1)]
        return found if len(found) <= _MOST_PATHS else None


# A run keeps this many files with long outputs. Older files are removed.
_KEPT_FILES = 10
# Another ralph may remove a new directory that is not locked yet, because it looks like a left-over one.
_TRIES = 3
# A run does not wait longer at its end, because commands can leave a million files, and a stop has six seconds in all, three
# of them for a command. A later run removes the rest.
_REMOVE_WITHIN_S = 2.0
_SPILL_PREFIX = "ralph-output-"
_OTHER_PLACES = ("/tmp", "/var/tmp")  # noqa: S108 - a directory of ralph's own is made there


class OwnDirectory:
    """A temporary directory of the user alone, until `remove()` is called. It is locked (flock(2)), and the lock ends with this
    process. So the process that made one which is not locked has ended.
    """

    def __init__(self, prefix: str, writable: Sequence[str] = (), above: str | None = None) -> None:
        """Makes the directory in `above`, or else where it is usual, outside `writable`, where a command could replace it by a
        link. Also removes those with the same prefix that killed processes have left. Raises OSError.
        """
        above = above or _place_outside(temporary_directory(), writable)
        self._removing: Thread | None = None
        with suppress(
            ShortageError
        ):  # it may take long; if this process ends before, a later one removes the rest
            self._removing = start_thread(remove_left_over, above, prefix, name="left-over directories")
        self.path, self._lock = new_locked(partial(_new_directory, f"{above}/{prefix}"))

    def remove(self) -> None:
        """Removes the directory and its content, as far as that is possible in `_REMOVE_WITHIN_S`."""
        until_s = monotonic() + _REMOVE_WITHIN_S
        removing = [] if self._removing is None else [self._removing]
        try:
            removing.insert(0, start_thread(remove_tree_if_possible, self.path, name="own directory"))
        except ShortageError:
            remove_tree_if_possible(self.path)
        for thread in removing:
            thread.join(max(until_s - monotonic(), 0.0))
        os.close(self._lock)


def _new_directory(begins: str) -> str:
    path = f"{begins}{os.urandom(8).hex()}"
    os.mkdir(path, 0o700)
    return os.path.realpath(path)


def _place_outside(usual: str, writable: Sequence[str]) -> str:
    """The usual directory for temporary files, or another one where commands may not write. The usual one if there is none."""
    real = [os.path.realpath(place) for place in writable]
    for place in (usual, *_OTHER_PLACES):
        if not is_within_any(os.path.realpath(place), real) and os.access(place, os.W_OK | os.X_OK):
            return place
    return usual


def locked(path: str) -> int:
    """Locks a directory and returns the descriptor that holds the lock. Raises OSError if another process holds it."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def new_locked(make: Callable[[], str]) -> tuple[str, int]:
    """The path of a directory that `make` makes, and the descriptor that locks it. Raises OSError."""
    for tries_left in reversed(range(_TRIES)):
        path = make()
        try:
            lock = locked(path)
        except OSError:
            if not tries_left:
                raise
            continue
        if os.path.isdir(path):
            return path, lock
        os.close(lock)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def remove_left_over(place: str, prefix: str) -> None:
    """Removes the user's directories in `place` whose name begins with `prefix`, and that are not locked."""
    for entry in entries_in(place, lambda entry: entry.name.startswith(prefix)):
        with suppress(OSError):
            lock = locked(entry.path)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    remove_tree_if_possible(entry.path)
            finally:
                os.close(lock)


class SpillDirectory:
    """The directory, of the user alone, with the complete output of commands, of which the model can read parts. It is made when
    it is first needed, and `remove()` removes it.
    """

    def __init__(self, writable: Sequence[str] = ()) -> None:
        """`writable` are the places that commands may write."""
        self._writable = writable
        self._directory: OwnDirectory | None = None
        self._files: deque[Path] = deque()
        self._lock = Lock()

    @property
    def path(self) -> Path | None:
        """The directory, or None if it has not been made yet."""
        return None if self._directory is None else Path(self._directory.path)

    def new_file(self) -> tuple[int, Path]:
        """Makes a file and returns its descriptor and path. Removes the oldest if there are too many. On any thread. Raises OSError."""
        with self._lock:
            directory = self.path
            if directory is None or not directory.is_dir():  # a command may have cleared the place
                self.remove()
                self._directory = OwnDirectory(_SPILL_PREFIX, self._writable)
                directory = Path(self._directory.path)
            if len(self._files) >= _KEPT_FILES:
                self._files.popleft().unlink(missing_ok=True)
            path = directory / f"output-{os.urandom(4).hex()}.txt"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._files.append(path)
            return descriptor, path

    def remove(self) -> None:
        directory, self._directory = self._directory, None
        self._files.clear()
        if directory is not None:
            directory.remove()
