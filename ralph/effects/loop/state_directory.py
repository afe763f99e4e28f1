"""`.ralph/` below the loop's directory: what the loop keeps in the checkout, ignored by git on its own.

Agents remove it (`git clean -fdx`) and could replace it: each use makes it anew where it is gone, and refuses
whatever is no directory, links included, so that nothing is written elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ralph.core.loop_values import OWN_DIRECTORY
from ralph.effects.atomic_write import HELD_DIRECTORY, replace_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRIVATE = 0o600
_IGNORES_ALL = b"*\n"


@contextmanager
def state_directory(directory: Path) -> Iterator[int]:
    """Held open, good for `dir_fd`; made where it is missing. Raises OSError."""
    place = directory / OWN_DIRECTORY
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    try:
        held = os.open(place, HELD_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            what = "is no directory (a link is none): move it out of the way"
            raise NotADirectoryError(errno.ENOTDIR, what, str(place)) from None
        raise
    try:
        with _named(place / ".gitignore"):
            _let_git_ignore(held)
        yield held
    finally:
        os.close(held)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """A call relative to a held directory fails without saying where."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_private(directory: Path, name: str, data: bytes) -> None:
    """Whole or not at all, for the user alone; a link or a pipe of that name is replaced. Raises OSError."""
    with state_directory(directory) as held, _named(directory / OWN_DIRECTORY / name):
        replace_at(held, name, data, None, new_mode=PRIVATE)


def new_file(directory: Path, name: str) -> int:
    """An open descriptor of an empty file, whatever had that name. Raises OSError."""
    with state_directory(directory) as held:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=held)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(name, flags, PRIVATE, dir_fd=held)


def _let_git_ignore(held: int) -> None:
    """One that people changed is theirs; an empty one is what a full disk or a kill left."""
    with suppress(FileNotFoundError):
        found = os.stat(".gitignore", dir_fd=held, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_size:
            return
    replace_at(held, ".gitignore", _IGNORES_ALL, None)
