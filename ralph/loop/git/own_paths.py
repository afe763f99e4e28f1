"""Knows the places inside a checkout that ralph, or the shell that started it, writes to: that is no work. Reads no
file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.loop.values import OWN_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DESCRIPTORS = Path("/proc/self/fd")
_OUTPUT_AND_ERRORS = (1, 2)


class OwnPaths:
    """`.ralph/` of the loop's directory and other places below `top`, as they are led to at its making."""

    def __init__(self, top: Path, directory: Path, places: Iterable[Path] = ()) -> None:
        """`places`: absolute, files or directories, existing or not. Those outside of `top` do not matter. A
        place that contains the loop's directory is left out: no work there would count any more.
        """
        inside, work = os.path.realpath(top), os.path.realpath(directory)
        names = [name for place in (directory / OWN_DIRECTORY, *places) for name in _names_of(place)]
        counted_out = {name for name in names if _is_within(name, inside) and not _is_within(work, name)}
        self.paths = tuple(sorted(os.path.relpath(name, inside) for name in counted_out))
        """Paths relative to the top."""
        self._below = tuple(f"{path}/" for path in self.paths)

    def hold(self, path: str) -> bool:
        """True if `path`, relative to the top, is one of them or lies in one."""
        return path in self.paths or path.startswith(self._below)


def own_output_files() -> tuple[Path, ...]:
    """Where the output and errors of this process go, `> loop.log 2>&1`; empty where the system does not tell (no Linux)."""
    return tuple(dict.fromkeys(path for number in _OUTPUT_AND_ERRORS for path in _file_behind(number)))


def _file_behind(descriptor: int) -> Iterator[Path]:
    """The path of an open file; nothing if it was deleted or another file has its place."""
    try:
        status = os.fstat(descriptor)
        path = (_DESCRIPTORS / str(descriptor)).readlink()
        if stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.lstat()):
            yield path
    except OSError:
        return


def _names_of(place: Path) -> Iterator[str]:
    """The path, and what it leads to if it is a link: the link may be replaced, and its target written."""
    yield os.path.normpath(os.path.join(os.path.realpath(place.parent), place.name))  # noqa: PTH118
    yield os.path.realpath(place)


def _is_within(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory
