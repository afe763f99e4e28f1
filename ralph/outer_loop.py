"""`ralph loop`: the same task, a fresh context and a fresh process, again and again, until a fact says that it is over.

It decides nothing itself (`core/loop_rules.py` does) and believes no text: exit codes, git and the check count. Each
step is recorded before it is begun, so that a loop that was killed goes on where it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.core.loop_rules import (
    STOPPED_AT_A_LIMIT,
    check_limit_s,
    end_after,
    end_before,
    end_by_result,
    idle_after,
)
from ralph.core.loop_state import MOST_FILES_KEPT, IterationRecord, LoopState, Phase
from ralph.core.loop_values import IterationResult, LoopEnd
from ralph.core.outcome import Outcome
from ralph.loop_book import LoopBook
from ralph.loop_iteration import Iteration
from ralph.loop_ports import CheckoutError
from ralph.ports import Interrupted

if TYPE_CHECKING:
    from ralph.core.loop_values import CheckResult, Snapshot
    from ralph.loop_ports import LoopWorld


class OuterLoop:
    def __init__(self, state: LoopState, world: LoopWorld) -> None:
        self._world = world
        self._book = LoopBook(state, world.record, world.people, world.clock)

    @property
    def state(self) -> LoopState:
        return self._book.state

    def run(self) -> LoopEnd:
        """To its end, which is recorded. Raises nothing for what it meets."""
        try:
            end = self._work()
        except Interrupted as stop:
            end = LoopEnd(stop.outcome, stop.outcome.exit_code(stop.signal_number), str(stop))
        except (CheckoutError, OSError) as error:
            end = LoopEnd(Outcome.IO_ERROR, Outcome.IO_ERROR.exit_code(), _reason(error))
        self._record_end(end)
        return end

    def _work(self) -> LoopEnd:
        self._book.save()  # the first check may take long: it can be looked at, and killed, like all that follows
        end = self._check_first()
        while end is None:
            end = self._iterate() if self.state.current is not None else self._next()
        return end

    def _next(self) -> LoopEnd | None:
        return end_before(self.state, self._book.elapsed_s()) or self._iterate()

    def _iterate(self) -> LoopEnd | None:
        iteration = Iteration(self._book, self._world)
        if self.state.current is None:
            iteration.begin()
        else:
            iteration.take_up()
        result = iteration.run()
        if isinstance(result, LoopEnd):
            return result
        end = end_by_result(self._book.current.number, result)
        if end is not None:
            return end
        self._finish(iteration.before, result)
        has_stop_file = self._world.stop_file.is_there()
        return end_after(self.state, iteration.granted, result.limit, has_stop_file=has_stop_file)

    def _finish(self, before: Snapshot, result: IterationResult) -> None:
        """What it came to is saved, checked and recorded."""
        self._book.save_current(phase=Phase.SAVING)
        after = self._world.checkout.snapshot()
        changes = self._world.checkout.changes(before, after)
        made_progress = before.digest != after.digest
        commits = changes.commits + self._commit(result)
        self._push()
        check = self._run_check()
        current = self._book.current
        record = IterationRecord(
            number=current.number,
            session_id=current.session_id,
            outcome=result.outcome,
            exit_code=result.exit_code,
            turns=result.turns,
            cost_usd=result.cost_usd,
            duration_s=self._book.elapsed_s() - current.elapsed_s,
            commits=commits,
            files=changes.files[:MOST_FILES_KEPT],
            file_count=len(changes.files),
            made_progress=made_progress,
            check=None if check is None else check.words,
            reason=result.reason,
            last_words=result.last_words,
        )
        self._book.save(
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
        current = self._book.current
        how = "was stopped at a limit" if result.outcome in STOPPED_AT_A_LIMIT else result.outcome.value
        message = (
            f"ralph loop: iteration {current.number}\n\n"
            f"What the iteration left uncommitted ({how}, session {current.session_id})."
        )
        try:
            return int(self._world.checkout.commit(message))
        except CheckoutError as error:
            self._book.note(
                f"iteration {current.number}: its work could not be committed, and stays as it is: {error}"
            )
            return 0

    def _push(self) -> None:
        if not self.state.plan.pushes:
            return
        try:
            pushed = self._world.checkout.push()
        except CheckoutError as error:
            number = self._book.current.number
            self._book.note(f"iteration {number}: push failed, the next iteration tries again: {error}")
        else:
            if pushed:
                self._world.people.pushed(pushed)

    # --- the check

    def _check_first(self) -> LoopEnd | None:
        """What fails already, before anything is spent. A check that passes ends the loop here."""
        if self.state.is_checked_first:
            return None
        result = self._run_check()
        if result is None:
            return None
        self._book.save(first_check=result, last_check=result, is_checked_first=True)
        self._world.people.checked_first(result)
        if result.passed and not self.state.plan.at_least_once:
            reason = "the check passes already, so nothing was begun (--at-least-once begins all the same)"
            return LoopEnd(Outcome.COMPLETED, 0, reason)
        return None

    def _run_check(self) -> CheckResult | None:
        """None: there is no check, or no time left for it."""
        limit_s = check_limit_s(self.state.plan, self._book.elapsed_s())
        if self._world.check is None or limit_s <= 0:
            return None
        if self.state.current is not None:
            self._book.save_current(phase=Phase.CHECKING)
        return self._world.check.run(limit_s)

    # --- its end

    def _record_end(self, end: LoopEnd) -> None:
        try:
            unpushed = self._world.checkout.unpushed() if self.state.plan.pushes else 0
        except (CheckoutError, Interrupted):
            unpushed = None
        if unpushed:
            self._book.note(f"commits that were not pushed: {unpushed}")
        try:
            self._book.save(ended=end)
        except OSError as error:
            self._world.people.warn(f"the end is not recorded: {_reason(error)}")


def _reason(error: CheckoutError | OSError) -> str:
    """Without the number that Python puts before what the system says."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
