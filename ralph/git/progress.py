"""The state of a checkout at one moment, and the changes between two of them, without the paths that ralph itself writes to:
these are no progress. Files are compared by digests: of the content, or of size and modification time if a file or all
files together are too large to be read each time. Only regular files are opened, and nothing blocks.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ralph.machine.files.opened_file import opened
from ralph.machine.files.paths import is_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.values.ports import Clock, Waiter

MOST_READ_BYTES = 64 * 1024 * 1024
"""The size in bytes above which a file is compared by size and modification time instead of content."""
MOST_READ_OF_ALL_BYTES = 2 * 1024 * 1024 * 1024
"""The bound for one snapshot of a directory without git. To read so much takes seconds."""
ABSENT = "absent"

_CHUNK_BYTES = 1024 * 1024
_LOOKS_UP_EVERY = 100
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class TooMuchToReadError(Exception):
    """All files together have more bytes than may be read for one snapshot."""


class FileDigests:
    """Computes the digests of many files for one snapshot. Handles signals from time to time while it works."""

    def __init__(
        self, waiter: Waiter, clock: Clock, *, is_by_time: bool = False, most_bytes: float = math.inf
    ) -> None:
        """With `is_by_time`, files are compared by size and modification time. `of` raises TooMuchToReadError when more than
        `most_bytes` of all files together would have to be read.
        """
        self._is_by_time = is_by_time
        self._left_bytes = most_bytes
        self._waiter = waiter
        self._clock = clock
        self._nobody = waiter.mailbox()
        self._count = 0

    def of(self, path: str) -> str:
        """The digest of a file, or for a link of the name of its target. `ABSENT` if there is no file, or if it vanishes while it
        is read. Raises Interrupted and TooMuchToReadError.
        """
        self._count += 1
        if self._count % _LOOKS_UP_EVERY == 0:
            self.look_up()
        try:
            status = os.lstat(path)
            mode = f"{status.st_mode:o}"
            if stat.S_ISLNK(status.st_mode):
                target = os.fsencode(os.readlink(path))  # noqa: PTH115 - 20,000 of them
                return f"{mode} {hashlib.sha256(target).hexdigest()}"
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
        """As `of`, with the file to which a link leads."""
        return self.of(path) + (f" {self.of(os.path.realpath(path))}" if os.path.islink(path) else "")  # noqa: PTH114 - the path is a string

    def _of_content(self, path: str) -> str:
        hashed = hashlib.sha256()
        with opened(path, _FLAGS) as descriptor:
            left = MOST_READ_BYTES  # it may grow while it is read
            while left > 0 and (chunk := os.read(descriptor, _CHUNK_BYTES)):
                hashed.update(chunk)
                left -= len(chunk)
                self._left_bytes -= len(chunk)
                if self._left_bytes < 0:
                    raise TooMuchToReadError
                if len(chunk) == _CHUNK_BYTES:
                    self.look_up()
        return hashed.hexdigest()

    def look_up(self) -> None:
        """Handles pending signals. Raises Interrupted if a signal stops the loop."""
        self._waiter.wait(
            self._nobody, until_s=self._clock.now_s(), waiting_for="a look at the changed files"
        )


def of_unread(status: os.stat_result) -> str:
    """A digest made from file type, permissions, size and modification time. The content is not read."""
    return f"{status.st_mode:o} {status.st_size} {status.st_mtime_ns}"


def differing(before: Mapping[str, str] | None, after: Mapping[str, str] | None) -> Iterator[str]:
    """Yields the paths whose digests differ, or that only one mapping has. Yields nothing if a mapping is None."""
    if before is None or after is None:
        return
    for path in {*before, *after}:
        if before.get(path) != after.get(path):
            yield path


class Snapshot(Struct, frozen=True):
    digest: str
    """One digest of everything whose change is progress: under git HEAD, branch, index, working tree and plan file, otherwise all
    files, and never ralph's own."""
    head: str = ""
    """The id of the current commit. Empty before the first one and without git."""
    files: Mapping[str, str] | None = field(default_factory=dict)
    """Digests by path, or None if there were too many files. Under git, of the untracked files and those that differ from
    HEAD or the index, otherwise of all."""
    branch: str | None = None
    """None if HEAD is detached or the directory is not under git."""
    guarded: Mapping[str, str] | None = None
    """Digests of the repository's settings and hooks that could run a program or send data. None without git, or for too many."""


class Changes(Struct, frozen=True):
    """The changes between two snapshots."""

    commits: int = 0
    files: tuple[str, ...] = ()
    """Sorted names of files changed, added or removed, committed or not. Only committed ones if a snapshot has no file digests."""
    guarded: tuple[str, ...] = ()
    """Sorted names of git settings and hooks that were added, removed or changed."""


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
