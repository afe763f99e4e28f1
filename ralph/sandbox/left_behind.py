"""Finds out whether a command has changed a settings file of the user's, and its ralph has not undone that: the command still runs,
or ralph was killed. Imports little, because each start looks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.places.state import named_state_directories, running_below

if TYPE_CHECKING:
    from collections.abc import Mapping


def why_left_behind(path: str, environment: Mapping[str, str]) -> str | None:
    """Why a settings file, which each run of the user's reads, may say what a command wrote and nobody has undone: a clause
    with the way out, or None.
    """
    for place in map(running_below, named_state_directories(environment)):
        names: list[str] = []
        with suppress(OSError):  # no command has run
            names = os.listdir(place)
        for name in names:
            from ralph.sandbox.protected_files import is_changed_since  # noqa: PLC0415 - few starts find one

            if is_changed_since(f"{place}/{name}", path):
                return (
                    "was changed during a command of a ralph that still runs it, or was killed, and nothing was undone: if none "
                    f"runs, look at it, correct it, and then remove {place}/{name}"
                )
    return None
