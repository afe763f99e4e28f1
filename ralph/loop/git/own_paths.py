"""Finds the paths inside a checkout that ralph itself writes to, including files that receive its output. Changes to
these paths do not count as progress. Reads the content of no file.
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
    """The loop's own directory `.ralph/` and other paths below `top` that ralph writes to. Links are resolved once,
    in the constructor.
    """

    def __init__(self, top: Path, directory: Path, places: Iterable[Path] = ()) -> None:
        """`places` are absolute paths of files or directories, which need not exist. A path outside `top` is ignored.
        So is a path that contains the loop's directory, because otherwise no work there would count.
        """
        inside, work = os.path.realpath(top), os.path.realpath(directory)
        names = [name for place in (directory / OWN_DIRECTORY, *places) for name in _names_of(place)]
        counted_out = {name for name in names if _is_within(name, inside) and not _is_within(work, name)}
        self.paths = tuple(sorted(os.path.relpath(name, inside) for name in counted_out))
        """The paths, relative to `top`."""
        self._below = tuple(f"{path}/" for path in self.paths)

    def hold(self, path: str) -> bool:
        """Whether `path`, relative to `top`, is one of these paths or lies inside one."""
        return path in self.paths or path.startswith(self._below)


def own_output_files() -> tuple[Path, ...]:
    """The files that receive this process's standard output and standard error, as in `> loop.log 2>&1`. Empty on
    systems without `/proc`.
    """
    return tuple(dict.fromkeys(path for number in _OUTPUT_AND_ERRORS for path in _file_behind(number)))


def _file_behind(descriptor: int) -> Iterator[Path]:
    """Yields the path of an open regular file. Yields nothing if the file was deleted or another file now has its
    path.
    """
    try:
        status = os.fstat(descriptor)
        path = (_DESCRIPTORS / str(descriptor)).readlink()
        if stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.lstat()):
            yield path
    except OSError:
        return


def _names_of(place: Path) -> Iterator[str]:
    """Yields the path itself and, if it is a link, the path that it leads to. Both are needed, because the link may
    be replaced and its target may be written.
    """
    yield os.path.normpath(os.path.join(os.path.realpath(place.parent), place.name))  # noqa: PTH118
    yield os.path.realpath(place)


def _is_within(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory
