"""Decides which files a command may write and read, and which network it may use. No I/O happens here:
`box_places.py` collects the facts, and `kernel/` makes the kernel enforce the decisions.

A command may read everything except the paths on two deny lists: the table of places (`places/table.py`)
and the user's own. It may write only in the roots and in a few places that ordinary work needs. If a denied path is
inside a root, commands can read and write it nevertheless. `exposed` names such paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ralph.machine.repository import is_within
from ralph.places.table import CLOSED, DEVICE, WRITABLE, paths_with
from ralph.sandbox.kernel import landlock
from ralph.sandbox.kernel.landlock import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ralph.sandbox.kernel.seccomp import Internet

Net = Literal["full", "proxy", "off"]

_DEVICE = landlock.READ_FILE | landlock.WRITE_FILE | landlock.IOCTL_DEV
_ROOT = landlock.READ | landlock.READ_DIR | landlock.WRITE


class BoxFacts(Struct, frozen=True):
    """The paths from which the policy of a run is made. All are absolute and contain no symbolic links."""

    roots: tuple[str, ...]
    """The working directory and each `--add-dir`."""
    unreadable: tuple[str, ...]
    """The read deny list: files and directories, which need not exist."""
    scratch: tuple[str, ...] = ()
    """The session's `TMPDIR`, and the directory for the package caches of this checkout."""
    git_directories: tuple[str, ...] = ()
    """The git directories of the checkouts that a command may write. `box_places.py` has verified them."""
    git_parts: tuple[str, ...] = ()
    """Directories that a command may write although it may not write the rest of the git directory."""
    own_files: tuple[str, ...] = ()
    """Files of this run that a command may read although they lie in an unreadable place, such as files with the long
    output of commands."""


class GivenPlaces(Struct, frozen=True):
    """The paths that the user's settings allow, in addition to the paths that are allowed in every run. All are
    absolute and contain no symbolic links.
    """

    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    """Paths that are readable although the deny list contains them."""
    sockets: tuple[str, ...] = ()
    """Unix sockets in the file system that a command may connect to."""
    read_deny: tuple[str, ...] = ()


class BoxPolicy(Struct, frozen=True):
    writable: tuple[str, ...]
    unreadable: tuple[str, ...]
    readable: tuple[str, ...]
    """Paths that are readable although they lie in an unreadable place."""
    sockets: tuple[str, ...]
    net: Net = "full"

    def may_write(self, path: str) -> bool:
        """Whether a command may create or change the file at a path. The path must not contain symbolic links."""
        return path in paths_with(DEVICE, {}) or any(is_within(path, place) for place in self.writable)

    def may_read(self, path: str) -> bool:
        """Whether a command may read the content of the file at a path. The path must not contain symbolic links.
        Directories can always be listed.
        """
        if any(is_within(path, place) for place in (*self.writable, *self.readable)):
            return True
        if any(is_within(path, place) for place in paths_with(CLOSED, {})):
            return self.may_write(path)
        return not any(is_within(path, place) for place in self.unreadable)

    def exposed(self) -> tuple[str, ...]:
        """The paths of the deny list that are in a writable place. Commands can read and write these paths, because
        Landlock grants a right for a whole directory and cannot take it away for a part.
        """
        return tuple(
            place for place in self.unreadable if any(is_within(place, root) for root in self.writable)
        )


def box_policy(facts: BoxFacts, given: GivenPlaces, net: Net = "full") -> BoxPolicy:
    of_git = (*facts.git_directories, *facts.git_parts)
    bases = {"root": facts.roots, "temporary": facts.scratch, "writable git": of_git}
    writable = (*paths_with(WRITABLE, bases), *given.write)
    unreadable = dict.fromkeys((*facts.unreadable, *given.read_deny))
    return BoxPolicy(
        writable=_outermost(writable),
        unreadable=_outermost(unreadable),
        readable=tuple(dict.fromkeys((*facts.own_files, *given.read))),
        sockets=given.sockets,
        net=net,
    )


def landlock_rules(policy: BoxPolicy, entries: Callable[[str], Iterable[str]]) -> Iterator[Rule]:
    """Yields the rules that allow what the policy allows. `entries` returns the names in a directory, without
    symbolic links. It is called for each directory above an unreadable path, parents first.

    Paths inside a writable place get no rule of their own, and directories there are not listed. Otherwise a command
    could replace a part of such a path by a symbolic link, and the rule would then allow access to the link's target.
    """
    yield Rule("/", landlock.READ_DIR)
    closed = {path for path in policy.unreadable if not _is_writable(path, policy)}
    for path in _open_places({*closed, *paths_with(CLOSED, {})}, entries):
        yield Rule(path, landlock.READ)
    yield from (Rule(path, _DEVICE) for path in paths_with(DEVICE, {}))
    # Without ioctl, a device file that the settings make writable is of little use. Elsewhere the right opens nothing,
    # because commands cannot create device files.
    yield from (Rule(path, _ROOT | landlock.IOCTL_DEV) for path in policy.writable)
    yield from (Rule(path, landlock.READ) for path in policy.readable if not _is_writable(path, policy))
    sockets = (path for path in policy.sockets if not _is_writable(path, policy))
    yield from (Rule(path, landlock.RESOLVE_UNIX) for path in (*sockets, *policy.writable))


def _is_writable(path: str, policy: BoxPolicy) -> bool:
    return any(is_within(path, place) for place in policy.writable)


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
    pending = ["/"]
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


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Removes each path that lies inside another one of the paths, and keeps the order of the rest."""
    known = dict.fromkeys(paths)
    return tuple(path for path in known if not any(above in known for above in _directories_above(path)))


def internet_of(net: Net, *, has_own_network: bool) -> Internet:
    """The internet sockets that a command may open. `has_own_network` is True if the command runs in a network
    namespace whose only device is its own loopback.
    """
    if net == "full":
        return "all"
    return "streams" if has_own_network else "none"
