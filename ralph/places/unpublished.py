"""Decides which files ralph does not commit, because agents must not read them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ralph.machine.files.paths import is_within, is_within_any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.places.places import GuardedPlaces


def why_not_read(
    path: str, places: GuardedPlaces | None, denied: Sequence[str], readable: Sequence[str]
) -> str | None:
    """The reason why a path must not be read, or None if it may be. `denied` are closed, and `readable` open within them."""
    closed = [
        place
        for place in denied
        if is_within(path, place)
        and not any(is_within(path, one) and is_within(one, place) for one in readable)
    ]
    if closed:
        return f"{closed[0]} must not be read"
    place = None if places is None else places.why_not_read(path, readable)
    return None if place is None else str(place)


def unpublished_in(
    directory: str,
    places: GuardedPlaces,
    roots: Sequence[str],
    *,
    denied: Sequence[str],
    masked: Sequence[str],
    readable: Sequence[str],
) -> Callable[[str, bool], bool]:
    """Returns a function that tells whether ralph must not commit a file in `directory`, by its path without links and whether
    HEAD has it: commands, or without a sandbox ralph's own tools, must not read it. `denied` and `readable` are as in
    `why_not_read`; `masked` is closed without exception. Where commands may write (`roots`), they may also change what HEAD
    has. Elsewhere that does not count: they can make a commit that names a file whose content they lack.
    """
    opened = places.open_of(roots)
    near = places.in_or_around(directory)
    readable = (*readable, *opened)
    named = {*places.given, *places.shown, *denied, *masked, *(one.path for one in near.found)}

    @cache
    def answers(path: str) -> tuple[bool, bool]:
        if is_within_any(path, masked):
            return True, True
        is_unread = why_not_read(path, near, denied, readable) is not None
        return is_unread, is_unread and not is_within_any(path, opened)

    def is_unpublished(path: str, is_in_head: bool) -> bool:
        # What is not named has the answer of its directory: there may be 100,000 files.
        return answers(path if path in named else f"{path.rpartition('/')[0]}/")[is_in_head]

    return is_unpublished
