"""The stop file `.ralph/stop`. The model creates this file when no work is left. Its content does not matter.
`.ralph/` contains only the stop file and a `.gitignore` file, because agents may change or delete the directory (`git
clean -fdx`). If the directory is missing, it is made again before the next iteration. If `.ralph` is a link or a
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
from ralph.machine.atomic_write import replace_at
from ralph.machine.repository import HELD_DIRECTORY

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
        """Whether the stop file exists. The file may be of any kind, even a dangling link, because somebody must have
        made it.
        """
        return os.path.lexists(self.path)

    def make_room(self) -> None:
        """Makes the directory of the stop file, and makes git ignore it. Raises OSError."""
        with suppress(FileExistsError):
            self._place.mkdir(mode=0o700)
        with _held(self._place) as held, _named(self._place / _IGNORE_FILE):
            _let_git_ignore(held)

    def remove(self) -> None:
        """Removes the stop file, because an earlier loop left it or because the work is not done. Follows no link. Raises
        OSError.
        """
        with suppress(FileNotFoundError), _held(self._place) as held:
            os.unlink(self.path.name, dir_fd=held)


@contextmanager
def _held(place: Path) -> Iterator[int]:
    try:
        held = os.open(place, HELD_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            what = "is no directory (a link is none): move it out of the way"
            raise NotADirectoryError(errno.ENOTDIR, what, str(place)) from None
        raise
    try:
        yield held
    finally:
        os.close(held)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Adds the full path to an OSError that is raised in the `with` block. Errors of calls with `dir_fd` contain only
    a part of the path.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _let_git_ignore(held: int) -> None:
    """Writes a .gitignore file into the open directory `held`, so that git ignores the directory. A .gitignore file
    that is not empty is left unchanged, because a person may have edited it. An empty file may be the result of a
    full disk or a kill, so it is replaced.
    """
    with suppress(FileNotFoundError):
        found = os.stat(_IGNORE_FILE, dir_fd=held, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_size:
            return
    replace_at(held, _IGNORE_FILE, _IGNORES_ALL, None)
