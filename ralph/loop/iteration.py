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

from ralph.git.progress import Snapshot
from ralph.loop.events import IterationBegan, IterationResumed
from ralph.loop.prompt import iteration_prompt
from ralph.loop.recorder import LACKING
from ralph.loop.rules import Share, is_counted, outage_wait, share, wait_after_kill
from ralph.loop.state import Phase, new_iteration, snapshot_before
from ralph.loop.values import IterationOrder, IterationResult, LoopEnd, Setback, loop_end
from ralph.retry.backoff import LASTED_TOO_LONG, GiveUp, Wait, met_again
from ralph.values.outcome import Outcome
from ralph.values.usage import total_usd

if TYPE_CHECKING:
    from ralph.loop.ports import LoopWorld
    from ralph.loop.recorder import LoopRecorder
    from ralph.loop.state import CurrentIteration
    from ralph.loop.values import IterationSession
    from ralph.retry.backoff import ShortTime


class Iteration:
    def __init__(self, recorder: LoopRecorder, world: LoopWorld) -> None:
        self._recorder = recorder
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
        """For how long every end of the iteration's processes was due to the same shortage of this machine."""

    def begin(self) -> None:
        """Begins an iteration and records that. Does not start a process; `run` does. Raises CheckoutError, OSError,
        Interrupted and OutageLastsError.
        """
        recorder = self._recorder
        self.before = recorder.retry(self._world.checkout.snapshot)
        self._compose_prompt()
        number, now, elapsed_s = len(recorder.state.iterations) + 1, recorder.now(), recorder.elapsed_s()
        began = new_iteration(number, str(uuid.uuid4()), self.before, started_at=now, elapsed_s=elapsed_s)
        recorder.save(current=began)

    def resume(self) -> None:
        """Prepares to resume an iteration that an earlier process of this loop began. Waits for the rest of a wait that the
        end of that process interrupted. Raises OSError, Interrupted and OutageLastsError.
        """
        recorder, current = self._recorder, self._recorder.current
        self.before = snapshot_before(current)
        seen = session_seen(recorder, self._world)
        if seen is not None and seen.written_at is not None:
            recorder.count_unrecorded(seen.written_at)
        is_anew = seen is None or not seen.can_resume
        most = recorder.state.plan.limits.max_iterations
        self._world.events.emit(IterationResumed(current.number, most, current.session_id, is_anew=is_anew))
        fresh = replace(current, outages=0, slept_s=0.0, kills=0, waits_until=None, phase=Phase.WORKING)
        if seen is not None:
            spent = self._with_earlier(IterationResult(0, Outcome.COMPLETED, seen.turns, seen.cost_usd))
            fresh = replace(fresh, turns=spent.turns, cost_usd=spent.cost_usd)
        if not is_anew:
            recorder.sleep(self._rest_of_wait_s())
        else:
            self._compose_prompt()
            fresh = _with_another_session(fresh)
        recorder.save(current=fresh)

    def _rest_of_wait_s(self) -> float:
        """The rest of a wait that the end of an earlier process interrupted, or 0 or less. The wall clock may have been set
        back, so this is never more than what remained when that process last saved the state.
        """
        recorder = self._recorder
        if not recorder.current.waits_until:
            return 0.0
        until = datetime.fromisoformat(recorder.current.waits_until)
        was_s = (until - datetime.fromisoformat(recorder.taken_over_at)).total_seconds()
        rest_s = (until - self._world.clock.utc_now()).total_seconds()
        return min(was_s, rest_s, recorder.left_s())

    def run(self) -> IterationResult | LoopEnd:
        """Runs the iteration until it ends for a reason other than a setback, and returns its result. If there were
        too many setbacks, returns the loop's end. Raises OSError, Interrupted and OutageLastsError.
        """
        recorder, world = self._recorder, self._world
        while True:
            self.granted = share(recorder.state, world.own_limits, recorder.elapsed_s())
            unseen = None if self._prompt is not None else unseen_end(recorder, world)
            result = self._with_earlier(unseen or world.iterations.run(self._order()))
            recorder.count(result)
            setback = result.has_to_wait_for
            if setback is None:
                return result
            if setback is Setback.KILL and (ended := unseen_end(recorder, world)) is not None:
                return self._with_earlier(ended)
            wait, number = self._counted(result, setback)
            left_s = self._short_left_s(result, setback)
            if left_s <= 0:
                return loop_end(Outcome.IO_ERROR, f"{LASTED_TOO_LONG}: {result.reason}")
            if isinstance(wait, GiveUp):
                end = loop_end(Outcome.API_UNAVAILABLE, wait.reason)
                return replace(end, retry_after_s=result.retry_after_s, advice=result.advice)
            wait = replace(wait, seconds=min(wait.seconds, left_s))
            recorder.wait(wait, setback, number)
            self._resume_after(wait)

    def _short_left_s(self, result: IterationResult, setback: Setback) -> float:
        if setback is not Setback.SHORTAGE:
            self._short_time = None
            return math.inf
        now_s = self._world.clock.now_s()
        self._short_time = met_again(self._short_time, f"{result.turns} {result.reason}", now_s)
        return self._short_time.left_s(now_s)

    def _counted(self, result: IterationResult, setback: Setback) -> tuple[Wait | GiveUp, int]:
        """Counts one more setback. Returns the next wait, or the decision to give up, and the number of consecutive setbacks
        of this kind. A kill does not reset the number of outages: otherwise both could alternate for ever.
        """
        recorder, schedule = self._recorder, self._world.schedule
        current, left_s = recorder.current, recorder.left_s()
        if setback is Setback.KILL:
            number = current.kills + 1
            recorder.save_current(kills=number)
            reason = f"iteration {current.number} {result.reason}"
            return wait_after_kill(number, reason, schedule, left_s), number
        number = current.outages + 1
        recorder.save_current(outages=number, kills=0)
        away = LACKING if setback is Setback.SHORTAGE else "the API"
        wait = outage_wait(number, current.slept_s, result.retry_after_s, schedule, left_s, away=away)
        return wait, number

    def _resume_after(self, wait: Wait) -> None:
        current = self._recorder.current
        fresh = replace(current, slept_s=current.slept_s + wait.seconds)
        seen = session_seen(self._recorder, self._world)
        if seen is not None and seen.can_resume:
            self._prompt = None
        else:
            self._compose_prompt()
            fresh = _with_another_session(fresh)
        self._recorder.save(current=fresh)

    def _with_earlier(self, result: IterationResult) -> IterationResult:
        """Adds the turns and the cost of the iteration's earlier sessions to the result, whose texts lose the credentials."""
        current, redact = self._recorder.current, self._world.redact
        return replace(
            result,
            turns=result.turns + current.earlier_turns,
            cost_usd=total_usd((result.cost_usd, current.earlier_cost_usd)),
            last_words=redact(result.last_words),
            summary=redact(result.summary),
            reason=redact(result.reason),
        )

    def _compose_prompt(self) -> None:
        """Makes the prompt: the facts that a fresh context needs, then the user's. Also makes the directory of the stop
        file, if that can end the loop. Raises OSError.
        """
        recorder = self._recorder
        if not recorder.state.plan.has_condition:
            try:
                self._world.stop_file.make_room()
            except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
                if not recorder.state.iterations:
                    raise
                recorder.warn(f"no stop file can be made: {error.filename}: {error.strerror}")
        own = self._world.read_prompt()
        self._task_chars = len(own)
        self._prompt = iteration_prompt(self._recorder.state, own)

    def _order(self) -> IterationOrder:
        current, granted = self._recorder.current, self.granted
        if self._prompt is not None:
            self._world.events.emit(
                IterationBegan(
                    current.number,
                    self._recorder.state.plan.limits.max_iterations,
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
    """Gives the iteration a new session id, because the old session cannot be resumed. Its turns and cost stay in the totals."""
    return replace(
        current,
        session_id=str(uuid.uuid4()),
        earlier_turns=current.turns,
        earlier_cost_usd=current.cost_usd,
    )


def session_seen(recorder: LoopRecorder, world: LoopWorld) -> IterationSession | None:
    """The session of the iteration in progress. Raises OSError, Interrupted and OutageLastsError."""
    return recorder.retry(lambda: world.iterations.seen(recorder.current.session_id))


def unseen_end(recorder: LoopRecorder, world: LoopWorld) -> IterationResult | None:
    """The result of a session that ended without the loop noticing, because the loop or the session's process was
    killed. None if its journal has no result, or one that does not complete the iteration (`is_counted`).
    """
    seen = session_seen(recorder, world)
    ended = seen.ended if seen is not None else None
    return ended if ended is not None and is_counted(ended.outcome) else None
