"""Makes bubblewrap's words that show each directory as a read-only overlay of itself, so that commands find no Unix socket of
a program outside.

The kernel finds a socket by the inode of its file, and the overlay has an inode of its own. So a socket in an overlay has no
listener, however it was named, whenever it was bound and in whichever network namespace. A hard link to it cannot be made in
a writable directory, which is on another file system. A directory with mounts below it is made anew, with its entries,
because the kernel makes no overlay of it for an ordinary user.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.paths import directories_above, is_within, is_within_any, mount_points, status_of
from ralph.machine.files.trees import new_locked
from ralph.machine.own_programs import TEMPORARY_PREFIX
from ralph.sandbox.bubblewrap import DEVICES, PROCESSES, TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Iterator

OVERLAYS_SINCE = (0, 11)
"""The first version of bubblewrap that makes overlays."""
# No file system of these types can hold a socket, and the kernel makes overlays of few of them.
_WITHOUT_SOCKETS = frozenset(
    """
    sysfs proc cgroup cgroup2 securityfs debugfs tracefs bpf pstore configfs efivarfs fusectl mqueue binfmt_misc selinuxfs nsfs
    rpc_pipefs vfat msdos exfat iso9660 squashfs erofs
    """.split()
)
# With version 1 of control groups, a tmpfs of the init system that holds only directories of control groups.
_CONTROL_GROUPS = "/sys/fs/cgroup"
# bubblewrap makes these itself, or mounts the session's directory there.
_LEFT_OUT = (PROCESSES, DEVICES, TEMPORARY)
# A box with so many mounts takes a third of a second: bubblewrap's time grows with their square. Containers with volumes in
# full directories (`/etc`, the home) need some 300.
_MOST_PLACES = 500


class Cover(Struct, frozen=True):
    """The words that show a directory of the machine in a box."""

    words: tuple[str, ...] = ()
    devices: frozenset[int] = frozenset()
    """The file systems of which overlays are made (`st_dev`)."""


class TooManyMountsError(Exception):
    """A box would need too many mounts."""


class EmptyDirectory:
    """The second layer of each overlay. It is in none of the directories that `cover` shows: the kernel refuses layers that lie
    in one another. If ralph is killed, a later run removes it, as those of `OwnDirectory`.
    """

    def __init__(self) -> None:
        """Makes the directory. Raises OSError."""

        def make() -> str:
            path = f"{os.path.realpath(TEMPORARY)}/{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
            os.mkdir(path, 0o700)
            return path

        self.path, self._lock = new_locked(make)

    def remove(self) -> None:
        """Removes the directory, which may be gone already."""
        os.close(self._lock)
        with suppress(OSError):
            os.rmdir(self.path)


def cover(top: str, empty: str) -> Cover:
    """Shows `top` and all in it now. `empty` is an empty directory outside, or in /tmp. Raises OSError, TooManyMountsError."""
    mounts = _Mounts()
    words: list[str] = []
    devices = {os.lstat(empty).st_dev}
    shown = list(islice(_places(top, mounts.kind_at(top), mounts), _MOST_PLACES + 1))
    if len(shown) > _MOST_PLACES:
        ((fullest, _),) = Counter(os.path.dirname(path) for _, path in shown).most_common(1)
        raise TooManyMountsError(
            f"more than {_MOST_PLACES} mounts would be needed, most of them for what is in {fullest}"
        )
    for how, path in shown:
        if how == "--symlink":
            with suppress(FileNotFoundError):  # gone since it was listed, as below
                words += (how, os.readlink(path), path)
        elif how == "--ro-overlay":
            with suppress(FileNotFoundError):
                devices.add(os.lstat(path).st_dev)
                words += ("--overlay-src", empty, "--overlay-src", path, how, path)
        else:
            words += (how, path) if how in ("--dir", "--tmpfs") else (how, path, path)
    return Cover(tuple(words), frozenset(devices))


class _Mounts:
    def __init__(self) -> None:
        self.kinds = mount_points()
        if _CONTROL_GROUPS in self.kinds:
            self.kinds[_CONTROL_GROUPS] = "cgroup"
        self.above = {one for point in self.kinds for one in directories_above(point)}
        """The directories in which something is mounted."""

    def kind_at(self, path: str) -> str:
        """The type of the file system in which a path lies."""
        around = (one for one in (path, *directories_above(path)) if one in self.kinds)
        return self.kinds.get(next(around, "/"), "")


def _places(path: str, kind: str, mounts: _Mounts) -> Iterator[tuple[str, str]]:
    """Yields bubblewrap's options and the paths for which they are. `kind` is the type of the file system around the path."""
    if path in _LEFT_OUT:
        return
    kind = mounts.kinds.get(path, kind)
    if kind in _WITHOUT_SOCKETS:
        yield "--ro-bind", path
        if path in mounts.above:
            yield from _with_sockets_below(path, mounts)
    elif path not in mounts.above:
        yield "--ro-overlay", path
    else:
        if path != "/":
            yield "--dir", path
        yield from _entries(path, kind, mounts)


def _with_sockets_below(directory: str, mounts: _Mounts) -> Iterator[tuple[str, str]]:
    """As `_places`, for mounts in a directory that cannot hold a socket itself."""
    done: list[str] = []
    for point, kind in sorted(mounts.kinds.items()):
        if kind in _WITHOUT_SOCKETS or not is_within(point, directory) or is_within_any(point, done):
            continue
        done.append(point)
        if point in mounts.above:
            yield "--tmpfs", point
            yield from _entries(point, kind, mounts)
        else:
            yield "--ro-overlay", point


def _entries(directory: str, kind: str, mounts: _Mounts) -> Iterator[tuple[str, str]]:
    """As `_places`, for what is in a directory, without sockets, devices, named pipes, and what this user may not look at."""
    try:
        names = sorted(os.listdir(directory))
    except (PermissionError, FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        path = f"{directory.rstrip('/')}/{name}"
        status = status_of(path)  # it may be gone, or in a file system of another user
        mode = 0 if status is None else status.st_mode
        if stat.S_ISLNK(mode):
            yield "--symlink", path
        elif stat.S_ISDIR(mode):
            yield from _places(path, kind, mounts)
        elif stat.S_ISREG(mode):  # it may be gone when bubblewrap looks, as files in /run
            yield "--ro-bind-try", path
