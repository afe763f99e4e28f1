"""Computes digests that show whether a file has changed. It opens only regular files, and never blocks.

A digest depends on the content. It depends on the modification time instead if the file, or all files together, are
too large to be read each time.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.values.ports import Clock, Waiter

MOST_READ_BYTES = 64 * 1024 * 1024
"""A file bigger than this is compared by its size and modification time instead of its content."""
MOST_READ_OF_ALL_BYTES = 2 * 1024 * 1024 * 1024
"""The most bytes to read for one snapshot of a directory that is not under git. Reading this much takes seconds, and
a long loop makes many snapshots.
"""
ABSENT = "absent"

_CHUNK_BYTES = 1024 * 1024
_LOOKS_UP_EVERY = 100
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TooMuchToReadError(Exception):
    """The files together hold more bytes than one snapshot may read."""


class FileDigests:
    """Computes the digests of many files for one snapshot. Signals are handled from time to time while it runs."""

    def __init__(
        self, waiter: Waiter, clock: Clock, *, is_by_time: bool = False, most_bytes: float = math.inf
    ) -> None:
        """If `is_by_time` is True, every file is compared by size and modification time. `most_bytes` limits the
        bytes that are read from all files together. Beyond this limit, `of` raises TooMuchToReadError.
        """
        self._is_by_time = is_by_time
        self._left_bytes = most_bytes
        self._waiter = waiter
        self._clock = clock
        self._nobody = waiter.mailbox()
        self._count = 0

    def of(self, path: str) -> str:
        """The digest of a file, or `ABSENT` if it does not exist or vanishes while it is read. The digest of a link
        is that of its target's name. Raises Interrupted and TooMuchToReadError.
        """
        self._count += 1
        if self._count % _LOOKS_UP_EVERY == 0:
            self.look_up()
        try:
            status = os.lstat(path)
            mode = f"{status.st_mode:o}"
            if stat.S_ISLNK(status.st_mode):
                return f"{mode} {_hashed(os.fsencode(os.readlink(path)))}"  # noqa: PTH115 - 20,000 of them
            if not stat.S_ISREG(status.st_mode):
                return mode
            if self._is_by_time or status.st_size > MOST_READ_BYTES:
                return of_unread(status)
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT
        except OSError as error:
            return f"unreadable: {error.errno}"
        try:
            return f"{mode} {self._of_content(path)}"
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT
        except OSError:
            return f"unreadable: {of_unread(status)}"

    def of_target(self, path: str) -> str:
        """The digest of a path. If the path is a link, the digest also covers the file that the link leads to. Raises
        Interrupted and TooMuchToReadError.
        """
        return self.of(path) + (f" {self.of(os.path.realpath(path))}" if os.path.islink(path) else "")  # noqa: PTH114

    def _of_content(self, path: str) -> str:
        hashed = hashlib.sha256()
        descriptor = os.open(path, _FLAGS)
        try:
            left = MOST_READ_BYTES  # it may grow while it is read
            while left > 0 and (chunk := os.read(descriptor, _CHUNK_BYTES)):
                hashed.update(chunk)
                left -= len(chunk)
                self._left_bytes -= len(chunk)
                if self._left_bytes < 0:
                    raise TooMuchToReadError
                if len(chunk) == _CHUNK_BYTES:
                    self.look_up()
        finally:
            os.close(descriptor)
        return hashed.hexdigest()

    def look_up(self) -> None:
        """Handles pending signals. Raises Interrupted if one of them stops the loop."""
        self._waiter.wait(
            self._nobody, until_s=self._clock.now_s(), waiting_for="a look at the changed files"
        )


def of_unread(status: os.stat_result) -> str:
    """A digest from file type, permissions, size and modification time, without the content."""
    return f"{status.st_mode:o} {status.st_size} {status.st_mtime_ns}"


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def differing(before: Mapping[str, str] | None, after: Mapping[str, str] | None) -> Iterator[str]:
    """The paths that have different digests in the two mappings, or are in only one of them. Yields nothing if a
    mapping is None.
    """
    if before is None or after is None:
        return
    for path in {*before, *after}:
        if before.get(path) != after.get(path):
            yield path
