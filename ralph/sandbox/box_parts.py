"""Decides which files a command may write and read, and how the namespaces show them. No I/O happens here:
`command_box.py` collects the places, and `kernel/` and bubblewrap make the kernel enforce the decisions.

A command may read everything except the places that the table of places (`places/table.py`) and the user deny. It may
write only in the roots and in a few places that ordinary work needs. If a denied path is inside a root, commands can
read and write it nevertheless: Landlock grants a right for a whole directory and cannot take it away for a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.repository import is_within, is_within_any
from ralph.places.table import (
    CLOSED,
    COMPARED,
    DEVICE,
    EMPTY,
    GUARDS,
    READ_ONLY,
    VISIBLE,
    WRITABLE,
)
from ralph.sandbox.bubblewrap import DEVICES, TEMPORARY
from ralph.sandbox.kernel import landlock
from ralph.sandbox.kernel.landlock import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from ralph.places.places import GuardedPlaces
    from ralph.sandbox.box_plan import BoxPlan

_DEVICE = landlock.READ_FILE | landlock.WRITE_FILE | landlock.IOCTL_DEV
_ROOT = landlock.READ | landlock.READ_DIR | landlock.WRITE


class BoxParts(Struct, frozen=True):
    """The paths that commands may use, and those that namespaces show otherwise. All are absolute."""

    writable: tuple[str, ...]
    unreadable: tuple[str, ...]
    """Files and directories, which need not exist."""
    readable: tuple[str, ...] = ()
    """Paths that are readable although they lie in an unreadable place."""
    sockets: tuple[str, ...] = ()
    """Unix sockets in the file system that a command may connect to."""
    devices: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    """Directories of which commands may use only what is in one of the other places."""
    visible: tuple[str, ...] = ()
    """Paths that commands must see although they may lie in /tmp."""
    empty: tuple[str, ...] = ()
    """Directories and files that appear empty to commands with namespaces. They need not exist."""
    read_only: tuple[str, ...] = ()
    """Paths in writable places, besides names and entries of git directories, that namespaces mount read-only."""
    compared: tuple[str, ...] = ()
    """Such paths that are compared after a command."""
    temporary: str = ""
    """The directory for temporary files."""
    has_own_temporary: bool = False
    """Whether the directory for temporary files is mounted on /tmp. It is not mounted if commands may write to the machine's
    /tmp."""

    def may_write(self, path: str) -> bool:
        """Whether a command may create or change the file at a path. The path must not contain symbolic links."""
        return path in self.devices or self.is_writable(path)

    def may_read(self, path: str) -> bool:
        """Whether a command may read the content of the file at a path. The path must not contain symbolic links.
        Directories can always be listed.
        """
        if self.is_writable(path) or is_within_any(path, self.readable):
            return True
        if is_within_any(path, self.closed):
            return self.may_write(path)
        return not is_within_any(path, self.unreadable)

    def is_writable(self, path: str) -> bool:
        """Whether a path lies in a writable place."""
        return is_within_any(path, self.writable)

    def inside(self, path: str) -> str:
        """Converts a path outside of the sandbox to the path inside."""
        if self.has_own_temporary and is_within(path, self.temporary):
            return TEMPORARY + path.removeprefix(self.temporary)
        return path

    def outside(self, path: str, visible: Iterable[str]) -> str:
        """Converts a path inside the sandbox to the path outside. Both paths are the same, except in /tmp. In those
        places of /tmp that are mounted there again, they are the same too: writable ones, and `visible`. `path` contains
        no `..`.
        """
        if not (self.has_own_temporary and is_within(path, TEMPORARY)):
            return path
        if any(is_within(path, place) for place in (*self.writable, *visible) if place != self.temporary):
            return path
        return self.temporary + path.removeprefix(TEMPORARY)


def box_parts(
    plan: BoxPlan,
    places: GuardedPlaces,
    unreadable: Iterable[str],
    *,
    roots: Sequence[str],
    temporary: str,
    cache: str,
    git: Sequence[str],
    programs: Sequence[str],
    own_files: Sequence[str] = (),
) -> BoxParts:
    """Applies the plan and the table of places. `unreadable` are the places that the tools must not read. `cache` is the
    directory for package caches, `git` are the git directories that commands may write, `programs` the directories of
    PATH, and `own_files` are readable. No path but those of `places` contains symbolic links.
    """
    bases = {
        "root": roots,
        "temporary": (temporary,),
        "packages": (cache,),
        "writable git": git,
        "programs": programs,
    }

    def of(guard: str) -> tuple[str, ...]:
        is_kept = plan.has_namespaces or "landlock" in GUARDS[guard].levels
        return places.guarded(guard, bases) if is_kept else ()

    writable = outermost((*of(WRITABLE), *plan.write))
    readable = tuple(dict.fromkeys((*own_files, *plan.read)))
    given = (*writable, *readable, *plan.sockets)
    return BoxParts(
        writable,
        outermost((*unreadable, *plan.read_deny, *plan.rules_deny)),
        readable,
        plan.sockets,
        of(DEVICE),
        of(CLOSED),
        of(VISIBLE),
        tuple(
            place
            for place in of(EMPTY)
            if not any(is_within(one, place) or is_within(place, one) for one in given)
        ),
        tuple(path for path in of(READ_ONLY) if is_within_any(path, writable)),
        tuple(path for path in of(COMPARED) if is_within_any(path, writable)),
        temporary,
        plan.has_namespaces and not is_within_any(TEMPORARY, writable),
    )


def landlock_rules(parts: BoxParts, entries: Callable[[str], Iterable[str]]) -> Iterator[Rule]:
    """Yields the rules that allow what the parts allow. `entries` returns the names in a directory, without
    symbolic links. It is called for each directory above an unreadable path, parents first.

    Paths inside a writable place get no rule of their own, and directories there are not listed. Otherwise a command
    could replace a part of such a path by a symbolic link, and the rule would then allow access to the link's target.
    """
    yield Rule("/", landlock.READ_DIR)
    closed = {path for path in parts.unreadable if not parts.is_writable(path)}
    for path in _open_places({*closed, *parts.closed}, entries):
        yield Rule(path, landlock.READ)
    yield from (Rule(path, _DEVICE) for path in parts.devices)
    # Without ioctl, a device file that the settings make writable is of little use. Elsewhere the right opens nothing,
    # because commands cannot create device files.
    yield from (Rule(path, _ROOT | landlock.IOCTL_DEV) for path in parts.writable)
    yield from (Rule(path, landlock.READ) for path in parts.readable if not parts.is_writable(path))
    sockets = (path for path in parts.sockets if not parts.is_writable(path))
    yield from (Rule(path, landlock.RESOLVE_UNIX) for path in (*sockets, *parts.writable))


def own_mounts(abi: int) -> tuple[tuple[str, int], ...]:
    """The file systems that bubblewrap mounts for each command, such as a new `/dev`. Each comes with the rights that
    the command needs on it.

    A rule for a directory does not apply to a file system that is mounted on it, so each of these mounts needs its
    own rule. The new `/dev` contains only harmless devices and the command's own terminals.
    """
    rights = landlock.READ | landlock.READ_DIR
    places = (("/proc", rights), (DEVICES, rights | _DEVICE | landlock.WRITE))
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
