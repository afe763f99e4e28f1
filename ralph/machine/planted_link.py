"""Finds symbolic links inside a repository. Such a link may have come with the repository, so ralph does not follow
it to a place outside. Links elsewhere were made by the user and are allowed.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.repository import is_within_any, repository_top

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    here, ahead, links = "/", deque(Path(path).parts[1:]), 0
    while ahead:
        part = ahead.popleft()
        if part == os.pardir:
            here = os.path.dirname(here)  # noqa: PTH120 - strings throughout
            continue
        place = os.path.join(here, part)  # noqa: PTH118 - strings throughout
        try:
            target = os.readlink(place)  # noqa: PTH115 - strings throughout
        except OSError:  # no link, or not there
            here = place
            continue
        is_of_system = here in _OF_THE_SYSTEM or is_within_any(here, _OF_THE_KERNEL)
        if is_within_any(here, tops) and not is_of_system:
            return place
        links += 1
        if links > _MOST_LINKS:
            return None
        here = "/" if target.startswith("/") else here
        ahead.extendleft(reversed([part for part in target.split("/") if part not in ("", os.curdir)]))
    return None
