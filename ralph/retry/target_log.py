"""What a session's journal is told of its targets: who is asked, who comes first, whose cooldown ends when. Pure.

It keeps what was told last, and gives a record only where something else is true by now.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from ralph.conversation.records import target_record

if TYPE_CHECKING:
    from datetime import datetime

    from ralph.conversation.records import Record
    from ralph.retry.roster import Roster


class _Told(NamedTuple):
    target: str
    first: str
    cooling: tuple[tuple[str, float], ...] = ()


class TargetLog:
    def __init__(self, roster: Roster) -> None:
        """As a `run` record leaves it: the first target is asked, and nobody cools down."""
        self._told = _Told(roster.first.name, roster.first.name)
        self._named = {roster.first.name}
        """Whose requests' head this run's records hold."""

    @property
    def target(self) -> str:
        """Who is asked, by the records."""
        return self._told.target

    def records(self, roster: Roster, now_s: float, now: datetime) -> list[Record]:
        """None or one. `now_s` and `now` are the same moment, on the run's clock and on the wall."""
        target = roster.target
        ends_s = {name: end_s for name, end_s in roster.cooling_s().items() if end_s > now_s}
        told = _Told(target.name, roster.first.name, tuple(sorted(ends_s.items())))
        if told == self._told or (not roster.rules.is_rotation and target is roster.first):
            return []
        shape = None if target.name in self._named else roster.shape
        self._told = told
        self._named.add(target.name)
        cooling = {
            name: (now + timedelta(seconds=end_s - now_s)).isoformat() for name, end_s in ends_s.items()
        }
        return [target_record(target.name, shape, cooling, roster.first.name)]
