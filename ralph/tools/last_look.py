"""The look through the working directories at the end of a run: which repositories in them make git run programs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ralph.machine.repository import is_within
from ralph.machine.starting import start_job
from ralph.places.nested_repositories import Look, look_for_repositories
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_S = 2.0
"""A run ends soon, also if a file system does not answer."""


def last_look(roots: Sequence[str]) -> str:
    """A sentence for people. Empty if there are no such repositories."""
    until_s = time.monotonic() + _MOST_S
    outermost = [root for root in roots if not any(root != one and is_within(root, one) for one in roots)]
    looks: list[Look] = []

    def look() -> None:
        looks.extend(
            look_for_repositories(one, is_over=lambda: time.monotonic() > until_s) for one in outermost
        )

    try:
        start_job(look, name="last look").join(_MOST_S)
    except ShortageError:
        look()
    return "; ".join(filter(None, (one.sentence() for one in looks)))
