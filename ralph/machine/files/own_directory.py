"""The temporary directories of a run. One is for any use. Another is for files with the complete output of commands whose output
is too long for an answer. If ralph is killed, a later run removes its directories.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from ralph.machine.files.repository import entries_in, is_within_any
from ralph.machine.files.trees import remove_tree_if_possible
from ralph.machine.own_process import temporary_directory
from ralph.machine.starting import start_thread
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from threading import Thread

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
