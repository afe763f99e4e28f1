"""Decides which files a command may write and read. No I/O happens here: `command_box.py` collects the places, and
`kernel/` makes the kernel enforce the decisions.

A command may read everything except the places that the table of places (`places/table.py`) and the user deny. It may
write only in the roots and in a few places that ordinary work needs. If a denied path is inside a root, commands can
read and write it nevertheless: Landlock grants a right for a whole directory and cannot take it away for a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.repository import is_within_any
from ralph.places.table import CLOSED, DEVICE, paths_with
from ralph.sandbox.kernel import landlock
from ralph.sandbox.kernel.landlock import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

_DEVICE = landlock.READ_FILE | landlock.WRITE_FILE | landlock.IOCTL_DEV
_ROOT = landlock.READ | landlock.READ_DIR | landlock.WRITE


class BoxPolicy(Struct, frozen=True):
    """The paths that commands may use. All are absolute and contain no symbolic links."""

    writable: tuple[str, ...]
    unreadable: tuple[str, ...]
    """Files and directories, which need not exist."""
    readable: tuple[str, ...] = ()
    """Paths that are readable although they lie in an unreadable place."""
    sockets: tuple[str, ...] = ()
    """Unix sockets in the file system that a command may connect to."""

    def may_write(self, path: str) -> bool:
        """Whether a command may create or change the file at a path. The path must not contain symbolic links."""
        return path in paths_with(DEVICE, {}) or self.is_writable(path)

    def may_read(self, path: str) -> bool:
        """Whether a command may read the content of the file at a path. The path must not contain symbolic links.
        Directories can always be listed.
        """
        if self.is_writable(path) or is_within_any(path, self.readable):
            return True
        if is_within_any(path, paths_with(CLOSED, {})):
            return self.may_write(path)
        return not is_within_any(path, self.unreadable)

    def is_writable(self, path: str) -> bool:
        """Whether a path lies in a writable place."""
        return is_within_any(path, self.writable)


def landlock_rules(policy: BoxPolicy, entries: Callable[[str], Iterable[str]]) -> Iterator[Rule]:
    """Yields the rules that allow what the policy allows. `entries` returns the names in a directory, without
    symbolic links. It is called for each directory above an unreadable path, parents first.

    Paths inside a writable place get no rule of their own, and directories there are not listed. Otherwise a command
    could replace a part of such a path by a symbolic link, and the rule would then allow access to the link's target.
    """
    yield Rule("/", landlock.READ_DIR)
    closed = {path for path in policy.unreadable if not policy.is_writable(path)}
    for path in _open_places({*closed, *paths_with(CLOSED, {})}, entries):
        yield Rule(path, landlock.READ)
    yield from (Rule(path, _DEVICE) for path in paths_with(DEVICE, {}))
    # Without ioctl, a device file that the settings make writable is of little use. Elsewhere the right opens nothing,
    # because commands cannot create device files.
    yield from (Rule(path, _ROOT | landlock.IOCTL_DEV) for path in policy.writable)
    yield from (Rule(path, landlock.READ) for path in policy.readable if not policy.is_writable(path))
    sockets = (path for path in policy.sockets if not policy.is_writable(path))
    yield from (Rule(path, landlock.RESOLVE_UNIX) for path in (*sockets, *policy.writable))


def own_mounts(abi: int) -> tuple[tuple[str, int], ...]:
    """The file systems that bubblewrap mounts for each command, such as a new `/dev`. Each comes with the rights that
    the command needs on it.

    A rule for a directory does not apply to a file system that is mounted on it, so each of these mounts needs its
    own rule. The new `/dev` contains only harmless devices and the command's own terminals.
    """
    rights = landlock.READ | landlock.READ_DIR
    places = (("/proc", rights), ("/dev", rights | _DEVICE | landlock.WRITE))
    return tuple((place, right & landlock.file_rights(abi)) for place, right in places)


def _open_places(closed: Collection[str], entries: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """Yields paths that together cover the whole file system except the closed paths.

    It searches each directory above a closed path, and yields the entries that are not closed and contain no closed
    path. An entry that is made there later is not covered, so commands cannot use it.
    """
    above = {directory for place in closed for directory in _directories_above(place)}
    pending = [] if "/" in closed else ["/"]
    for directory in pending:
        for name in entries(directory):
            path = f"{directory.rstrip('/')}/{name}"
            if path in closed:
                continue
            if path in above:
                pending.append(path)
            else:
                yield path


def _directories_above(path: str) -> Iterator[str]:
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Removes each path that lies inside another one of the paths, and keeps the order of the rest."""
    known = dict.fromkeys(paths)
    return tuple(path for path in known if not any(above in known for above in _directories_above(path)))
