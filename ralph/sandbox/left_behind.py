"""Finds out whether a command has changed a settings file of the user's, and its ralph has not undone that: the command still runs,
or ralph was killed. Imports little, because each start looks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.machine.own_process import way_to
from ralph.places.state import named_state_directories, running_below

if TYPE_CHECKING:
    from collections.abc import Mapping


def why_left_behind(path: str, environment: Mapping[str, str]) -> str | None:
    """Why a settings file may say what a command wrote, whose change nobody has undone: a clause with the way out. None if it does
    not. Each run of the user's reads these files, so the place where that command ran does not matter.
    """
    for place in map(running_below, named_state_directories(environment)):
        names: list[str] = []
        with suppress(OSError):  # no command has run
            names = os.listdir(place)
        for name in names:
            if _is_changed_since(f"{place}/{name}", path):
                return (
                    "was changed during a command of a ralph that still runs it, or was killed, and nothing was undone: if none "
                    f"runs, look at it, correct it, and then remove {place}/{name}"
                )
    return None


def _is_changed_since(mark: str, path: str) -> bool:
    """Whether a file is not as it was before the command of `mark`, or a link or a missing directory on the way to it."""
    from ralph.sandbox.killed_command import described, differs  # noqa: PLC0415 - few starts find one
    from ralph.sandbox.protected_files import entries_of  # noqa: PLC0415 - few starts find one

    before = described(mark) or {}
    with suppress(OSError):  # more links than the system follows: nothing can be read there
        way = {path, *(part for part, is_link, _ in way_to(path) if is_link or not os.path.isdir(part))}
        places = way & before.keys()
        now = entries_of(places)
        return any(differs(before[place], now.get(place)) for place in places)
    return False
