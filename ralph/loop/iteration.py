"""Runs one iteration of `ralph loop`: begins or resumes it, waits after each setback, and returns its result. There
are three kinds of setbacks: the API is down, this machine lacks a resource such as memory, or the process was killed.
`iterate.py` decides what follows the result.
"""

from __future__ import annotations

import math
import uuid
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.git.snapshot import Snapshot
from ralph.loop.events import IterationBegan, IterationResumed
from ralph.loop.patience import LACKING, lasting_words
from ralph.loop.prompt import iteration_prompt
from ralph.loop.rules import Share, is_counted, outage_wait, share, wait_after_kill
from ralph.loop.state import Phase, begun, snapshot_before
from ralph.loop.values import IterationOrder, IterationResult, LoopEnd, Setback
from ralph.retry.backoff import GiveUp, Wait, met_again
from ralph.values.outcome import Outcome
from ralph.values.usage import total_usd

if TYPE_CHECKING:
    from ralph.loop.book import LoopBook
    from ralph.loop.ports import LoopWorld
    from ralph.loop.state import CurrentIteration
    from ralph.retry.backoff import ShortTime


class Iteration:
    def __init__(self, book: LoopBook, world: LoopWorld) -> None:
        self._book = book
        self._world = world
        self._prompt: str | None = None
        """The prompt of a new session, or None if the iteration resumes a session."""
        self._task_chars = 0
        """The length of the user's own text, which is at the end of the prompt."""
        self.before = Snapshot("")
        """The state of the checkout when the iteration began."""
        self.granted = Share(None, None, is_rest_of_budget=False, is_rest_of_time=False)
        """The limits that the iteration's last process got."""
        self._short_time: ShortTime | None = None
        """For how long only one shortage of this machine has ended the iteration's processes."""

    def begin(self) -> None:
        """Begins an iteration and records that. Does not start a process; `run` does. Raises CheckoutError, OSError,
        Interrupted and OutageLastsError.
        """
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

    def resume(self) -> None:
        """Prepares to resume an iteration that was begun by an earlier process of this loop. If the end of that
        process interrupted a wait, first waits for the remaining time. Raises OSError, Interrupted and
        OutageLastsError.
        """
        current = self._book.current
        self.before = snapshot_before(current)
        seen = self._world.iterations.seen(current.session_id)
        if seen is not None and seen.written_at is not None:
            self._book.count_unrecorded(seen.written_at)
        if seen is not None and seen.ended is not None and seen.ended.outcome is Outcome.API_REJECTED:
            seen = None  # the API would reject the resumed session again
        most = self._book.state.plan.limits.max_iterations
        resumed = IterationResumed(current.number, most, current.session_id, is_anew=seen is None)
        self._world.events.emit(resumed)
        fresh = replace(current, outages=0, slept_s=0.0, kills=0, waits_until=None, phase=Phase.WORKING)
        if seen is not None:
            self._book.patience.sleep(self._rest_of_wait_s())
            spent = self._with_earlier(IterationResult(0, Outcome.COMPLETED, seen.turns, seen.cost_usd))
            fresh = replace(fresh, turns=spent.turns, cost_usd=spent.cost_usd)
        else:
            self._prompt = self._composed_prompt()
            fresh = _with_another_session(fresh)
        self._book.save(current=fresh)

    def _rest_of_wait_s(self) -> float:
        """The remaining seconds of a wait that was interrupted by the end of an earlier process. 0 or less if no time
        remains. The wall clock may have been set back, so the result is never more than what remained when that
        process last saved the state.
        """
        state = self._book.state
        if state.current is None or not state.current.waits_until:
            return 0.0
        until = datetime.fromisoformat(state.current.waits_until)
        was_s = (until - datetime.fromisoformat(self._book.taken_over_at)).total_seconds()
        rest_s = (until - self._world.clock.utc_now()).total_seconds()
        return min(was_s, rest_s, self._book.patience.left_s())

    def run(self) -> IterationResult | LoopEnd:
        """Runs the iteration until it ends for a reason other than a setback, and returns its result. If there were
        too many setbacks, returns the loop's end. Raises OSError, Interrupted and OutageLastsError.
        """
        while True:
            self.granted = share(self._book.state, self._world.own_limits, self._book.elapsed_s())
            result = self._with_earlier(self._unseen_end() or self._world.iterations.run(self._order()))
            self._book.count(result)
            setback = result.has_to_wait_for
            if setback is None:
                return result
            if setback is Setback.KILL and (ended := unseen_end(self._book, self._world)) is not None:
                return self._with_earlier(ended)
            wait, number = self._counted(result, setback)
            left_s = self._short_left_s(result, setback)
            if left_s <= 0:
                return LoopEnd(Outcome.IO_ERROR, Outcome.IO_ERROR.exit_code(), lasting_words(result.reason))
            if isinstance(wait, Wait):
                wait = replace(wait, seconds=min(wait.seconds, left_s))
            if isinstance(wait, GiveUp):
                away = Outcome.API_UNAVAILABLE
                return LoopEnd(away, away.exit_code(), wait.reason, result.retry_after_s)
            self._book.patience.wait(wait, setback, number)
            self._resume_after(wait)

    def _short_left_s(self, result: IterationResult, setback: Setback) -> float:
        """The seconds until a shortage that was met again and again is one that does not pass."""
        now_s = self._world.clock.now_s()
        short = setback is Setback.SHORTAGE
        self._short_time = (
            met_again(self._short_time, f"{result.turns} {result.reason}", now_s) if short else None
        )
        return math.inf if self._short_time is None else self._short_time.left_s(now_s)

    def _counted(self, result: IterationResult, setback: Setback) -> tuple[Wait | GiveUp, int]:
        """Counts one more setback. Returns the next wait, or the decision to give up. Also returns the number of
        consecutive setbacks of this kind. A kill does not reset the number of outages. Otherwise outages and kills
        could alternate for ever.
        """
        current, schedule, left_s = self._book.current, self._world.schedule, self._book.patience.left_s()
        if setback is Setback.KILL:
            self._book.save_current(kills=current.kills + 1)
            number = current.kills + 1
            reason = f"iteration {current.number} {result.reason}"
            return wait_after_kill(number, reason, schedule, left_s), number
        self._book.save_current(outages=current.outages + 1, kills=0)
        number, away = current.outages + 1, LACKING if setback is Setback.SHORTAGE else "the API"
        requested_s = result.retry_after_s
        return outage_wait(number, current.slept_s, requested_s, schedule, left_s, away=away), number

    def _resume_after(self, wait: Wait) -> None:
        """Prepares to resume the session after the wait `wait`. If the session has no journal that can be resumed,
        the iteration begins anew.
        """
        current = self._book.current
        is_begun = self._world.iterations.seen(current.session_id) is not None
        fresh = replace(current, slept_s=current.slept_s + wait.seconds)
        if is_begun:
            self._prompt = None
        else:
            self._prompt = self._composed_prompt()
            fresh = _with_another_session(fresh)
        self._book.save(current=fresh)

    def _with_earlier(self, result: IterationResult) -> IterationResult:
        """Adds the turns and the cost of the iteration's earlier sessions to the result. Its texts lose the credentials:
        a journal, from which they may come, has them as they are.
        """
        current = self._book.current
        cost = total_usd((result.cost_usd, current.earlier_cost_usd))
        texts = {
            name: self._world.redact(getattr(result, name)) for name in ("last_words", "summary", "reason")
        }
        return replace(result, turns=result.turns + current.earlier_turns, cost_usd=cost, **texts)

    def _composed_prompt(self) -> str:
        """The user's prompt, after a text with facts that a fresh context needs. Also makes the directory of the stop
        file, if the stop file can end the loop. Raises OSError.
        """
        if not self._book.state.plan.has_condition:
            self._world.stop_file.make_room()
        own = self._world.read_prompt()
        self._task_chars = len(own)
        return iteration_prompt(self._book.state, own)

    def _unseen_end(self) -> IterationResult | None:
        return None if self._prompt is not None else unseen_end(self._book, self._world)

    def _order(self) -> IterationOrder:
        current, granted = self._book.current, self.granted
        if self._prompt is not None:
            self._world.events.emit(
                IterationBegan(
                    current.number,
                    self._book.state.plan.limits.max_iterations,
                    current.session_id,
                    left_usd=granted.budget_usd if granted.is_rest_of_budget else None,
                    left_s=granted.time_s if granted.is_rest_of_time else None,
                )
            )
        waiting_for = f"iteration {current.number}"
        return IterationOrder(
            *(current.session_id, self._prompt, granted.budget_usd, granted.time_s, waiting_for),
            task_chars=self._task_chars,
            number=current.number,
        )


def _with_another_session(current: CurrentIteration) -> CurrentIteration:
    """Gives the iteration a new session id. The old id cannot be used again, because its session exists but has no
    message and cannot be resumed. The turns and the cost of the old session are still included in the totals.
    """
    return replace(
        current,
        session_id=str(uuid.uuid4()),
        earlier_turns=current.turns,
        earlier_cost_usd=current.cost_usd,
    )


def unseen_end(book: LoopBook, world: LoopWorld) -> IterationResult | None:
    """The result of a session that ended without the loop noticing, because the loop or the session's process was
    killed. The result is read from the session's journal. None if the journal has no result, or if this result does
    not complete the iteration (`is_counted`).
    """
    seen = world.iterations.seen(book.current.session_id)
    ended = seen.ended if seen is not None else None
    return ended if ended is not None and is_counted(ended.outcome) else None
