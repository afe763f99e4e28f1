"""Finds the symbolic links on the way of a path. A link inside a repository may have come with the repository, and one where
commands may write may be a command's, so ralph does not follow it to a place outside. Links elsewhere were made by the user
and are allowed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.own_process import link_target, way_to
from ralph.machine.repository import is_within_any, repository_top

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
        for place, is_link, _ in way_to(path):
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
        for place, is_link, _ in way_to(path):
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
        return any(place.startswith(inside) for place, *_ in way_to(path))
    except OSError:
        return True


class LinkResolver:
    """Resolves the links of absolute paths, which need not exist. Follows none in directories where a command could have made
    it. Many paths in few directories are fast, because each place is looked up only once.
    """

    def __init__(self, unfollowed: tuple[str, ...] = ()) -> None:
        """`unfollowed` are directories, without symbolic links, in which no link is followed: what lies there says nothing
        about other places.
        """
        self.unfollowed = unfollowed
        self._target_of = cache(link_target)

    def __call__(self, path: str) -> str:
        """The path without symbolic links. If the way leads into one of `unfollowed`, the result lies there, and may
        contain links.
        """
        last = "/"
        with suppress(OSError):  # a ring of links, which leads nowhere
            for place, _, ahead in way_to(path, self._target_of):
                if is_within_any(place, self.unfollowed):
                    rest = (part for part in reversed(ahead) if part not in ("", os.curdir, os.pardir))
                    return "/".join((place, *rest))
                last = place
        return last

    def outside(self, path: str) -> str | None:
        """The path without symbolic links. None if the way leads into one of `unfollowed`."""
        real = self(path)
        return None if is_within_any(real, self.unfollowed) else real
