"""Draws what happens to one session from a seed and a number: its task, and when it is killed."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from random import Random
from typing import Literal

from tests.nemesis.task import Task, draw_task
from tests.nemesis.vendors import Outage, draw_outage

KillTime = Literal["time", "records", "write"]
Torn = Literal["", "part", "whole", "nul"]

MOST_KILLS = 8
_KILL_AGAIN = 0.72
"""The probability that a resumed run is killed too."""


@dataclass(frozen=True)
class Kill:
    """The moment at which a process gets SIGKILL."""

    by: KillTime
    share: float
    """The share of the usual duration (up to 1.5), or of the records that are still to be written (up to 1)."""
    delay_s: float
    """The delay in seconds after that many records. With `write`, after the next intent of a Write or an Edit."""
    torn: Torn
    """The bytes that are added to the journal after the kill, as a power failure may leave them: a part of a
    record, a whole record without its line break, or NUL bytes, which the next process must refuse.
    """


@dataclass(frozen=True)
class SessionPlan:
    name: str
    repeat_by: str
    """The arguments of `python -m tests.nemesis` that play this session again. The kernel decides what exactly a
    kill hits.
    """
    task: Task
    kills: tuple[Kill, ...]
    session_ids: tuple[str, ...]
    """The session's id, and further ids to use if the session is killed before it has a message."""
    outage: Outage | None = None
    """An outage that the model of another vendor bridges, or None."""


def plan_session(seed: int, number: int, *, has_outage: bool = False) -> SessionPlan:
    draw = Random(f"{seed}:{number}")
    kills = [_kill(draw)]
    while len(kills) < MOST_KILLS and draw.random() < _KILL_AGAIN:
        kills.append(_kill(draw))
    task = draw_task(draw)
    ids = tuple(str(uuid.UUID(int=draw.getrandbits(128), version=4)) for _ in range(MOST_KILLS + 1))
    return SessionPlan(
        f"session {number} of seed {seed}",
        f"--seed {seed} --only {number}{' --vendors' if has_outage else ''}",
        task,
        tuple(kills),
        ids,
        draw_outage(draw, len(task.turns)) if has_outage else None,
    )


def _kill(draw: Random) -> Kill:
    """Draws one kill. Most kills follow the journal, because a process spends most of its time on its start and on
    slow commands.
    """
    by: KillTime = draw.choices(("time", "records", "write"), weights=(30, 40, 30))[0]
    share = draw.uniform(0, 1.5) if by == "time" else draw.random() ** 1.5
    delays_s = (
        (0.0, 0.0, 0.0, 0.001) if by == "write" else (0.0, draw.uniform(0, 0.004), draw.uniform(0, 0.04))
    )
    torn: Torn = draw.choice(("", "", "", "part", "whole", "nul"))
    return Kill(by, share, draw.choice(delays_s), torn)
