"""Runs the iterations of `ralph loop`. Each iteration is a new process with a fresh context and gets the same task.
`loop/rules.py` decides when the loop ends. It looks at limits, exit codes, changed files, the gate, the `--until` check,
the plan's boxes and the stop file, and never at the model's text. Each step is recorded before it begins, so that a killed loop can be
resumed.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.git.answer import CheckoutError
from ralph.loop.book import LoopBook
from ralph.loop.commit_message import commit_message
from ralph.loop.events import (
    BranchChanged,
    CheckedFirst,
    GitChanged,
    IterationCutOff,
    IterationEnded,
    Pushed,
)
from ralph.loop.iteration import Iteration, unseen_end
from ralph.loop.patience import OutageLastsError, PatientCheck, PatientCheckout, PatientIterations
from ralph.loop.rules import (
    STOPPED_LIMIT_S,
    check_limit_s,
    end_after,
    end_before,
    end_by_result,
    end_if_done,
    end_of_unusable,
    end_with_unsaved_work,
    has_passed,
    idle_after,
    what_is_missing,
)
from ralph.loop.state import MOST_FILES_KEPT, IterationRecord, LoopState, Phase, snapshot_before
from ralph.loop.values import IterationResult, LoopEnd
from ralph.values.events import Notice
from ralph.values.outcome import Outcome
from ralph.values.ports import Interrupted

if TYPE_CHECKING:
    from ralph.git.snapshot import Snapshot
    from ralph.loop.ports import Check, LoopWorld
    from ralph.loop.state import CurrentIteration
    from ralph.loop.values import CheckResult
    from ralph.values.events import LoopEvent
    from ralph.values.redaction import LookedCommit


class OuterLoop:
    def __init__(self, state: LoopState, world: LoopWorld) -> None:
        self._book = LoopBook(state, world)
        patience = self._book.patience
        self._world = replace(
            world,
            checkout=PatientCheckout(world.checkout, patience),
            iterations=PatientIterations(world.iterations, patience),
            check=None if world.check is None else PatientCheck(world.check, patience),
            gate=None if world.gate is None else PatientCheck(world.gate, patience),
        )
        self._is_green = world.gate is None or (state.current is None and has_passed(state.last_gate))
        """True if the gate has passed for the work as it is, and without a gate."""
        self._has_told_of_page = False

    @property
    def state(self) -> LoopState:
        return self._book.state

    @property
    def _most(self) -> int | None:
        return self.state.plan.limits.max_iterations

    def _emit(self, event: LoopEvent) -> None:
        self._world.events.emit(event)

    def _warn(self, text: str) -> None:
        self._world.events.emit(Notice(text, is_vital=True))

    def run(self) -> LoopEnd:
        """Runs the loop until it ends. Records the end and returns it. If a CheckoutError, OSError, OutageLastsError
        or Interrupted ends the loop, it is not raised.
        """
        try:
            end = self._work()
        except Interrupted as stop:
            end = _end_of(stop)
        except OutageLastsError as outage:
            end = LoopEnd(outage.outcome, outage.outcome.exit_code(), str(outage))
        except (CheckoutError, OSError) as error:
            end = LoopEnd(Outcome.IO_ERROR, Outcome.IO_ERROR.exit_code(), _reason(error))
        self._book.patience.end()
        end = self._record_end(end)
        with suppress(Interrupted):
            self._write_page()
        return end

    def _work(self) -> LoopEnd:
        self._book.save()  # before the first check, which may take long: `--status` and `--continue` need a record
        self._save_late()
        end = self._look_first() or self._refused_input()
        while end is None:
            end = end_before(self.state, self._book.elapsed_s()) or self._iterate()
        return end

    def _refused_input(self) -> LoopEnd | None:
        """Ends the loop if standard input received data after ralph had stopped waiting for it. Returns the loop's
        end, otherwise None. Must be called after the first check, because data may also arrive during the check.
        """
        reason = self._world.late_input()
        return None if reason is None else LoopEnd(Outcome.USAGE, Outcome.USAGE.exit_code(), reason)

    def _iterate(self) -> LoopEnd | None:
        iteration = Iteration(self._book, self._world)
        if self.state.current is None:
            iteration.begin()
        else:
            iteration.resume()
        self._is_green = self._world.gate is None
        result = iteration.run()
        if isinstance(result, LoopEnd):
            return result
        end = end_by_result(self._book.current.number, result)
        if end is not None:
            self._book.save()
            self._emit(self._cut_off(result))
            return end
        self._finish(iteration.before, result)
        has_stop_file = self._world.stop_file.is_there()
        end = end_after(self.state, iteration.granted, result.limit, has_stop_file=has_stop_file)
        if end is None and has_stop_file:
            self._remove_stop_file()
        return end

    def _cut_off(self, result: IterationResult) -> IterationCutOff:
        current = self._book.current
        return IterationCutOff(
            current.number,
            self._most,
            result.outcome,
            result.exit_code,
            result.turns,
            result.cost_usd,
            took_s=round(self.state.elapsed_s - current.elapsed_s, 3),
        )

    def _finish(self, before: Snapshot, result: IterationResult) -> None:
        """Commits and pushes the work of an iteration that has ended, unless the gate is red. Runs the check, and records
        the iteration.
        """
        self._book.save_current(phase=Phase.SAVING)
        after = self._world.checkout.snapshot()
        changes = self._world.checkout.changes(before, after)
        made_progress = before.digest != after.digest
        if before.branch != after.branch:
            self._emit(BranchChanged(self._book.current.number, before.branch, after.branch))
        if changes.guarded:
            self._emit(GitChanged(self._book.current.number, changes.guarded))
        gate = self._run_gate()
        if gate is not None:
            self._book.save_current(phase=Phase.SAVING)
        is_committed = self._lets_through and self._commit(
            self._book.current,
            result.outcome,
            result.summary or result.last_words,
            seen=after if gate is None else None,  # the gate may have changed files
        )
        since = self._looked_until(before.head)
        head: str = after.head
        looked: tuple[LookedCommit, ...] = ()
        if is_committed or head != since:
            head, looked = self._world.checkout.look_through(since)
        if self._is_green:
            self._push(self._book.current)
        check = self._run(self._world.check) if self._is_green else None
        open_tasks = self._count_tasks()
        current = self._book.current
        shown = check or gate
        if shown is not None:
            self._world.record.keep_check(current.number, shown.tail)
        record = IterationRecord(
            number=current.number,
            session_id=current.session_id,
            outcome=result.outcome,
            exit_code=result.exit_code,
            turns=result.turns,
            cost_usd=result.cost_usd,
            duration_s=round(self._book.elapsed_s() - current.elapsed_s, 3),
            commits=changes.commits + is_committed,
            files=tuple(map(self._world.redact, changes.files[:MOST_FILES_KEPT])),
            file_count=len(changes.files),
            made_progress=made_progress,
            check=None if check is None else check.words,
            has_loop_commit=is_committed,
            reason=result.reason,
            last_words=result.last_words,
            started_at=current.started_at,
            ended_at=self._book.now(),
            check_s=None
            if shown is None
            else sum(one.duration_s for one in (gate, check) if one is not None),
            head_before=before.head,
            head_after=head,
            looked=looked,
            gate=None if gate is None else gate.words,
            open_tasks=open_tasks,
        )
        self._book.save(
            current=None,
            iterations=(*self.state.iterations, record),
            idle=idle_after(self.state, result.outcome, made_progress=made_progress),
            last_check=check or self.state.last_check,
            last_gate=gate,
            red_branch=None if self._is_green else self.state.red_branch,
            open_tasks=open_tasks,
            has_removed_stop_file=False,
        )
        self._emit(IterationEnded(record, self._most))
        self._write_page()

    def _looked_until(self, before: str) -> str:
        """The commit up to which the commits were looked through. `before` is the one before the iteration. Between two
        iterations a person may have committed.
        """
        last = self.state.last
        return before if last is None or last.head_after is None else last.head_after

    def _write_page(self) -> None:
        """Rewrites the page about the loop, if the user asked for one. The first failure is told, and never ends the
        loop.
        """
        problem = None if self._world.page is None else self._world.page.write()
        if problem is not None and not self._has_told_of_page:
            self._has_told_of_page = True
            self._warn(f"the page of this loop (--report) could not be written: {problem}")

    def _commit(
        self,
        iteration: CurrentIteration | IterationRecord,
        outcome: Outcome,
        closing_words: str = "",
        *,
        seen: Snapshot | None = None,
    ) -> bool:
        """Commits the iteration's uncommitted work. `seen` is as in `Checkout.commit`. The commit's subject comes from `closing_words`, the model's last
        answer or report. Returns False if there was nothing to commit, or if the commit failed. Records the failure,
        so that the loop tries again and does not end as a success.
        """
        if not self.state.plan.commits:
            return False
        message = self._message(iteration, outcome, closing_words)
        problem, is_committed = None, False
        try:
            is_committed = self._world.checkout.commit(message, seen)
        except CheckoutError as error:
            problem = (
                f"iteration {iteration.number}: its work could not be committed, and stays as it is: {error}"
            )
            self._warn(problem)
        if problem != self.state.commit_problem:
            self._book.save(commit_problem=problem)
        return is_committed

    def _message(
        self, iteration: CurrentIteration | IterationRecord, outcome: Outcome, closing_words: str = ""
    ) -> str:
        return commit_message(
            *(iteration.number, iteration.session_id, outcome, closing_words),
            cost_usd=iteration.cost_usd,
            redact=self._world.redact,
        )

    def _save_late(self) -> None:
        """Commits and pushes the work of the last iteration if an earlier process of the loop could not do so. Does
        nothing if an iteration is in progress, because the loop commits and pushes after this iteration.
        """
        state = self.state
        last = state.last
        if state.current is not None or last is None or not state.has_unsaved_work:
            return
        if (
            self._lets_through
            and state.commit_problem is not None
            and self._commit(last, last.outcome, last.last_words)
        ):
            head, looked = self._world.checkout.look_through(last.head_after or "")
            counted = replace(last, commits=last.commits + 1, has_loop_commit=True, head_after=head)
            counted = replace(counted, looked=(*(last.looked or ()), *looked))
            self._book.save(iterations=(*self.state.iterations[:-1], counted))
        if self._is_green:
            self._push(last)

    def _push(self, iteration: CurrentIteration | IterationRecord, branch: str | None = None) -> None:
        if not self.state.plan.pushes:
            return
        try:
            pushed = self._world.checkout.push(branch)
        except CheckoutError as error:
            failed = f"iteration {iteration.number}: push failed"
            self._warn(f"{failed}, the next iteration tries again: {error}")
            self._book.save(push_problem=f"{failed}: {error}")
        else:
            self._book.save(push_problem=None)
            if pushed:
                self._emit(Pushed(pushed, branch))

    # --- the gate, the check and the plan

    def _look_first(self) -> LoopEnd | None:
        """Looks at the plan, the gate, the check and the stop file before any money is spent, in a new loop and in a resumed
        loop.

        Does nothing if an iteration has ended but is not yet recorded, because the loop looks after it is recorded.
        Returns the loop's end if no work is left or the loop could never find that out, otherwise None.
        """
        state, world = self.state, self._world
        was_begun = bool(state.iterations) or state.current is not None
        if state.current is not None and unseen_end(self._book, self._world) is not None:
            return None  # the finished iteration is counted first, and then the loop looks
        if not was_begun and (why := self._why_no_plan()) is not None:
            return LoopEnd(Outcome.CONFIG, Outcome.CONFIG.exit_code(), why)
        gate = self._run_gate()
        # A new loop runs the check behind a red gate too: it may be one that cannot run.
        check = self._run(world.check) if self._is_green or not was_begun else None
        if gate is not None or check is not None or world.open_tasks is not None:
            self._book.save(
                first_check=state.first_check or check,
                last_check=check or state.last_check,
                last_gate=gate,
                open_tasks=self._count_tasks(),
            )
        for name, result in (("gate", gate), ("check", check)):
            if result is not None:
                self._emit(CheckedFirst(result, name))
        has_stop_file = was_begun and world.stop_file.is_there()
        end = end_of_unusable(self.state) or end_if_done(self.state, has_stop_file=has_stop_file)
        if end is None and has_stop_file:
            self._remove_stop_file()
        return end

    def _why_no_plan(self) -> str | None:
        """The reason why a new loop cannot use its plan, or None."""
        named = self.state.plan.plan
        if self._world.open_tasks is None:
            return None
        try:
            if self._book.patience.keep_trying(self._world.open_tasks) is not None:
                return None
        except OSError as error:
            return f"the plan {named} cannot be read: {error.strerror}"
        return f"the plan {named} has no task: a task is a line such as `- [ ] what to do`"

    def _count_tasks(self) -> int | None:
        """The number of open tasks in the plan. None if the loop has no plan, or if its plan says nothing any more."""
        if self._world.open_tasks is None:
            return None
        try:
            return self._book.patience.keep_trying(self._world.open_tasks)
        except OSError as error:
            self._warn(f"the plan {self.state.plan.plan} cannot be read: {error.strerror}")
            return None

    def _run_gate(self) -> CheckResult | None:
        """Runs the gate and returns its result, or None if the loop has no gate."""
        result = self._run(self._world.gate)
        self._is_green = result is None or result.passed
        return result

    def _run(self, check: Check | None) -> CheckResult | None:
        """Runs the gate or the check and returns its result, or None if the loop has none."""
        if check is None:
            return None
        if self.state.current is not None:
            self._book.save_current(phase=Phase.CHECKING)
        return check.run(check_limit_s(self.state, self._book.elapsed_s()))

    @property
    def _lets_through(self) -> bool:
        """Whether the work as it is may be committed to the branch."""
        return self._is_green or self.state.plan.commits_red

    def _remove_stop_file(self) -> None:
        """Removes a stop file that may not end the loop yet, and has the next prompt say so."""
        if self.state.plan.has_only_until:
            return
        self._book.save(has_removed_stop_file=True)
        self._world.stop_file.remove()
        self._warn(f"the stop file was removed: {what_is_missing(self.state)}")

    # --- its end

    def _record_end(self, end: LoopEnd) -> LoopEnd:
        """Commits what is left to commit, records the end, and returns it. A failed commit or push may change the
        end, and so does a first signal.
        """
        unpushed, is_saved = 0, False
        try:
            try:
                unpushed = self._save_rest(end)
            except Interrupted as stop:
                if end.outcome is Outcome.INTERRUPTED or stop.signal_number is None:
                    raise
                end = _end_of(stop)
                unpushed = self._save_rest(end)
            is_saved = True
        except Interrupted:
            self._warn("stopped once more: git status tells what is not committed")
        except (CheckoutError, OSError) as error:
            self._warn(f"what the last iteration has done stays as it is: {_reason(error)}")
        state = self.state
        end = end_with_unsaved_work(
            end,
            is_uncommitted=state.commit_problem is not None or (state.plan.commits and not is_saved),
            is_unpushed=state.push_problem is not None or (state.plan.pushes and not is_saved),
        )
        try:
            self._book.save(ended=end, unpushed=unpushed)
        except OSError as error:
            self._warn(f"the end is not recorded: {_reason(error)}")
        return end

    def _save_rest(self, end: LoopEnd) -> int:
        """Commits and pushes what is left. Returns the number of commits that no remote has."""
        has_changed = self._save_cut_off(end)
        if not self._is_green and (has_changed or not has_passed(self.state.last_gate)):
            self._save_red(end)
        if self.state.current is not None:
            _, looked = self._world.checkout.look_through(self._looked_until(self.state.current.head))
            self._book.save_current(looked=looked)
        return (self._world.checkout.unpushed() or 0) if self.state.plan.pushes else 0

    def _save_cut_off(self, end: LoopEnd) -> bool:
        """Commits and pushes the work of an iteration that was cut off. This is needed because the machine may be
        deleted after the loop, as CI machines are. Does not push if a person stopped the loop. With a gate, which has not
        seen this work, does neither, but for `--commit-red`. Returns whether there is such work.
        """
        current, plan = self.state.current, self.state.plan
        if current is None or not (plan.commits or plan.pushes):
            return False
        seen = self._world.checkout.snapshot()
        if seen.digest == current.digest and self.state.commit_problem is None:
            return False
        if self._lets_through:
            self._commit(current, end.outcome, seen=seen)
            changes = self._world.checkout.changes(snapshot_before(current), self._world.checkout.snapshot())
            self._book.save_current(commits=changes.commits)
        if self._is_green and end.outcome is not Outcome.INTERRUPTED:
            self._push(self._book.current)  # a person who stops a loop does not wait for a remote
        return True

    def _save_red(self, end: LoopEnd) -> None:
        """Commits what the gate did not let through to a branch of its own, and pushes this branch. Does not push if a
        person stopped the loop, and then does not take long.
        """
        plan, iteration = self.state.plan, self.state.current or self.state.last
        if iteration is None or not (plan.commits or plan.pushes):
            return
        is_stopped = end.outcome is Outcome.INTERRUPTED
        problem, branch = None, None
        try:
            branch = self._world.checkout.commit_aside(
                self._message(iteration, end.outcome),
                earlier=self.state.red_branch,
                has_work=plan.commits,
                pushes=plan.pushes and not is_stopped,
                limit_s=STOPPED_LIMIT_S if is_stopped else math.inf,
            )
        except (CheckoutError, OSError) as error:
            problem = f"what the gate did not let through could not be committed, and stays as it is: {_reason(error)}"
            self._warn(problem)
        self._book.save(red_branch=branch, commit_problem=problem)
        if branch is not None and not is_stopped:
            self._push(iteration, branch)


def _end_of(stop: Interrupted) -> LoopEnd:
    return LoopEnd(stop.outcome, stop.outcome.exit_code(stop.signal_number), str(stop))


def _reason(error: CheckoutError | OSError) -> str:
    """The text of the error. If an OSError names a file, the error number that Python puts first is left out."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
