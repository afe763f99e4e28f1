# os.path instead of pathlib: this runs before each command.
# ruff: noqa: PTH116, PTH120
"""Notices that an entry was made, removed or replaced in one of some directories."""

from __future__ import annotations

import os

_Seen = tuple[int, int, int, int]


class WatchedDirectories:
    def __init__(self) -> None:
        self._seen: dict[str, _Seen | None] = {}

    def add(self, directory: str) -> None:
        """Must be called before the directory is looked at. It need not exist: it would be made in the directory above, which
        is enough if that is watched too.
        """
        if directory not in self._seen:
            seen = _seen(directory)
            if seen is not None or self._seen.get(os.path.dirname(directory)) is None:
                self._seen[directory] = seen

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
