"""Finds links that came with a repository, by their location: none of them may lead out of it.

Links that the user made outside a repository are fine.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.repository import repository_top

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_LINKS = 40
# Everything there is the system's: /dev/stdin is a link, and no repository put it there.
_OF_THE_KERNEL = ("/proc", "/sys")
_OF_THE_SYSTEM = ("/dev", "/dev/fd")


def repositories(directories: Sequence[str | Path]) -> tuple[str, ...]:
    """The top of the repository around each directory, with links followed. For a directory outside of a repository:
    the directory itself.
    """
    tops = (repository_top(Path(directory)) or os.path.realpath(directory) for directory in directories)
    return tuple(dict.fromkeys(map(str, tops)))


def planted_link(path: str, tops: Sequence[str]) -> str | None:
    """The first link along the path that lies beneath one of `tops`; None: there is none, or the path is too long.

    `path` is absolute. If a link along the path leads elsewhere, the links along its target count too.
    """
    here, ahead, links = "/", deque(Path(path).parts[1:]), 0
    while ahead:
        part = ahead.popleft()
        if part == os.pardir:
            here = os.path.dirname(here)  # noqa: PTH120 - strings throughout
            continue
        place = os.path.join(here, part)  # noqa: PTH118 - as above
        try:
            target = os.readlink(place)  # noqa: PTH115 - as above
        except OSError:  # no link, or not there
            here = place
            continue
        is_of_system = here in _OF_THE_SYSTEM or is_beneath(here, _OF_THE_KERNEL)
        if is_beneath(here, tops) and not is_of_system:
            return place
        links += 1
        if links > _MOST_LINKS:
            return None
        here = "/" if target.startswith("/") else here
        ahead.extendleft(reversed([part for part in target.split("/") if part not in ("", os.curdir)]))
    return None


def is_beneath(path: str, directories: Sequence[str]) -> bool:
    return any(path == one or path.startswith(one.rstrip("/") + "/") for one in directories)
