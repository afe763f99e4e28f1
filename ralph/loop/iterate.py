"""Runs the iterations of `ralph loop`. Each iteration is a new process with a fresh context and gets the same task.
`loop/rules.py` decides when the loop ends. It looks at limits, exit codes, changed files, the gate, the `--until` check,
the plan's boxes and the stop file, and never at the model's text. Each step is recorded before it begins, so that a killed loop can be
resumed.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.git.answer import CheckoutError
from ralph.loop.events import BranchChanged, CheckedFirst, GitChanged, IterationCutOff, IterationEnded, Pushed
from ralph.loop.iteration import Iteration, LoopRecorder, OutageLastsError, unseen_end
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
from ralph.loop.values import LoopEnd, loop_end
from ralph.values.outcome import Outcome
from ralph.values.ports import Interrupted
from ralph.values.screen_text import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.git.look import Snapshot
    from ralph.loop.iteration import Check, LoopWorld
    from ralph.loop.state import CurrentIteration
    from ralph.loop.values import CheckResult, IterationResult
    from ralph.values.redaction import LookedCommit


def iterate(state: LoopState, world: LoopWorld) -> tuple[LoopEnd, LoopState]:
    """Runs a loop until it ends and records the end. Returns the end and the last state. If a CheckoutError, OSError,
    OutageLastsError or Interrupted ends the loop, it is not raised.
    """
    loop = _Loop(state, world)
    try:
        end = loop.work()
    except Interrupted as stop:
        end = _end_of(stop)
    except OutageLastsError as outage:
        end = loop_end(outage.outcome, str(outage))
    except (CheckoutError, OSError) as error:
        end = loop_end(Outcome.IO_ERROR, _reason(error))
    end = loop.record_end(end)
    with suppress(Interrupted):
        loop.write_page()
    return end, loop.state


class _Loop:
    def __init__(self, state: LoopState, world: LoopWorld) -> None:
        self._world = world
        self._recorder = LoopRecorder(state, world)
        self._is_green = world.gate is None or (state.current is None and has_passed(state.last_gate))
        """True if the gate has passed for the work as it is, and without a gate."""
        self._has_told_of_page = False

    @property
    def state(self) -> LoopState:
        return self._recorder.state

    @property
    def _lets_through(self) -> bool:
        return self._is_green or self.state.plan.commits_red

    def work(self) -> LoopEnd:
        self._recorder.save()  # before the first check, which may take long: `--status` and `--continue` need a record
        self._save_late()
        # Data may also arrive on standard input during the first check.
        end = self._look_first() or self._world.late_input()
        if isinstance(end, str):
            end = loop_end(Outcome.USAGE, end)
        while end is None:
            end = end_before(self.state, self._recorder.elapsed_s()) or self._iterate()
        return end

    def _iterate(self) -> LoopEnd | None:
        recorder, world = self._recorder, self._world
        iteration = Iteration(recorder, world)
        if self.state.current is None:
            iteration.begin()
        else:
            iteration.resume()
        self._is_green = world.gate is None
        result = iteration.run()
        if isinstance(result, LoopEnd):
            return result
        current, most = recorder.current, self.state.plan.limits.max_iterations
        end = end_by_result(current.number, result)
        if end is not None:
            recorder.save()
            took_s = round(self.state.elapsed_s - current.elapsed_s, 3)
            spent = (result.turns, result.cost_usd, took_s)
            world.events.emit(IterationCutOff(current.number, most, result.outcome, result.exit_code, *spent))
            return end
        self._finish(iteration.before, result)
        has_stop_file = world.stop_file.is_there()
        end = end_after(self.state, iteration.granted, result.limit, has_stop_file=has_stop_file)
        if end is None and has_stop_file:
            self._remove_stop_file()
        return end

    def _finish(self, before: Snapshot, result: IterationResult) -> None:
        """Commits and pushes the work of an ended iteration, unless the gate is red. Runs the check, and records the iteration."""
        recorder, world = self._recorder, self._world
        recorder.save_current(phase=Phase.SAVING)
        after = recorder.retry(world.checkout.snapshot)
        changes = recorder.retry(lambda: world.checkout.changes(before, after))
        number = recorder.current.number
        if before.branch != after.branch:
            world.events.emit(BranchChanged(number, before.branch, after.branch))
        if changes.guarded:
            world.events.emit(GitChanged(number, changes.guarded))
        gate = self._run_gate()
        is_committed, head, looked = self._save_work(result, before, after, has_gate=gate is not None)
        check = self._run(world.check) if self._is_green else None
        open_tasks = self._count_tasks()
        ran = [one for one in (gate, check) if one is not None]
        if ran:
            world.record.keep_check(number, ran[-1].tail)
        current, made_progress = recorder.current, before.digest != after.digest
        record = IterationRecord(
            *(number, current.session_id, result.outcome, result.exit_code, result.turns, result.cost_usd),
            duration_s=round(recorder.elapsed_s() - current.elapsed_s, 3),
            commits=changes.commits + is_committed,
            files=tuple(map(world.redact, changes.files[:MOST_FILES_KEPT])),
            file_count=len(changes.files),
            made_progress=made_progress,
            check=None if check is None else check.words,
            has_loop_commit=is_committed,
            reason=result.reason,
            last_words=result.last_words,
            started_at=current.started_at,
            ended_at=recorder.now(),
            check_s=sum(one.duration_s for one in ran) if ran else None,
            head_before=before.head,
            head_after=head,
            looked=looked,
            gate=None if gate is None else gate.words,
            open_tasks=open_tasks,
        )
        recorder.save(
            current=None,
            iterations=(*self.state.iterations, record),
            idle=idle_after(self.state, result.outcome, made_progress=made_progress),
            last_check=check or self.state.last_check,
            last_gate=gate,
            red_branch=None if self._is_green else self.state.red_branch,
            open_tasks=open_tasks,
            has_removed_stop_file=False,
        )
        world.events.emit(IterationEnded(record, self.state.plan.limits.max_iterations))
        self.write_page()

    def _save_work(
        self, result: IterationResult, before: Snapshot, after: Snapshot, *, has_gate: bool
    ) -> tuple[bool, str, tuple[LookedCommit, ...]]:
        """Commits and pushes as far as the gate allows. Returns whether there is a commit of the loop, the last commit, and what
        was found in the iteration's commits.
        """
        recorder = self._recorder
        if has_gate:
            recorder.save_current(phase=Phase.SAVING)
        is_committed = self._lets_through and self._commit(
            recorder.current,
            result.outcome,
            result.summary or result.last_words,
            seen=None if has_gate else after,  # the gate may have changed files
        )
        since, head = self._looked_until(before.head), after.head
        looked: tuple[LookedCommit, ...] = ()
        if is_committed or head != since or (self._lets_through and self.state.plan.commits):
            head, looked = recorder.retry(lambda: self._world.checkout.look_through(since))
        if self._is_green:
            self._push(recorder.current)
        return is_committed, head, looked

    def _looked_until(self, before: str) -> str:
        """The commit up to which the commits were looked through. Between two iterations a person may have committed."""
        last = self.state.last
        return before if last is None or last.head_after is None else last.head_after

    def write_page(self) -> None:
        """Rewrites the report page of the loop, if the user asked for one. Reports only the first failure. Raises
        Interrupted.
        """
        problem = None if self._world.page is None else self._world.page.write()
        if problem is not None and not self._has_told_of_page:
            self._has_told_of_page = True
            self._recorder.warn(f"cannot write the report page (--report): {problem}")

    # --- commits and pushes

    def _commit(
        self,
        iteration: CurrentIteration | IterationRecord,
        outcome: Outcome,
        closing_words: str = "",
        *,
        seen: Snapshot | None = None,
    ) -> bool:
        """Commits the iteration's uncommitted work. `seen` is as in `Checkout.commit`. The commit's subject comes from
        `closing_words`. Returns False if there was nothing to commit, or if the commit failed. Records the failure, so
        that the loop tries again and does not end as a success.
        """
        if not self.state.plan.commits:
            return False
        recorder, checkout = self._recorder, self._world.checkout
        message = self._message(iteration, outcome, closing_words)
        problem, is_committed = None, False
        try:
            is_committed = recorder.retry_locked(lambda: checkout.commit(message, seen))
        except CheckoutError as error:
            problem = f"iteration {iteration.number}: its work could not be committed, and stays uncommitted: {error}"
            recorder.warn(problem)
        if problem != self.state.commit_problem:
            recorder.save(commit_problem=problem)
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
        recorder, state = self._recorder, self.state
        last = state.last
        if state.current is not None or last is None or not state.has_unsaved_work:
            return
        if (
            self._lets_through
            and state.commit_problem is not None
            and self._commit(last, last.outcome, last.last_words)
        ):
            since = last.head_after or ""
            head, looked = recorder.retry(lambda: self._world.checkout.look_through(since))
            counted = replace(last, commits=last.commits + 1, has_loop_commit=True, head_after=head)
            counted = replace(counted, looked=(*(last.looked or ()), *looked))
            recorder.save(iterations=(*self.state.iterations[:-1], counted))
        if self._is_green:
            self._push(last)

    def _push(self, iteration: CurrentIteration | IterationRecord, branch: str | None = None) -> None:
        if not self.state.plan.pushes:
            return
        recorder = self._recorder
        try:
            pushed = recorder.retry(lambda: self._world.checkout.push(branch))
        except CheckoutError as error:
            failed = f"iteration {iteration.number}: push failed"
            recorder.warn(f"{failed}, the next iteration tries again: {error}")
            recorder.save(push_problem=f"{failed}: {error}")
        else:
            recorder.save(push_problem=None)
            if pushed:
                self._world.events.emit(Pushed(pushed, branch))

    # --- the gate, the check and the plan

    def _look_first(self) -> LoopEnd | None:
        """Looks at the plan, the gate, the check and the stop file before any money is spent. Returns the loop's end if no
        work is left or the loop could never find that out. If an iteration has ended and is not recorded yet, this comes
        after its record instead.
        """
        recorder, state, world = self._recorder, self.state, self._world
        was_begun = bool(state.iterations) or state.current is not None
        if state.current is not None and unseen_end(recorder, world) is not None:
            return None
        if not was_begun and (why := self._why_no_plan()) is not None:
            return loop_end(Outcome.CONFIG, why)
        gate = self._run_gate()
        # A new loop runs the check behind a red gate too: it may be one that cannot run.
        check = self._run(world.check) if self._is_green or not was_begun else None
        if gate is not None or check is not None or world.open_tasks is not None:
            recorder.save(
                first_check=state.first_check or check,
                last_check=check or state.last_check,
                last_gate=gate,
                open_tasks=self._count_tasks(),
            )
        number = len(state.iterations) + 1
        for name, result in (("gate", gate), ("check", check)):
            if result is not None:
                world.events.emit(CheckedFirst(result, name, number))
        has_stop_file = was_begun and world.stop_file.is_there()
        end = end_of_unusable(self.state) or end_if_done(self.state, has_stop_file=has_stop_file)
        if end is None and has_stop_file:
            self._remove_stop_file()
        return end

    def _why_no_plan(self) -> str | None:
        named, open_tasks = self.state.plan.plan, self._world.open_tasks
        if open_tasks is None:
            return None
        try:
            if self._recorder.retry(open_tasks) is not None:
                return None
        except OSError as error:
            return f"the plan {named} cannot be read: {error.strerror}"
        return f"the plan {named} has no task: a task is a line such as `- [ ] what to do`"

    def _count_tasks(self) -> int | None:
        """The number of open tasks in the plan. None if the loop has no plan, or if its plan says nothing any more."""
        if self._world.open_tasks is None:
            return None
        try:
            return self._recorder.retry(self._world.open_tasks)
        except OSError as error:
            self._recorder.warn(f"the plan {self.state.plan.plan} cannot be read: {error.strerror}")
            return None

    def _run_gate(self) -> CheckResult | None:
        result = self._run(self._world.gate)
        self._is_green = result is None or result.passed
        return result

    def _run(self, check: Check | None) -> CheckResult | None:
        if check is None:
            return None
        recorder = self._recorder
        if self.state.current is not None:
            recorder.save_current(phase=Phase.CHECKING)
        limit_s = check_limit_s(self.state, recorder.elapsed_s())
        return recorder.retry_locked(lambda: check.run(limit_s))

    def _remove_stop_file(self) -> None:
        if self.state.plan.has_only_until:
            return
        self._recorder.save(has_removed_stop_file=True)
        what = "was removed"
        try:
            self._world.stop_file.remove()
        except (NotADirectoryError, PermissionError) as error:  # as a command has made it
            what = f"does not count and cannot be removed ({error.strerror})"
        self._recorder.warn(f"the stop file {what}: {what_is_missing(self.state)}")

    # --- its end

    def record_end(self, end: LoopEnd) -> LoopEnd:
        """Commits the rest, records the end, and returns it. A commit or push that fails may change it, and so may a signal."""
        recorder = self._recorder
        recorder.retries = False
        unpushed, is_saved, left = 0, False, ""
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
            recorder.warn("stopped again: git status shows what is not committed")
        except (CheckoutError, OSError) as error:
            left = _told_once("the work of the last iteration stays as it is", error, end.reason)
            recorder.warn(left)
        state = self.state
        end = end_with_unsaved_work(
            end,
            is_uncommitted=state.commit_problem is not None or (state.plan.commits and not is_saved),
            is_unpushed=state.push_problem is not None or (state.plan.pushes and not is_saved),
        )
        try:
            recorder.save(ended=end, unpushed=unpushed)
        except OSError as error:
            recorder.warn(_told_once("the end could not be recorded", error, end.reason, left))
        for text in self.state.warnings:
            if text not in recorder.warned:
                recorder.warn(text)
        return end

    def _save_rest(self, end: LoopEnd) -> int:
        checkout = self._world.checkout
        has_changed = self._save_cut_off(end)
        if not self._is_green and (has_changed or not has_passed(self.state.last_gate)):
            self._save_red(end)
        if self.state.current is not None:
            _, looked = checkout.look_through(self._looked_until(self.state.current.head))
            self._recorder.save_current(looked=looked)
        return (checkout.unpushed() or 0) if self.state.plan.pushes else 0

    def _save_cut_off(self, end: LoopEnd) -> bool:
        """Commits and pushes the work of an iteration that was cut off, because the machine may be deleted after the
        loop, as CI machines are. Does not push if a person stopped the loop. If there is a gate, it has not seen this
        work, so this method does neither, except with `--commit-red`. Returns whether there is such work.
        """
        recorder, checkout = self._recorder, self._world.checkout
        current, plan = self.state.current, self.state.plan
        if current is None or not (plan.commits or plan.pushes):
            return False
        seen = checkout.snapshot()
        if seen.digest == current.digest and self.state.commit_problem is None:
            return False
        if self._lets_through:
            self._commit(current, end.outcome, seen=seen)
            changes = checkout.changes(snapshot_before(current), checkout.snapshot())
            recorder.save_current(commits=changes.commits)
        if self._is_green and end.outcome is not Outcome.INTERRUPTED:
            self._push(recorder.current)  # a person who stops a loop does not wait for a remote
        return True

    def _save_red(self, end: LoopEnd) -> None:
        """Commits the work that did not pass the gate to a branch of its own, and pushes this branch. If a person stopped
        the loop, takes little time and does not push.
        """
        recorder = self._recorder
        plan, iteration = self.state.plan, self.state.current or self.state.last
        if iteration is None or not (plan.commits or plan.pushes):
            return
        is_stopped = end.outcome is Outcome.INTERRUPTED
        problem, branch = None, None
        try:
            branch = recorder.retry_locked(
                lambda: self._world.checkout.commit_aside(
                    self._message(iteration, end.outcome),
                    earlier=self.state.red_branch,
                    has_work=plan.commits,
                    pushes=plan.pushes and not is_stopped,
                    limit_s=STOPPED_LIMIT_S if is_stopped else math.inf,
                )
            )
        except (CheckoutError, OSError) as error:
            problem = f"work that did not pass the gate could not be committed, and stays uncommitted: {_reason(error)}"
        recorder.save(red_branch=branch, commit_problem=problem)
        if branch is not None and not is_stopped:
            self._push(iteration, branch)


def _end_of(stop: Interrupted) -> LoopEnd:
    return LoopEnd(stop.outcome, stop.outcome.exit_code(stop.signal_number), str(stop))


def _told_once(problem: str, error: CheckoutError | OSError, *said: str) -> str:
    """The problem, and its cause unless the message names it: a full disk makes every write fail."""
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return problem if any(cause in one for one in said) else f"{problem}: {_reason(error)}"


def _reason(error: CheckoutError | OSError) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


# --- The message of a commit. The subject is the first sentence of the model's closing words. The body and the trailers are
# ralph's own.
# The model's words can add no second line, no trailer and no instruction for another program.

LONGEST_SUBJECT = 72  # git's own convention: longer lines are cut by many tools that show a log
_LONGEST_WORDS = 20_000
"""Only this many characters of the closing words are read."""

_FENCE = re.compile(r"^ *(```|~~~).*?(?:^ *\1[^\n]*$|\Z)", re.MULTILINE | re.DOTALL)
_MARKUP = re.compile(r"[*`~|]+|<[^>\n]*>|(?m:^[ \t]*(?:[#>-]+|\d+[.)])(?=\s))")
_PARAGRAPH_END = re.compile(r"\n(?:[ \t]*\n|(?=[ \t]*(?:[#>*+-]|\d+[.)])))")
# `git rebase --autosquash` and services that build commits follow these.
_INSTRUCTION = re.compile(
    r"(?i)^(?:(?:fixup|squash|amend)!\s*)+|\[[^\]]*\bskip\b[^\]]*\]|\[no[ -]ci\]|\*\*\*no_ci\*\*\*"
)
# No subject begins with a dash, which is an option, nor with a number sign, which is a comment when git's editor opens
# the message.
_BEFORE_WORDS = re.compile(r"^[^\w\"'($./~<@\[]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])")


def commit_message(
    number: int,
    session_id: str,
    outcome: Outcome,
    closing_words: str,
    *,
    cost_usd: float | None,
    redact: Callable[[str], str],
) -> str:
    """The message of the commit with what iteration `number` left uncommitted. `cost_usd` is the iteration's cost in
    US dollars; if it is unknown, the message has no trailer with a cost. `redact` replaces credentials.
    """
    name = f"ralph loop: iteration {number}"
    subject = subject_of(closing_words, redact)
    body = f"What the iteration left uncommitted ({outcome.value})."
    trailers = [f"Ralph-Session: {session_id}"]
    if cost_usd is not None:
        trailers.append(f"Ralph-Cost: ${cost_usd:.4f}")
    head = f"{subject}\n\n{name}\n{body}" if subject else f"{name}\n\n{body}"
    return f"{head}\n\n" + "\n".join(trailers)


def subject_of(closing_words: str, redact: Callable[[str], str]) -> str:
    """The first sentence of the closing words with more than two words, as one line of at most `LONGEST_SUBJECT`
    characters without Markdown. Empty if there is none.
    """
    text = closing_words[:_LONGEST_WORDS].encode("utf-8", "replace").decode()
    text = _FENCE.sub("\n\n", redact(visible(text).replace("\t", " ")))
    sentences = (
        one
        for paragraph in _PARAGRAPH_END.split(text)
        for one in _SENTENCE_END.split(" ".join(_INSTRUCTION.sub(" ", _MARKUP.sub("", paragraph)).split()))
    )
    return next(filter(None, (_subject(one, redact) for one in sentences)), "")


def _subject(sentence: str, redact: Callable[[str], str]) -> str:
    """The sentence as a subject. Empty if it is shorter, or if it only introduces what follows."""
    # Only once the markup is gone, a credential may be in one piece, or an instruction at the beginning.
    plain = redact(_BEFORE_WORDS.sub("", sentence))
    plain = _BEFORE_WORDS.sub("", _INSTRUCTION.sub("", plain)).rstrip(" .!;,\u3002\uff01")
    if plain.endswith((":", "\uff1a")) or (plain.isascii() and len(plain.split()) < 3):
        return ""
    return plain if len(plain) <= LONGEST_SUBJECT else plain[: LONGEST_SUBJECT - 1].rstrip(" ,;:.") + "\u2026"
