"""Makes the command line of bubblewrap (`bwrap`), which runs a command in new namespaces. No I/O happens here.

The command sees the whole file system, which is read-only except for the writable places. `/proc` shows only the
command's own processes, `/dev` contains only harmless devices, and `/tmp` is the session's temporary directory.
Hidden directories and files appear empty. The command and all its child processes end when bubblewrap ends, or when
the process that started bubblewrap ends. Landlock forbids mounts, so it is applied after bubblewrap has made its
mounts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.repository import is_within

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPORARY = "/tmp"  # noqa: S108 - the session's directory is mounted there
_DEVICES = "/dev"


class Enclosure(Struct, frozen=True):
    """The paths from which the namespaces of one command are made. All are absolute, contain no symbolic links, and
    exist.
    """

    temporary: str | None = None
    """The session's directory, which is mounted on /tmp. None means that the command gets the machine's own /tmp."""
    writable: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    """Paths that the command must be able to read, such as its Python. A path in /tmp is mounted there again,
    read-only. Landlock gives these paths the same rights as the session's directory."""
    pinned: tuple[str, ...] = ()
    """Directories that the command cannot rename or replace, such as `.git`."""
    read_only: tuple[str, ...] = ()
    hidden_directories: tuple[str, ...] = ()
    hidden_files: tuple[str, ...] = ()
    has_network: bool = True
    """True if the command shares the machine's network. False if its network has only a loopback device."""


def bwrap_command(bwrap: str, enclosure: Enclosure) -> list[str]:
    """The command line of bubblewrap, without `--` and the command to run. Later mounts cover earlier ones."""
    return [bwrap, *_namespaces(enclosure), *_mounts(enclosure)]


def _namespaces(enclosure: Enclosure) -> Iterator[str]:
    yield from ("--die-with-parent", "--unshare-pid", "--unshare-ipc")
    if not enclosure.has_network:
        yield "--unshare-net"


def _mounts(enclosure: Enclosure) -> Iterator[str]:
    is_all_writable = "/" in enclosure.writable
    yield from ("--bind" if is_all_writable else "--ro-bind", "/", "/", "--proc", "/proc", "--dev", _DEVICES)
    if enclosure.temporary is not None:
        yield from ("--bind", enclosure.temporary, TEMPORARY)
        for place in enclosure.visible:
            if is_within(place, TEMPORARY):
                yield from ("--ro-bind", place, place)
    for place in enclosure.writable:
        # bubblewrap's `/dev` has its own `shm`, and the session's directory is on /tmp already.
        if place not in ("/", enclosure.temporary) and not is_within(place, _DEVICES):
            yield from ("--bind", place, place)
    for directory in enclosure.hidden_directories:
        yield from ("--tmpfs", directory)
    for file in enclosure.hidden_files:
        yield from ("--ro-bind", "/dev/null", file)
    for directory in enclosure.pinned:
        yield from ("--bind", directory, directory)
    for place in enclosure.read_only:
        yield from ("--ro-bind", place, place)
