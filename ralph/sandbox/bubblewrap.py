"""Makes the command line of bubblewrap (`bwrap`), which makes the box of a run's commands.

A command sees the whole file system, which is read-only except for the writable places. `/proc` shows only the
command's own processes, `/dev` contains only harmless devices, and `/tmp` is the session's temporary directory.
Hidden directories and files appear empty. Landlock forbids mounts, so it is applied after all mounts are made.

`cover` shows each directory as a read-only overlay of itself, so that commands find no Unix socket of a program outside. The kernel
finds a socket by the inode of its file, and the overlay has an inode of its own. So a socket in an overlay has no listener, however
it was named, whenever it was bound and in whichever network namespace. A hard link to it cannot be made in a writable directory,
which is on another file system. A directory with mounts below it is made anew, with its entries, because the kernel makes no overlay
of it for an ordinary user.
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

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

TEMPORARY = "/tmp"  # noqa: S108 - the session's directory is mounted there
DEVICES = "/dev"
QUEUES = f"{DEVICES}/mqueue"
"""The place of the command's own POSIX message queues (mq_overview(7))."""
PROCESSES = "/proc"
"""The place where bubblewrap shows only the processes of a command."""


def bwrap_command(
    bwrap: str,
    *,
    cover: Iterable[str] = (),
    temporary: str | None = None,
    writable: Collection[str] = (),
    devices: Iterable[str] = (),
    visible: Iterable[str] = (),
    visible_covers: Iterable[str] = (),
    pinned: Iterable[str] = (),
    read_only: Iterable[str] = (),
    copies: Iterable[tuple[str, str]] = (),
    empty_directories: Iterable[str] = (),
    empty_files: Iterable[str] = (),
    closed: str = "",
    closed_directories: Iterable[str] = (),
    has_queues: bool = False,
    has_network: bool = True,
) -> list[str]:
    """The command line of bubblewrap, without `--` and the program that it runs. All paths are absolute, contain no symbolic
    links, and exist. Later mounts cover earlier ones.

    `cover` are the words that show the file system as overlays (`cover`), and `visible_covers` those for directories in
    /tmp. Without them, it is one read-only mount, in which the command finds every socket. `temporary` is the session's directory,
    which is mounted on /tmp; None leaves it the machine's own. `visible` are paths, such as the command's Python, of which those in
    /tmp are mounted there again, read-only. They get the rights of the session's directory: none may contain an unreadable one.

    `devices` are device nodes, and directories with some: other mounts make them useless. `pinned` are directories, such as `.git`,
    that the command cannot rename or replace. `copies` are mounted over their files, each after its copy. An empty file is a device,
    which cannot be opened. In `closed`, which is mounted on the `closed_directories`, nothing can be looked up. `has_queues` gives
    message queues of the command's own, if the kernel has them. Without `has_network`, there is only a loopback device.
    """
    namespaces = ("--die-with-parent", "--unshare-pid", "--unshare-ipc")
    words = [bwrap, *namespaces, *(() if has_network else ("--unshare-net",))]
    covered = (*cover,)
    words += covered or ("--bind" if "/" in writable else "--ro-bind", "/", "/")
    words += ("--proc", PROCESSES, "--dev", DEVICES, *(("--mqueue", QUEUES) if has_queues else ()))
    if temporary is not None:
        words += ("--bind", temporary, TEMPORARY)
        for place in (one for one in visible if is_within(one, TEMPORARY)):
            words += ("--ro-bind", place, place)
        words += visible_covers
    # bubblewrap's `/dev` has its own `shm`, and the session's directory is on /tmp already.
    work = (one for one in writable if one not in ("/", temporary) and not is_within(one, DEVICES))
    bound = (("--bind", work), ("--dev-bind", devices), ("--bind", pinned), ("--ro-bind", read_only))
    for option, places in bound:
        for place in places:
            words += (option, place, place)
    for copy, file in copies:
        words += ("--ro-bind", copy, file)
    for directory in empty_directories:
        words += ("--tmpfs", directory)
    for source, places in (("/dev/null", empty_files), (closed, closed_directories)):
        for place in places:
            words += ("--ro-bind", source, place)
    # What one command makes there would be there for the next one. With a cover, the root directory is a file system of the box.
    words += ("--tmpfs", f"{DEVICES}/shm", "--remount-ro", DEVICES)
    return [*words, "--remount-ro", "/"] if covered else words


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
