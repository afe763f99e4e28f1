"""Follows the symbolic links of a path one by one. A link inside a repository may have come with the repository, so ralph
does not follow it to a place outside. Links elsewhere were made by the user and are allowed.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.repository import is_within_any, repository_top

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MOST_LINKS = 40  # as many as Linux follows (path_resolution(7))
# Links in these directories belong to the system, such as /dev/stdin, and not to a repository.
_OF_THE_KERNEL = ("/proc", "/sys")
_OF_THE_SYSTEM = ("/dev", "/dev/fd")


def repositories(directories: Sequence[str | Path]) -> tuple[str, ...]:
    """The top directory of the repository around each directory, with links resolved. For a directory that is in no
    repository, the result contains the directory itself.
    """
    tops = (repository_top(Path(directory)) or os.path.realpath(directory) for directory in directories)
    return tuple(dict.fromkeys(map(str, tops)))


def planted_link(path: str, tops: Sequence[str]) -> str | None:
    """The first symbolic link on the absolute path `path` that is inside one of `tops`. If a link leads to another
    path, the links on that path are checked too. None if no link is found, or if there are too many links.
    """
    with suppress(OSError):
        for place, is_link in way_to(path):
            above = os.path.dirname(place)  # noqa: PTH120 - strings throughout
            is_of_system = above in _OF_THE_SYSTEM or is_within_any(above, _OF_THE_KERNEL)
            if is_link and is_within_any(above, tops) and not is_of_system:
                return place
    return None


def links_and_file(path: str) -> list[str]:
    """The symbolic links on the way to a file, and at last the file itself, if it is no directory and no ring of links. No path
    contains links but as its last part.
    """
    found, last = [], "/"
    try:
        for place, is_link in way_to(path):
            last = place
            found += [place] if is_link else []
    except OSError:
        return found
    is_known = last in found or os.path.isdir(last)  # noqa: PTH112 - strings throughout
    return found if is_known else [*found, last]


def leads_into(path: str, directories: Iterable[str]) -> bool:
    """Whether an absolute path passes through one of the directories when all symbolic links in it are followed.

    If so, anyone who can write to the directory can decide to which file the path leads. The result is also True if
    the path has too many links.
    """
    inside = tuple(os.path.realpath(directory).rstrip("/") + "/" for directory in directories)
    try:
        return any(place.startswith(inside) for place, _ in way_to(path))
    except OSError:
        return True


def way_to(path: str) -> Iterator[tuple[str, bool]]:
    """Yields each path that the system looks up on the way to an absolute path, and whether it is a symbolic link. None of them
    contains links but as its last part. Raises OSError if there are more links than the system follows.
    """
    here, ahead, links = "/", path.split("/")[::-1], 0
    while ahead:
        part = ahead.pop()
        if part == os.pardir:
            here = os.path.dirname(here)  # noqa: PTH120 - strings throughout
        if part in ("", os.curdir, os.pardir):
            continue
        place = os.path.join(here, part)  # noqa: PTH118 - strings throughout
        try:
            target = os.readlink(place)  # noqa: PTH115 - strings throughout
        except OSError:  # no link, or not there
            yield place, False
            here = place
            yield place, False
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        yield place, True
        here = "/" if target.startswith("/") else here
        ahead += target.split("/")[::-1]
