"""A loop's state together with its record. A change is saved to disk before the loop acts on it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.loop.patience import Patience
from ralph.values.events import Notice

if TYPE_CHECKING:
    from ralph.loop.ports import LoopWorld
    from ralph.loop.state import CurrentIteration, LoopState


class LoopBook:
    def __init__(self, state: LoopState, world: LoopWorld) -> None:
        self.state = state
        self.patience = Patience(self, world)
        self.taken_over_at = state.updated_at
        """The time at which the state was last saved, before this process took the loop over."""
        self._world = world
        self._before_s = state.elapsed_s
        self._started_s = world.clock.now_s()

    @property
    def current(self) -> CurrentIteration:
        """The current iteration. Call it only during an iteration."""
        assert self.state.current is not None  # noqa: S101 - as said
        return self.state.current

    def save(self, **changes: object) -> None:
        """Saves the state. Waits for a short shortage to pass. Raises OSError."""
        stamp = {"updated_at": self.now(), "elapsed_s": self.elapsed_s()}
        self.state = replace(self.state, **stamp, **changes)
        self.patience.keep_trying(lambda: self._world.record.save(self.state), is_recorded=False)

    def save_current(self, **changes: object) -> None:
        """Saves the record of the current iteration. Raises OSError."""
        self.save(current=replace(self.current, **changes))

    def note(self, text: str) -> None:
        """Reports the text now, and keeps it for the end of the loop."""
        self._world.events.emit(Notice(text, is_vital=True))
        self.state = replace(self.state, notes=(*self.state.notes, text))

    def count_unrecorded(self, worked_until: datetime) -> None:
        """Counts the time that an earlier process worked between its last record and its kill."""
        unrecorded_s = (worked_until - datetime.fromisoformat(self.taken_over_at)).total_seconds()
        self._before_s += max(unrecorded_s, 0.0)

    def elapsed_s(self) -> float:
        """Seconds that all processes of this loop have taken."""
        return self._before_s + self._world.clock.now_s() - self._started_s

    def now(self) -> str:
        return self._world.clock.utc_now().isoformat()
