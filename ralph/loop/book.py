"""A loop's state with its record: what is changed here is on the disk before anything follows from it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.values.events import Notice

if TYPE_CHECKING:
    from ralph.loop.ports import LoopRecord
    from ralph.loop.state import CurrentIteration, LoopState
    from ralph.values.ports import Clock, Events


class LoopBook:
    def __init__(self, state: LoopState, record: LoopRecord, events: Events, clock: Clock) -> None:
        self.state = state
        self.taken_over_at = state.updated_at
        """The time at which the previous process recorded something last."""
        self._record = record
        self._events = events
        self._clock = clock
        self._before_s = state.elapsed_s
        self._started_s = clock.now_s()

    @property
    def current(self) -> CurrentIteration:
        """Asked within an iteration only."""
        assert self.state.current is not None  # noqa: S101 - as said
        return self.state.current

    def save(self, **changes: object) -> None:
        """Raises OSError."""
        stamp = {"updated_at": self.now(), "elapsed_s": self.elapsed_s()}
        self.state = replace(self.state, **stamp, **changes)
        self._record.save(self.state)

    def save_current(self, **changes: object) -> None:
        """Saves the record of the iteration under way. Raises OSError."""
        self.save(current=replace(self.current, **changes))

    def note(self, text: str) -> None:
        """People are told now, and once more in the end."""
        self._events.emit(Notice(text, is_vital=True))
        self.state = replace(self.state, notes=(*self.state.notes, text))

    def count_unrecorded(self, worked_until: datetime) -> None:
        """An earlier process was killed some time after its last record: until then its time counts too."""
        unrecorded_s = (worked_until - datetime.fromisoformat(self.taken_over_at)).total_seconds()
        self._before_s += max(unrecorded_s, 0.0)

    def elapsed_s(self) -> float:
        """Over all processes of this loop."""
        return self._before_s + self._clock.now_s() - self._started_s

    def now(self) -> str:
        return self._clock.utc_now().isoformat()
