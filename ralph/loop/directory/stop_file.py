"""The stop file `.ralph/stop`, which the model creates when no work is left. Nothing else but a `.gitignore` file is there,
because agents may delete the directory (`git clean -fdx`): it is made again before each iteration. If `.ralph` is a link or a
file, the loop refuses it, so that nothing is written or removed elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ralph.git.own_paths import OWN_DIRECTORY
from ralph.loop.values import STOP_FILE
from ralph.machine.files.atomic_write import replace_at
from ralph.machine.files.repository import HELD_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_IGNORE_FILE = ".gitignore"
_IGNORES_ALL = b"*\n"


class StopFileBelow:
    """Implements `StopFile` for the directory of the loop."""

    def __init__(self, directory: Path) -> None:
        self._place = directory / OWN_DIRECTORY
        self.path = directory / STOP_FILE

    def is_there(self) -> bool:
        """Whether there is a file of any kind, even a dangling link: somebody has made it."""
        return os.path.lexists(self.path)

    def make_room(self) -> None:
        """Makes the directory of the stop file, which git then ignores. Raises OSError."""
        with suppress(FileExistsError):
            self._place.mkdir(mode=0o700)
        with _held(self._place) as held:
            try:
                _let_git_ignore(held)
            except OSError as error:  # of a call with `dir_fd`, it names only a part of the path
                raise OSError(error.errno, error.strerror, str(self._place / _IGNORE_FILE)) from error

    def remove(self) -> None:
        """Removes the stop file. Follows no link. Raises OSError."""
        with suppress(FileNotFoundError), _held(self._place) as held:
            os.unlink(self.path.name, dir_fd=held)


@contextmanager
def _held(place: Path) -> Iterator[int]:
    try:
        held = os.open(place, HELD_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            what = "is not a directory (a link is none): move it out of the way"
            raise NotADirectoryError(errno.ENOTDIR, what, str(place)) from None
        raise
    try:
        yield held
    finally:
        os.close(held)


def _let_git_ignore(held: int) -> None:
    """A .gitignore file that is not empty stays, because a person may have edited it. A full disk or a kill leaves an empty one."""
    with suppress(FileNotFoundError):
        found = os.stat(_IGNORE_FILE, dir_fd=held, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_size:
            return
    replace_at(held, _IGNORE_FILE, _IGNORES_ALL, None)
