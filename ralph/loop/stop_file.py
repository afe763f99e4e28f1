"""The stop file `.ralph/stop`: the model creates it to say that no work is left. Its content does not matter.

A loop keeps no other file in the checkout. Agents remove `.ralph/` (`git clean -fdx`) and could replace it. A missing
directory is made again. Anything else in its place, a link included, is refused, so that nothing is written or
removed elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ralph.loop.values import OWN_DIRECTORY, STOP_FILE
from ralph.machine.atomic_write import HELD_DIRECTORY, replace_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_IGNORE_FILE = ".gitignore"
_IGNORES_ALL = b"*\n"


class StopFileBelow:
    """The stop file of the loop's directory."""

    def __init__(self, directory: Path) -> None:
        self._place = directory / OWN_DIRECTORY
        self.path = directory / STOP_FILE

    def is_there(self) -> bool:
        """True for a file of any kind. A dangling link counts too, because somebody made it."""
        return os.path.lexists(self.path)

    def make_room(self) -> None:
        """Makes the directory for the file, in such a way that git ignores it. Raises OSError."""
        with suppress(FileExistsError):
            self._place.mkdir(mode=0o700)
        with _held(self._place) as held, _named(self._place / _IGNORE_FILE):
            _let_git_ignore(held)

    def remove(self) -> None:
        """Removes the file of an earlier loop, which must not end this one. Follows no link. Raises OSError."""
        with suppress(FileNotFoundError), _held(self._place) as held:
            os.unlink(self.path.name, dir_fd=held)


@contextmanager
def _held(place: Path) -> Iterator[int]:
    """The directory, opened for `dir_fd`. Raises OSError."""
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
    """Adds the path to any OSError raised within: the error of a call relative to a directory's descriptor lacks it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _let_git_ignore(held: int) -> None:
    """Makes git ignore the directory, by an ignore file in it.

    A regular file that is not empty is left alone, because people may have changed it. A full disk or a kill may have
    left an empty file, so that file is written again.
    """
    with suppress(FileNotFoundError):
        found = os.stat(_IGNORE_FILE, dir_fd=held, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_size:
            return
    replace_at(held, _IGNORE_FILE, _IGNORES_ALL, None)
