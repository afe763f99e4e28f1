"""Finds the home directories of others that this user can read: as user id 0 those of all users, and on Windows Subsystem for
Linux those of Windows.
"""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from ralph.machine.files.paths import entries_in, is_folder, is_within
from ralph.places import table
from ralph.places.places import XDG, is_needed_as_a_whole, is_of_a_person

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_MOST_USERS = 200
# Microsoft's documentation of WSL, `automount.root`: the directories in which the drives of Windows are mounted, each by its letter.
_AROUND_DRIVES = ("/mnt", "/")
# The state of ralph has no template of its own there, because variables name it.
_STATE = ".local/state/ralph"


def other_homes(environment: Mapping[str, str], own: Iterable[str], roots: Sequence[str]) -> tuple[str, ...]:
    """The homes of others, without links. That of an account of the system or of a container's program is none if it is, or
    contains, a root: files such as `.npmrc` are of the work there. Neither are directories of the system.
    """
    known = {*map(os.path.realpath, own)}
    found = (os.path.realpath(home) for home in _homes_of_users(environment) if os.path.isdir(home))
    users = (
        home
        for home in dict.fromkeys(found)
        if home not in known
        and not is_needed_as_a_whole(home)
        and (is_of_a_person(home) or not any(is_within(root, home) for root in roots))
    )
    return tuple(dict.fromkeys((*islice(users, _MOST_USERS), *_homes_of_windows())))


def existing_in(homes: Sequence[str], guard: str) -> Iterator[str]:
    """Yields the existing paths in homes for which the table has a guard."""
    if not homes:  # as in most runs
        return
    templates = (template for row in table.ROWS if guard in row.guards for template in row.where)
    below: dict[str, list[str]] = {}
    for inside in filter(None, (*map(_in_home, templates), _STATE if guard == table.UNREAD else "")):
        below.setdefault(inside.partition("/")[0], []).append(inside)
    for home in homes:
        for entry in entries_in(home):
            paths = (f"{home}/{inside}" for inside in below.get(entry.name, ()))
            yield from filter(os.path.lexists, paths)


def _in_home(template: str) -> str:
    """The path of a template relative to a home in which no variable moves it, or an empty text."""
    first, _, rest = template.partition("/")
    if first == "~":
        return rest
    _, usual = XDG.get(first.strip("{}"), ("", ""))
    return usual and f"{usual}/{rest}"


def _homes_of_users(environment: Mapping[str, str]) -> Iterator[str]:
    if os.getuid() != 0:
        return
    with suppress(KeyError):
        # A directory service need not list its users.
        yield pwd.getpwnam(environment.get("SUDO_USER", "")).pw_dir
    yield from (user.pw_dir for user in pwd.getpwall())


def _homes_of_windows() -> Iterator[str]:
    for around in _AROUND_DRIVES:
        drives = (entry.path for entry in entries_in(around) if len(entry.name) == 1)
        for drive in drives:
            yield from (entry.path for entry in entries_in(f"{drive}/Users", is_folder))
