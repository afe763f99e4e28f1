"""The look through the working directories at the end of a run: what commands may have planted below their tops."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.machine.repository import is_within
from ralph.machine.starting import start_job
from ralph.places.gather import changed_by_run, users_relative_programs
from ralph.places.nested_repositories import Look, look_below
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOOKS_FOR_S, _MOST_S = 1.8, 2.5
"""A run ends soon, also if a file system does not answer."""


def last_look(roots: Sequence[str], since_s: float, environment: Mapping[str, str]) -> str:
    """Sentences for people. Empty if nothing was found. `since_s` is the time when the run began, in seconds of the epoch."""
    until_s = time.monotonic() + _LOOKS_FOR_S
    outermost = [root for root in roots if not any(root != one and is_within(root, one) for one in roots)]
    looks: list[Look] = []
    programs: list[str] = []

    def look() -> None:
        with suppress(OSError):  # a shortage of this machine, after the work is done
            programs.append(changed_by_run(roots, since_s, environment))
            users = users_relative_programs(environment)
            looks.extend(
                look_below(
                    one,
                    roots=roots,
                    since_s=since_s,
                    users=users,
                    is_over=lambda: time.monotonic() > until_s,
                )
                for one in outermost
            )

    try:
        start_job(look, name="last look").join(_MOST_S)
    except ShortageError:
        look()
    sentences = [one.sentence() for one in [*looks]]
    if len(sentences) < len(outermost):  # the file system does not answer
        sentences.append(Look((), is_cut=True).sentence())
    return "; ".join(filter(None, (*programs, *sentences)))
