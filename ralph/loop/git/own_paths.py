"""Knows the places inside a checkout that ralph, or the shell that started it, writes to: changes there are no
progress. Reads no file.
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
    """The loop's `.ralph/` and other places below `top`. Links are followed once, when this is made."""

    def __init__(self, top: Path, directory: Path, places: Iterable[Path] = ()) -> None:
        """`places`: absolute paths of files or directories, existing or not. Those outside of `top` have no effect.

        A place that contains the loop's directory is left out: otherwise no work there would count.
        """
        inside, work = os.path.realpath(top), os.path.realpath(directory)
        names = [name for place in (directory / OWN_DIRECTORY, *places) for name in _names_of(place)]
        counted_out = {name for name in names if _is_within(name, inside) and not _is_within(work, name)}
        self.paths = tuple(sorted(os.path.relpath(name, inside) for name in counted_out))
        """Paths relative to the top."""
        self._below = tuple(f"{path}/" for path in self.paths)

    def hold(self, path: str) -> bool:
        """Whether `path`, relative to the top, is one of these paths or lies in one of them."""
        return path in self.paths or path.startswith(self._below)


def own_output_files() -> tuple[Path, ...]:
    """The files that receive this process's output and errors, as in `> loop.log 2>&1`. Empty where the system does
    not tell (outside Linux).
    """
    return tuple(dict.fromkeys(path for number in _OUTPUT_AND_ERRORS for path in _file_behind(number)))


def _file_behind(descriptor: int) -> Iterator[Path]:
    """The path of an open file; empty if it was deleted or another file has its place."""
    try:
        status = os.fstat(descriptor)
        path = (_DESCRIPTORS / str(descriptor)).readlink()
        if stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.lstat()):
            yield path
    except OSError:
        return


def _names_of(place: Path) -> Iterator[str]:
    """The path, and its target if it is a link: somebody may replace the link, and write to the target."""
    yield os.path.normpath(os.path.join(os.path.realpath(place.parent), place.name))  # noqa: PTH118
    yield os.path.realpath(place)


def _is_within(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory
