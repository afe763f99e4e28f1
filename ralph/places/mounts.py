"""Finds further paths of a place: a file system may be mounted at several points, or a part of it at a second one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.repository import is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ESCAPE = re.compile(r"\\([0-7]{3})")


class _Mount(Struct, frozen=True):
    number: str
    parent: str
    device: str
    root: str
    """The directory of the file system that is mounted."""
    point: str

    def path_of(self, inside: str) -> str:
        """The path to a file of the mounted directory. `inside` is its path in the file system."""
        return f"{self.point.rstrip('/')}/{inside[len(self.root) :].lstrip('/')}".rstrip("/") or "/"


def other_paths(
    places: Sequence[str], mountinfo: str, is_closed: Callable[[str], bool] = lambda _: True
) -> tuple[str, ...]:
    """The other paths that lead to these places, or to what is in them, on file systems that are mounted more than once.
    `places` have no symbolic links, and `mountinfo` is the content of /proc/self/mountinfo (proc_pid_mountinfo(5)). Of the
    mounts inside of the places only those for whose points `is_closed` returns True count.
    """
    lines = (line.split(" ") for line in mountinfo.splitlines())
    mounts = [
        _Mount(fields[0], fields[1], fields[2], _plain(fields[3]), _plain(fields[4]))
        for fields in lines
        if len(fields) > 4
    ]
    if len({mount.device for mount in mounts}) == len(mounts):
        return ()
    found = (
        path
        for place in places
        for mount, inside in _parts_of(place, mounts, is_closed)
        for path in _paths_to(inside, [one for one in mounts if one.device == mount.device])
        if path not in (place, mount.point)
    )
    return tuple(dict.fromkeys(path for path in found if path not in places))


def _parts_of(
    place: str, mounts: Sequence[_Mount], is_closed: Callable[[str], bool]
) -> Iterator[tuple[_Mount, str]]:
    """Yields the mounts with a part of a place, each with the path of this part in its file system."""
    around = _seen([mount for mount in mounts if is_within(place, mount.point)])
    if around is not None:  # in a changed root directory, the mount around it may not be listed
        yield around, f"{around.root.rstrip('/')}/{place[len(around.point) :].lstrip('/')}".rstrip("/") or "/"
    for mount in mounts:
        if is_within(mount.point, place) and mount.point != place and is_closed(mount.point):
            yield mount, mount.root


def _seen(around: Sequence[_Mount]) -> _Mount | None:
    """The mount that is seen at a path, of those around it. Another one may be hidden behind it, at the same point or at a
    deeper one.
    """
    numbers = {mount.number for mount in around if mount.number != mount.parent}
    seen: _Mount | None = None
    while True:
        on_it = (
            mount
            for mount in around
            if (mount.parent not in numbers if seen is None else mount.parent == seen.number != mount.number)
        )
        below = min(on_it, key=lambda mount: len(mount.point), default=None)
        if below is None:
            return seen
        seen = below


def _paths_to(inside: str, mounts: Sequence[_Mount]) -> Iterator[str]:
    for mount in mounts:
        if is_within(inside, mount.root):
            yield mount.path_of(inside)
        elif is_within(mount.root, inside):  # a part of the place is mounted there
            yield mount.point


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), field)
