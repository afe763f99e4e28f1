"""One iteration of the outer loop, to its result: begun or taken up, and through every outage on the way.

It refuses to judge the result: what follows from it is `outer_loop.py`'s.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ralph.core.backoff import GiveUp
from ralph.core.loop_prompt import iteration_prompt
from ralph.core.loop_rules import Share, is_counted, outage_wait, share
from ralph.core.loop_state import Phase, begun, snapshot_before
from ralph.core.loop_values import IterationOrder, IterationResult, LoopEnd, Snapshot
from ralph.core.outcome import Outcome

if TYPE_CHECKING:
    from ralph.core.backoff import Wait
    from ralph.loop_book import LoopBook
    from ralph.loop_ports import LoopWorld


class Iteration:
    def __init__(self, book: LoopBook, world: LoopWorld) -> None:
        self._book = book
        self._world = world
        self._prompt: str | None = None
        """None: its session is resumed."""
        self.before = Snapshot("")
        """The checkout as it was when the iteration began."""
        self.granted = Share(None, None, is_rest_of_budget=False, is_rest_of_time=False)
        """What its last process might use."""

    def begin(self) -> None:
        """Recorded before its process starts. Raises CheckoutError, OSError and `Interrupted`."""
        self.before = self._world.checkout.snapshot()
        self._prompt = self._composed_prompt()
        self._book.save(
            current=begun(
                len(self._book.state.iterations) + 1,
                str(uuid.uuid4()),
                self.before,
                started_at=self._book.now(),
                elapsed_s=self._book.elapsed_s(),
            )
        )

    def take_up(self) -> None:
        """The one that an earlier process of this loop has begun. Raises OSError and `Interrupted`."""
        current = self._book.current
        self.before = snapshot_before(current)
        seen = self._world.iterations.seen(current.session_id)
        if seen is not None and seen.written_at is not None:
            self._book.count_unrecorded(seen.written_at)
        if seen is not None and seen.ended is not None and seen.ended.outcome is Outcome.API_REJECTED:
            seen = None  # what was refused once would be refused again
        self._world.people.taken_up(self._book.state, is_anew=seen is None)
        fresh = replace(current, outages=0, slept_s=0.0, waits_until=None, phase=Phase.WORKING)
        if seen is not None:
            self._sleep(self._rest_of_wait_s())
            spent = self._with_earlier(IterationResult(0, Outcome.COMPLETED, seen.turns, seen.cost_usd))
            fresh = replace(fresh, turns=spent.turns, cost_usd=spent.cost_usd)
        else:
            self._prompt = self._composed_prompt()
            # A journal without a message may have the old one.
            fresh = replace(
                fresh,
                session_id=str(uuid.uuid4()),
                earlier_turns=current.turns,
                earlier_cost_usd=current.cost_usd,
            )
        self._book.save(current=fresh)

    def _rest_of_wait_s(self) -> float:
        """Of one that was broken off. No more than it was then, whatever the wall clock has done since."""
        state = self._book.state
        if state.current is None or state.current.waits_until is None:
            return 0.0
        until = datetime.fromisoformat(state.current.waits_until)
        was_s = (until - datetime.fromisoformat(self._book.taken_over_at)).total_seconds()
        rest_s = (until - self._world.clock.utc_now()).total_seconds()
        limit_s = state.plan.limits.max_time_s
        left_s = math.inf if limit_s is None else limit_s - self._book.elapsed_s()
        return min(was_s, rest_s, left_s)

    def run(self) -> IterationResult | LoopEnd:
        """Until it ends by something else than an API that is away. Raises OSError and `Interrupted`."""
        while True:
            self.granted = share(self._book.state, self._world.own_limits, self._book.elapsed_s())
            result = self._with_earlier(self._unseen_end() or self._world.iterations.run(self._order()))
            self._book.save_current(turns=result.turns, cost_usd=result.cost_usd)
            if result.outcome is not Outcome.API_UNAVAILABLE or result.stopped_by is not None:
                return result
            wait = self._outage(result)
            if isinstance(wait, GiveUp):
                return LoopEnd(Outcome.API_UNAVAILABLE, Outcome.API_UNAVAILABLE.exit_code(), wait.reason)
            self._wait(wait)
            if self._world.iterations.seen(self._book.current.session_id) is not None:
                self._prompt = None

    def _with_earlier(self, result: IterationResult) -> IterationResult:
        """What the iteration took, and not its last session alone."""
        current = self._book.current
        cost = None
        if result.cost_usd is not None and current.earlier_cost_usd is not None:
            cost = result.cost_usd + current.earlier_cost_usd
        return replace(result, turns=result.turns + current.earlier_turns, cost_usd=cost)

    def _composed_prompt(self) -> str:
        """Raises OSError."""
        if self._book.state.plan.until is None:
            self._world.stop_file.make_room()
        return iteration_prompt(self._book.state, self._world.read_prompt())

    def _unseen_end(self) -> IterationResult | None:
        return None if self._prompt is not None else unseen_end(self._book, self._world)

    def _order(self) -> IterationOrder:
        current, granted = self._book.current, self.granted
        if self._prompt is not None:
            self._world.people.begins(self._book.state, granted)
        waiting_for = f"iteration {current.number}"
        return IterationOrder(
            current.session_id, self._prompt, granted.budget_usd, granted.time_s, waiting_for
        )

    def _outage(self, result: IterationResult) -> Wait | GiveUp:
        self._book.save_current(outages=self._book.current.outages + 1)
        limit_s = self._book.state.plan.limits.max_time_s
        left_s = math.inf if limit_s is None else limit_s - self._book.elapsed_s()
        return outage_wait(self._book.current, result.retry_after_s, self._world.schedule, left_s)

    def _wait(self, wait: Wait) -> None:
        until = self._world.clock.utc_now() + timedelta(seconds=wait.seconds)
        self._world.people.waits(self._book.state, wait, until)
        self._book.save_current(phase=Phase.WAITING, waits_until=until.isoformat())
        self._sleep(wait.seconds)
        slept_s = self._book.current.slept_s + wait.seconds
        self._book.save_current(phase=Phase.WORKING, waits_until=None, slept_s=slept_s)

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._world.waiter.sleep(seconds, waiting_for="the API")


def unseen_end(book: LoopBook, world: LoopWorld) -> IterationResult | None:
    """Of the current session, where it ended while nobody looked: the loop was killed in the moment after."""
    seen = world.iterations.seen(book.current.session_id)
    ended = seen.ended if seen is not None else None
    return ended if ended is not None and is_counted(ended.outcome) else None
