# os.path instead of pathlib: this runs before each command.
# ruff: noqa: PTH116, PTH120
"""Notices that an entry was made, removed or replaced in one of some directories."""

from __future__ import annotations

import os
import stat

_Seen = tuple[int, int, int, int]


class WatchedDirectories:
    def __init__(self) -> None:
        self._seen: dict[str, _Seen | None] = {}

    def add(self, directory: str) -> None:
        """Called before the directory is looked at. Of a missing one, the nearest that exists above is watched, unless everybody
        may write there (`/tmp`, which changes all the time).
        """
        while (seen := _seen(directory)) is None:
            above = os.path.dirname(directory)
            if _is_everybodys(above):
                break
            directory = above
        self._seen.setdefault(directory, seen)

    def have_changed(self) -> bool:
        return any(_seen(directory) != seen for directory, seen in self._seen.items())

    def clear(self) -> None:
        self._seen = {}


def _seen(directory: str) -> _Seen | None:
    try:
        status = os.stat(directory)
    except OSError:
        return None
    # A command may set the first time back, and nobody the second one.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def _is_everybodys(directory: str) -> bool:
    try:
        return bool(os.stat(directory).st_mode & stat.S_IWOTH)
    except OSError:
        return False
