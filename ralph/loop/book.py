"""Keeps a loop's state in memory, and saves it to the loop's record file. `save` returns only when the state is on
disk.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.loop.patience import Patience

if TYPE_CHECKING:
    from ralph.loop.ports import LoopWorld
    from ralph.loop.state import CurrentIteration, LoopState
    from ralph.loop.values import IterationResult


class LoopBook:
    def __init__(self, state: LoopState, world: LoopWorld) -> None:
        self.state = state
        self.patience = Patience(self, world)
        self.taken_over_at = state.updated_at or state.started_at
        """The time at which an earlier process of the loop last saved the state. For a new loop, the time of its
        start. ISO 8601, in UTC."""
        self._world = world
        self._before_s = state.elapsed_s
        self._started_s = world.clock.now_s()

    @property
    def current(self) -> CurrentIteration:
        """The iteration in progress. Raises AssertionError if no iteration is in progress."""
        assert self.state.current is not None  # noqa: S101 - callers know that an iteration is in progress
        return self.state.current

    def save(self, **changes: object) -> None:
        """Changes the given fields of the state and saves the state. If this machine lacks a resource such as memory,
        waits and tries again. Raises OSError, Interrupted and OutageLastsError.
        """
        stamp = {"updated_at": self.now(), "elapsed_s": self.elapsed_s()}
        self.state = replace(self.state, **stamp, **changes)
        self.patience.keep_trying(lambda: self._world.record.save(self.state), is_recorded=False)

    def save_current(self, **changes: object) -> None:
        """Changes the given fields of the iteration in progress and saves the state. Raises as `save` does."""
        self.save(current=replace(self.current, **changes))

    def count(self, result: IterationResult) -> None:
        """Sets the turns and the cost of the iteration in progress. Does not write to disk; the next `save` does."""
        current = replace(self.current, turns=result.turns, cost_usd=result.cost_usd)
        self.state = replace(self.state, current=current)

    def count_unrecorded(self, worked_until: datetime) -> None:
        """If an earlier process of the loop was killed, adds to `elapsed_s` the time that it worked after its last
        save. `worked_until` is the time at which the iteration of that process last wrote to the session's journal.
        """
        unrecorded_s = (worked_until - datetime.fromisoformat(self.taken_over_at)).total_seconds()
        self._before_s += max(unrecorded_s, 0.0)

    def elapsed_s(self) -> float:
        """The total running time of this loop in seconds, summed over all its processes."""
        return round(self._before_s + self._world.clock.now_s() - self._started_s, 3)

    def now(self) -> str:
        return self._world.clock.utc_now().isoformat()
