"""Finds further paths of a place: a file system may be mounted at several points, or a part of it at a second one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ralph.machine.repository import is_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ESCAPE = re.compile(r"\\([0-7]{3})")


def other_paths(places: Sequence[str], mountinfo: str) -> tuple[str, ...]:
    """The other paths that lead to these places, or to what is in them, on file systems that are mounted more than once.
    `places` have no symbolic links, and `mountinfo` is the content of /proc/self/mountinfo (proc_pid_mountinfo(5)).
    """
    mounts = [
        (fields[2], _plain(fields[3]), _plain(fields[4]))
        for fields in (line.split(" ") for line in mountinfo.splitlines())
        if len(fields) > 4
    ]
    of_device: dict[str, list[tuple[str, str]]] = {}
    for device, root, point in mounts:
        of_device.setdefault(device, []).append((root, point))
    if all(len(known) == 1 for known in of_device.values()):
        return ()
    found = (path for place in places for path in _others(place, mounts, of_device))
    return tuple(dict.fromkeys(path for path in found if path not in places))


def _others(
    place: str, mounts: Iterable[tuple[str, str, str]], of_device: dict[str, list[tuple[str, str]]]
) -> Iterable[str]:
    # The last of several mounts at one point is the one that is seen.
    device, root, point = max(
        (mount for mount in mounts if is_within(place, mount[2])), key=lambda mount: len(mount[2].rstrip("/"))
    )
    inside = f"{root.rstrip('/')}/{place[len(point) :].lstrip('/')}".rstrip("/") or "/"
    for its_root, its_point in of_device[device]:
        if is_within(inside, its_root):
            yield f"{its_point.rstrip('/')}/{inside[len(its_root) :].lstrip('/')}".rstrip("/") or "/"
        elif is_within(its_root, inside):  # a part of the place is mounted there
            yield its_point


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), field)
