"""Keeps a loop's state in memory and in its record, and repeats what fails because this machine lacks a resource such as
memory or a process. `save` returns only when the state is on disk. Nothing here decides how long to wait (`rules.py`).
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from ralph.loop.events import LoopWaits
from ralph.loop.rules import outage_wait
from ralph.loop.state import MOST_WAITS_KEPT, LoopWait, Phase
from ralph.loop.values import Setback
from ralph.retry.backoff import LASTED_TOO_LONG, PATIENT_SCHEDULE_S, GiveUp, ShortTime, met_again
from ralph.values.events import Notice
from ralph.values.outcome import Outcome
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.loop.ports import LoopWorld
    from ralph.loop.state import CurrentIteration, LoopState
    from ralph.loop.values import IterationResult
    from ralph.retry.backoff import Wait

T = TypeVar("T")
LACKING = "what this machine lacks (a process, a thread, memory, a file descriptor)"


class OutageLastsError(Exception):
    """A resource is still missing after all waits that the settings and the loop's time limit allow. The message is a
    sentence that names the resource, and `outcome` is the outcome of the loop.
    """

    def __init__(self, message: str, outcome: Outcome = Outcome.API_UNAVAILABLE) -> None:
        super().__init__(message)
        self.outcome = outcome


class LoopRecorder:
    def __init__(self, state: LoopState, world: LoopWorld) -> None:
        self.state = state
        self.retries = True
        """False once the loop ends: `retry` then raises the error of a shortage at once."""
        self.taken_over_at = state.updated_at or state.started_at
        """When an earlier process of the loop last saved the state, or when a new loop began. ISO 8601, in UTC."""
        self.warned = set[str]()
        self._world = world
        self._before_s = state.elapsed_s
        self._started_s = world.clock.now_s()

    @property
    def current(self) -> CurrentIteration:
        """The iteration in progress. The callers know that there is one."""
        assert self.state.current is not None  # noqa: S101 - callers know that an iteration is in progress
        return self.state.current

    def save(self, **changes: object) -> None:
        """Changes fields of the state and saves it. Raises OSError, Interrupted and OutageLastsError."""
        stamp = {"updated_at": self.now(), "elapsed_s": self.elapsed_s()}
        self.state = replace(self.state, **stamp, **changes)
        self.retry(lambda: self._world.record.save(self.state), is_recorded=False)

    def save_current(self, **changes: object) -> None:
        """Changes fields of the iteration in progress and saves the state. Raises as `save` does."""
        self.save(current=replace(self.current, **changes))

    def count(self, result: IterationResult) -> None:
        """Sets the turns and the cost of the iteration in progress. The next `save` writes them."""
        current = replace(self.current, turns=result.turns, cost_usd=result.cost_usd)
        self.state = replace(self.state, current=current)

    def count_unrecorded(self, worked_until: datetime) -> None:
        """Adds to `elapsed_s` the time that a killed process of the loop worked after its last save: until its iteration
        last wrote to the session's journal.
        """
        unrecorded_s = (worked_until - datetime.fromisoformat(self.taken_over_at)).total_seconds()
        self._before_s += max(unrecorded_s, 0.0)

    def elapsed_s(self) -> float:
        """The running time of this loop in seconds, summed over all its processes."""
        return round(self._before_s + self._world.clock.now_s() - self._started_s, 3)

    def left_s(self) -> float:
        """The remaining seconds of the loop's time limit. Infinite without one."""
        limit_s = self.state.plan.limits.max_time_s
        return math.inf if limit_s is None else limit_s - self.elapsed_s()

    def now(self) -> str:
        return self._world.clock.utc_now().isoformat()

    def warn(self, text: str) -> None:
        self.warned.add(text)
        self._world.events.emit(Notice(text, is_vital=True))

    def wait(self, wait: Wait, setback: Setback, number: int, *, is_recorded: bool = True) -> None:
        """Announces a wait and waits. `number` is the number of consecutive setbacks of this kind. With `is_recorded`, the
        record shows the wait until it is over. Raises OSError, Interrupted and OutageLastsError.
        """
        world, current = self._world, self.state.current
        began = world.clock.utc_now()
        until = began + timedelta(seconds=wait.seconds)
        world.events.emit(
            LoopWaits(
                setback=setback,
                setbacks=number,
                wait_s=wait.seconds,
                until=until,
                is_from_server=wait.from_server,
                has_own_schedule=world.schedule.outage_waits_s != PATIENT_SCHEDULE_S,
                iteration=None if current is None else current.number,
                session_id=None if current is None else current.session_id,
            )
        )
        if current is None or not is_recorded:
            self.sleep(wait.seconds, setback)
            return
        self.save_current(phase=Phase.WAITING, waits_until=until.isoformat())
        self.sleep(wait.seconds, setback)
        waited = LoopWait(setback.name.lower(), began.isoformat(), self.now(), current.number)
        self.save(
            current=replace(self.current, phase=current.phase, waits_until=None),
            waits=(*self.state.waits, waited)[-MOST_WAITS_KEPT:],
        )

    def sleep(self, seconds: float, setback: Setback = Setback.OUTAGE) -> None:
        """Sleeps, unless `seconds` is 0 or less. Raises Interrupted."""
        if seconds > 0:
            awaited = "the API" if setback is Setback.OUTAGE else "this machine"
            self._world.waiter.sleep(seconds, waiting_for=awaited)

    def retry(self, act: Callable[[], T], *, is_recorded: bool = True) -> T:
        """Returns the value of `act`, which is called again after a wait as long as it fails because this machine lacks a
        resource. `is_recorded` is as in `wait`. Raises Interrupted, all other errors of `act`, and OutageLastsError.
        """
        number, slept_s = 0, 0.0
        short: ShortTime | None = None
        clock = self._world.clock
        while True:
            try:
                return act()
            except (OSError, MemoryError) as error:
                shortage = shortage_of(error)
                if not self.retries or shortage is None:
                    raise
            short = met_again(short, str(shortage), clock.now_s())
            left_s = short.left_s(clock.now_s())
            if left_s <= 0:
                raise OutageLastsError(f"{LASTED_TOO_LONG}: {shortage}", Outcome.IO_ERROR)
            number += 1
            wait = outage_wait(number, slept_s, None, self._world.schedule, self.left_s(), away=LACKING)
            if isinstance(wait, GiveUp):
                raise OutageLastsError(wait.reason)
            wait = replace(wait, seconds=min(wait.seconds, left_s))
            self.wait(wait, Setback.SHORTAGE, number, is_recorded=is_recorded)
            slept_s += wait.seconds

    def retry_locked(self, act: Callable[[], T]) -> T:
        """As `retry`, with the turn lock held while `act` runs, but not during the waits."""

        def act_locked() -> T:
            try:
                self._world.turn_lock.take()
                return act()
            finally:
                self._world.turn_lock.release()

        return self.retry(act_locked)
