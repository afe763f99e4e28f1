"""`ralph loop`: the same task, a fresh context and a fresh process, again and again, until a fact says that it is over.

It decides nothing itself (`core/loop_rules.py` does) and believes no text: exit codes, git and the check count. Each
step is recorded before it is begun, so that a loop that was killed goes on where it was.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ralph.core.backoff import GiveUp
from ralph.core.loop_prompt import iteration_prompt
from ralph.core.loop_rules import (
    STOPPED_AT_A_LIMIT,
    Share,
    end_after,
    end_before,
    end_by_result,
    idle_after,
    is_counted,
    outage_wait,
    share,
)
from ralph.core.loop_state import MOST_FILES_KEPT, CurrentIteration, IterationRecord, LoopState, Phase
from ralph.core.loop_values import IterationOrder, IterationResult, LoopEnd, Snapshot
from ralph.core.outcome import Outcome
from ralph.loop_ports import CheckoutError
from ralph.ports import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.core.backoff import Wait
    from ralph.core.loop_values import CheckResult
    from ralph.core.setting_tables import LimitSettings, LoopSettings
    from ralph.loop_ports import Check, Checkout, Iterations, LoopRecord, LoopVoice, StopFile
    from ralph.ports import Clock, Waiter


@dataclass(frozen=True)
class LoopWorld:
    """What a loop works with."""

    checkout: Checkout
    iterations: Iterations
    check: Check | None
    """None: no `--until`."""
    stop_file: StopFile
    record: LoopRecord
    people: LoopVoice
    waiter: Waiter
    clock: Clock
    read_prompt: Callable[[], str]
    """The user's prompt as it stands now. Raises OSError."""
    own_limits: LimitSettings
    """Of each iteration, by the settings."""
    schedule: LoopSettings


class OuterLoop:
    def __init__(self, state: LoopState, world: LoopWorld) -> None:
        self.state = state
        self._world = world
        self._before_s = state.elapsed_s
        self._started_s = world.clock.now_s()

    def run(self) -> LoopEnd:
        """To its end, which is recorded. Raises nothing for what it meets."""
        try:
            end = self._work()
        except Interrupted as stop:
            end = LoopEnd(stop.outcome, stop.outcome.exit_code(stop.signal_number), str(stop))
        except (CheckoutError, OSError) as error:
            end = LoopEnd(Outcome.IO_ERROR, Outcome.IO_ERROR.exit_code(), str(error))
        self._conclude(end)
        return end

    def _work(self) -> LoopEnd:
        end = self._check_first()
        while end is None:
            end = end_before(self.state, self._elapsed_s()) or self._iterate()
        return end

    def _check_first(self) -> LoopEnd | None:
        """What fails already, before anything is spent. A check that passes ends the loop here."""
        plan = self.state.plan
        if plan.until is None or self.state.is_checked_first:
            return None
        result = self._run_check()
        if result is None:
            return None
        self._save(first_check=result, last_check=result, is_checked_first=True)
        self._world.people.checked_first(result)
        if result.passed and not plan.at_least_once:
            reason = "the check passes already, so nothing was begun (--at-least-once begins all the same)"
            return LoopEnd(Outcome.COMPLETED, 0, reason)
        return None

    # --- one iteration

    def _iterate(self) -> LoopEnd | None:
        before, prompt = self._begun() if self.state.current is None else self._taken_up(self.state.current)
        result, granted = self._through_outages(prompt)
        if isinstance(result, LoopEnd):
            return result
        end = end_by_result(self._current.number, result)
        if end is not None:
            return end
        self._finish(before, result)
        has_stop_file = self._world.stop_file.is_there()
        return end_after(self.state, granted, result.limit, has_stop_file=has_stop_file)

    def _begun(self) -> tuple[Snapshot, str | None]:
        """Recorded before its process starts."""
        before = self._world.checkout.snapshot()
        prompt = iteration_prompt(self.state, self._world.read_prompt())
        current = CurrentIteration(
            number=len(self.state.iterations) + 1,
            session_id=str(uuid.uuid4()),
            started_at=self._now(),
            elapsed_s=self._elapsed_s(),
            head=before.head,
            digest=before.digest,
        )
        self._save(current=current)
        return before, prompt

    def _taken_up(self, current: CurrentIteration) -> tuple[Snapshot, str | None]:
        """One that an earlier process of this loop has begun."""
        seen = self._world.iterations.seen(current.session_id)
        prompt = None if seen is not None else iteration_prompt(self.state, self._world.read_prompt())
        self._world.people.taken_up(self.state, is_anew=seen is None)
        rest_s = 0.0
        if current.waits_until is not None:
            until = datetime.fromisoformat(current.waits_until)
            rest_s = (until - self._world.clock.utc_now()).total_seconds()
        if rest_s > 0:
            self._world.waiter.sleep(rest_s, waiting_for="the API")
        news: dict[str, object] = {"outages": 0, "slept_s": 0.0, "waits_until": None, "phase": Phase.WORKING}
        if seen is not None:
            news |= {"turns": seen.turns, "cost_usd": seen.cost_usd}
        self._save(current=replace(current, **news))  # type: ignore[arg-type]  # by name, each of its type
        return Snapshot(current.digest, current.head), prompt

    def _through_outages(self, prompt: str | None) -> tuple[IterationResult | LoopEnd, Share]:
        """The same session until it ends by something else than an API that is away."""
        while True:
            granted = share(self.state, self._world.own_limits, self._elapsed_s())
            result = self._unseen_end(prompt) or self._world.iterations.run(self._order(prompt, granted))
            self._note_current(turns=result.turns, cost_usd=result.cost_usd)
            if result.outcome is not Outcome.API_UNAVAILABLE or result.stopped_by is not None:
                return result, granted
            wait = self._outage(result)
            if isinstance(wait, GiveUp):
                code = Outcome.API_UNAVAILABLE.exit_code()
                return LoopEnd(Outcome.API_UNAVAILABLE, code, wait.reason), granted
            self._wait(wait)
            if self._world.iterations.seen(self._current.session_id) is not None:
                prompt = None

    def _unseen_end(self, prompt: str | None) -> IterationResult | None:
        """Of a session that ended while nobody looked: the loop was killed in the moment after."""
        seen = self._world.iterations.seen(self._current.session_id) if prompt is None else None
        ended = seen.ended if seen is not None else None
        return ended if ended is not None and is_counted(ended.outcome) else None

    def _order(self, prompt: str | None, granted: Share) -> IterationOrder:
        current = self._current
        if prompt is not None:
            self._world.people.begins(self.state, granted)
        waiting_for = f"iteration {current.number}"
        return IterationOrder(current.session_id, prompt, granted.budget_usd, granted.time_s, waiting_for)

    def _outage(self, result: IterationResult) -> Wait | GiveUp:
        self._note_current(outages=self._current.outages + 1)
        limit_s = self.state.plan.limits.max_time_s
        left_s = math.inf if limit_s is None else limit_s - self._elapsed_s()
        return outage_wait(self._current, result.retry_after_s, self._world.schedule, left_s)

    def _wait(self, wait: Wait) -> None:
        until = self._world.clock.utc_now() + timedelta(seconds=wait.seconds)
        self._world.people.waits(self.state, wait, until)
        self._note_current(phase=Phase.WAITING, waits_until=until.isoformat())
        self._world.waiter.sleep(wait.seconds, waiting_for="the API")
        slept_s = self._current.slept_s + wait.seconds
        self._note_current(phase=Phase.WORKING, waits_until=None, slept_s=slept_s)

    # --- after an iteration

    def _finish(self, before: Snapshot, result: IterationResult) -> None:
        current = self._current
        self._note_current(phase=Phase.SAVING)
        after = self._world.checkout.snapshot()
        changes = self._world.checkout.changes(before, after)
        made_progress = before.digest != after.digest
        commits = changes.commits + self._commit(result)
        self._push()
        check = self._run_check()
        record = IterationRecord(
            number=current.number,
            session_id=current.session_id,
            outcome=result.outcome,
            exit_code=result.exit_code,
            turns=result.turns,
            cost_usd=result.cost_usd,
            duration_s=self._elapsed_s() - current.elapsed_s,
            commits=commits,
            files=changes.files[:MOST_FILES_KEPT],
            file_count=len(changes.files),
            made_progress=made_progress,
            check=None if check is None else check.words,
            reason=result.reason,
            last_words=result.last_words,
        )
        self._save(
            current=None,
            iterations=(*self.state.iterations, record),
            idle=idle_after(self.state, result.outcome, made_progress=made_progress),
            last_check=check or self.state.last_check,
        )
        self._world.people.iteration_ended(self.state)

    def _commit(self, result: IterationResult) -> int:
        """How many commits: 1 or none."""
        if not self.state.plan.commits:
            return 0
        current = self._current
        how = "was stopped at a limit" if result.outcome in STOPPED_AT_A_LIMIT else result.outcome.value
        message = (
            f"ralph loop: iteration {current.number}\n\n"
            f"What the iteration left uncommitted ({how}, session {current.session_id})."
        )
        try:
            return int(self._world.checkout.commit(message))
        except CheckoutError as error:
            self._note(
                f"iteration {current.number}: its work could not be committed, and stays as it is: {error}"
            )
            return 0

    def _push(self) -> None:
        if not self.state.plan.pushes:
            return
        try:
            pushed = self._world.checkout.push()
        except CheckoutError as error:
            self._note(
                f"iteration {self._current.number}: push failed, the next iteration tries again: {error}"
            )
        else:
            if pushed:
                self._world.people.pushed(pushed)

    def _run_check(self) -> CheckResult | None:
        """None: there is no check, or no time left for it."""
        if self._world.check is None:
            return None
        plan = self.state.plan
        limit_s = plan.check_timeout_s
        if plan.limits.max_time_s is not None:
            limit_s = min(limit_s, plan.limits.max_time_s - self._elapsed_s())
        if limit_s <= 0:
            return None
        if self.state.current is not None:
            self._note_current(phase=Phase.CHECKING)
        return self._world.check.run(limit_s)

    # --- its record

    def _conclude(self, end: LoopEnd) -> None:
        try:
            unpushed = self._world.checkout.unpushed() if self.state.plan.pushes else 0
        except (CheckoutError, Interrupted):
            unpushed = None
        if unpushed:
            self._note(f"commits that were not pushed: {unpushed}")
        try:
            self._save(ended=end)
        except OSError as error:
            self._world.people.warn(f"cannot record the end: {error}")

    def _note(self, text: str) -> None:
        """Said now, and once more in the end."""
        self._world.people.warn(text)
        self.state = replace(self.state, notes=(*self.state.notes, text))

    @property
    def _current(self) -> CurrentIteration:
        assert self.state.current is not None  # noqa: S101 - asked within an iteration only
        return self.state.current

    def _note_current(self, **changes: object) -> None:
        self._save(current=replace(self._current, **changes))  # type: ignore[arg-type]  # by name, each of its type

    def _save(self, **changes: object) -> None:
        stamp = {"updated_at": self._now(), "elapsed_s": self._elapsed_s()}
        self.state = replace(self.state, **stamp, **changes)  # type: ignore[arg-type]  # by name, each of its type
        self._world.record.save(self.state)

    def _elapsed_s(self) -> float:
        """Over all processes of this loop."""
        return self._before_s + self._world.clock.now_s() - self._started_s

    def _now(self) -> str:
        return self._world.clock.utc_now().isoformat()
