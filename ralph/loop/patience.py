"""Waits while a resource is missing, such as the API, memory or a free process slot. If a call fails because memory,
processes, threads or file descriptors are missing, the call is repeated after the wait.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from ralph.loop.events import LoopWaits
from ralph.loop.rules import outage_wait
from ralph.loop.state import MOST_WAITS_KEPT, LoopWait, Phase
from ralph.loop.values import Setback
from ralph.retry.backoff import LASTS_S, PATIENT_SCHEDULE_S, GiveUp, ShortTime, met_again
from ralph.values.outcome import Outcome
from ralph.values.screen_text import time_limit
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ralph.git.snapshot import Changes, Snapshot
    from ralph.loop.book import LoopBook
    from ralph.loop.ports import Check, Checkout, Iterations, LoopWorld
    from ralph.loop.values import (
        CheckResult,
        IterationOrder,
        IterationResult,
        SessionSeen,
    )
    from ralph.retry.backoff import Wait
    from ralph.values.redaction import LookedCommit

T = TypeVar("T")
LACKING = "what this machine lacks (a process, a thread, memory, a file descriptor)"


class OutageLastsError(Exception):
    """A resource is still missing, although ralph has waited as long as the settings and the loop's time limit allow.
    The message is a sentence that names the resource.
    """

    def __init__(self, message: str, outcome: Outcome = Outcome.API_UNAVAILABLE) -> None:
        """`outcome` is the outcome of the loop."""
        super().__init__(message)
        self.outcome = outcome


def lasting_words(reason: str) -> str:
    """The reason of a loop's end after a shortage that does not pass. `reason` says what was missing."""
    return f"the same shortage has lasted for {time_limit(LASTS_S)}: {reason}"


class Patience:
    def __init__(self, book: LoopBook, world: LoopWorld) -> None:
        self._book = book
        self._world = world
        self._is_over = False

    def end(self) -> None:
        """Ends all waiting. From now on, `keep_trying` raises the error of a shortage at once."""
        self._is_over = True

    def left_s(self) -> float:
        """The remaining seconds of the loop's time limit. Infinite if there is no limit."""
        limit_s = self._book.state.plan.limits.max_time_s
        return math.inf if limit_s is None else limit_s - self._book.elapsed_s()

    def wait(self, wait: Wait, setback: Setback, number: int, *, is_recorded: bool = True) -> None:
        """Emits an event about the wait, then waits. `number` is the number of consecutive setbacks of this kind. If
        `is_recorded` is True, the loop's record shows the wait until it is over. Raises OSError, Interrupted and
        OutageLastsError.
        """
        began = self._world.clock.utc_now()
        until = began + timedelta(seconds=wait.seconds)
        self._world.events.emit(self._announced(wait, until, setback, number))
        current = self._book.state.current if is_recorded else None
        if current is not None:
            self._book.save_current(phase=Phase.WAITING, waits_until=until.isoformat())
        self.sleep(wait.seconds, setback)
        if current is not None:
            waited = LoopWait(setback.name.lower(), began.isoformat(), self._book.now(), current.number)
            self._book.save(
                current=replace(self._book.current, phase=current.phase, waits_until=None),
                waits=(*self._book.state.waits, waited)[-MOST_WAITS_KEPT:],
            )

    def _announced(self, wait: Wait, until: datetime, setback: Setback, number: int) -> LoopWaits:
        current = self._book.state.current
        return LoopWaits(
            setback=setback,
            setbacks=number,
            wait_s=wait.seconds,
            until=until,
            is_from_server=wait.from_server,
            has_own_schedule=self._world.schedule.outage_waits_s != PATIENT_SCHEDULE_S,
            iteration=current.number if current is not None else None,
            session_id=current.session_id if current is not None else None,
        )

    def sleep(self, seconds: float, setback: Setback = Setback.OUTAGE) -> None:
        """Sleeps for `seconds`. Does not sleep if `seconds` is 0 or less. Raises Interrupted."""
        if seconds > 0:
            awaited = "the API" if setback is Setback.OUTAGE else "this machine"
            self._world.waiter.sleep(seconds, waiting_for=awaited)

    def keep_trying(self, act: Callable[[], T], *, is_recorded: bool = True) -> T:
        """Calls `act` and returns its value. If `act` fails because this machine lacks a resource, waits and calls it
        again. `is_recorded` is as in `wait`. Raises Interrupted and all other errors of `act`. Raises
        OutageLastsError if the resource is still missing after all waits.
        """
        number, slept_s = 0, 0.0
        short: ShortTime | None = None
        while True:
            try:
                return act()
            except (OSError, MemoryError) as error:
                shortage = shortage_of(error)
                if self._is_over or shortage is None:
                    raise
            short = met_again(short, str(shortage), self._world.clock.now_s())
            left_s = short.left_s(self._world.clock.now_s())
            if left_s <= 0:
                raise OutageLastsError(lasting_words(str(shortage)), Outcome.IO_ERROR)
            number += 1
            wait = outage_wait(number, slept_s, None, self._world.schedule, self.left_s(), away=LACKING)
            if isinstance(wait, GiveUp):
                raise OutageLastsError(wait.reason)
            wait = replace(wait, seconds=min(wait.seconds, left_s))
            self.wait(wait, Setback.SHORTAGE, number, is_recorded=is_recorded)
            slept_s += wait.seconds

    def keep_trying_locked(self, act: Callable[[], T]) -> T:
        """Does as `keep_trying`, and holds the turn lock while `act` runs, but not during the waits."""

        def act_locked() -> T:
            try:
                self._world.turn_lock.take()
                return act()
            finally:
                self._world.turn_lock.release()

        return self.keep_trying(act_locked)


class PatientIterations:
    """An `Iterations` port that can wait. If `seen` fails because this machine lacks a resource such as memory, it is
    called again, as in `Patience.keep_trying`. `run` is never repeated.
    """

    def __init__(self, iterations: Iterations, patience: Patience) -> None:
        self._iterations = iterations
        self._patience = patience

    def run(self, order: IterationOrder) -> IterationResult:
        return self._iterations.run(order)

    def seen(self, session_id: str) -> SessionSeen | None:
        return self._patience.keep_trying(lambda: self._iterations.seen(session_id))


class PatientCheckout:
    """A `Checkout` port that can wait. If a method fails because this machine lacks a resource such as a process, it
    is called again, as in `Patience.keep_trying`.
    """

    def __init__(self, checkout: Checkout, patience: Patience) -> None:
        self._checkout = checkout
        self._patience = patience

    def snapshot(self) -> Snapshot:
        return self._patience.keep_trying(self._checkout.snapshot)

    def changes(self, before: Snapshot, after: Snapshot) -> Changes:
        return self._patience.keep_trying(lambda: self._checkout.changes(before, after))

    def commit(self, message: str, seen: Snapshot | None = None) -> bool:
        return self._patience.keep_trying_locked(lambda: self._checkout.commit(message, seen))

    def look_through(self, since: str) -> tuple[str, tuple[LookedCommit, ...]]:
        return self._patience.keep_trying(lambda: self._checkout.look_through(since))

    def commit_aside(
        self, message: str, *, earlier: str | None, has_work: bool, pushes: bool, limit_s: float
    ) -> str | None:
        return self._patience.keep_trying_locked(
            lambda: self._checkout.commit_aside(
                message, earlier=earlier, has_work=has_work, pushes=pushes, limit_s=limit_s
            )
        )

    def push(self, branch: str | None = None) -> int:
        return self._patience.keep_trying(lambda: self._checkout.push(branch))

    def unpushed(self) -> int | None:
        return self._patience.keep_trying(self._checkout.unpushed)


class PatientCheck:
    """A `Check` port that can wait. If the check cannot be started because this machine lacks a resource, it is
    started again, as in `Patience.keep_trying`. Such a failure says nothing about the agent's work.
    """

    def __init__(self, check: Check, patience: Patience) -> None:
        self._check = check
        self._patience = patience

    def run(self, limit_s: float) -> CheckResult:
        return self._patience.keep_trying_locked(lambda: self._check.run(limit_s))
