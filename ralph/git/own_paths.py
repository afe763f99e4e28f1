"""Finds the paths inside a checkout that ralph itself writes to. Files that receive ralph's output are among them. A
change to these paths is not progress. Reads no file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.files.repository import is_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OWN_DIRECTORY = ".ralph"
"""The directory of a loop's stop file, relative to the loop's directory. A change in this directory is never progress."""
_DESCRIPTORS = Path("/proc/self/fd")
_OUTPUT_AND_ERRORS = (1, 2)


class OwnPaths:
    """The paths below `top` that ralph itself writes to: the loop's directory `.ralph/` and others."""

    def __init__(self, top: Path, directory: Path, places: Iterable[Path] = ()) -> None:
        """`places` are absolute paths, which need not exist. Ignored are those outside `top`, and those that contain the loop's
        directory, because otherwise no change there would be progress.
        """
        inside, work = os.path.realpath(top), os.path.realpath(directory)
        names = [name for place in (directory / OWN_DIRECTORY, *places) for name in _names_of(place)]
        counted_out = {name for name in names if is_within(name, inside) and not is_within(work, name)}
        self.paths = tuple(sorted(os.path.relpath(name, inside) for name in counted_out))
        """The paths that ralph writes to, relative to `top`."""
        self._below = tuple(f"{path}/" for path in self.paths)

    def hold(self, path: str) -> bool:
        """Whether ralph itself writes to `path`, which is relative to `top`."""
        return path in self.paths or path.startswith(self._below)


def own_output_files() -> tuple[Path, ...]:
    """The files that get this process's standard output and error, as in `> loop.log 2>&1`. Empty on systems without `/proc`."""
    return tuple(dict.fromkeys(path for number in _OUTPUT_AND_ERRORS for path in _file_behind(number)))


def _file_behind(descriptor: int) -> Iterator[Path]:
    try:
        status = os.fstat(descriptor)
        path = (_DESCRIPTORS / str(descriptor)).readlink()
        if stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.lstat()):
            yield path
    except OSError:
        return


def _names_of(place: Path) -> Iterator[str]:
    """The path and, if it is a link, its target: ralph may replace the link or write to its target."""
    yield os.path.normpath(os.path.join(os.path.realpath(place.parent), place.name))  # noqa: PTH118 - the names are strings
    yield os.path.realpath(place)
