"""Turns a loop's events and state into text: a line for each event, the lines of `--status`, and a table for CI
systems. No I/O happens here. Times are in the local time zone.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.loop.events import (
    BranchChanged,
    CheckedFirst,
    GitChanged,
    IterationBegan,
    IterationCutOff,
    IterationEnded,
    IterationResumed,
    LoopEnded,
    LoopWaits,
    Pushed,
)
from ralph.loop.prompt import names_of
from ralph.loop.rules import STOPPED_AT_A_LIMIT, tasks_text
from ralph.loop.state import Phase
from ralph.loop.values import Setback
from ralph.output.live import doing as doing_now
from ralph.values.events import Heartbeat, Notice
from ralph.values.outcome import Outcome
from ralph.values.resume_command import shell_word
from ralph.values.screen_text import counted, cut_to_columns, dollars, duration, in_one_line, time_limit
from ralph.values.usage import plain, total_usd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ralph.loop.state import CurrentIteration, IterationRecord, LoopState
    from ralph.loop.values import LoopEnd
    from ralph.output.iteration_log import LiveIteration
    from ralph.values.events import Event

_SETBACKS = {
    Setback.OUTAGE: ("the API is unavailable", "outage"),
    Setback.SHORTAGE: ("this machine has no process, thread, memory or file descriptor left", "shortage"),
    Setback.KILL: ("the iteration was killed, perhaps because it used too much memory", "kill"),
}
_ITERATION = "iteration"
"""While the loop waits for an iteration, `waiting_for` in a heartbeat begins with this word."""
_MOST_NAME_CHARS = 80
_LONGEST_BACKGROUND = 80
_DOING = {
    Phase.WORKING: "the model works",
    Phase.WAITING: "waiting",
    Phase.SAVING: "committing and pushing",
    Phase.CHECKING: "running the check",
}


def line_of(event: Event) -> str | None:
    """The line that shows an event to the user, or None if the event is not shown."""
    match event:
        case Notice(text=text):
            return text
        case Heartbeat(waiting_for=waiting_for, since_s=since_s):
            # An iteration reports its own progress.
            is_iteration = waiting_for.startswith(_ITERATION)
            return None if is_iteration else f"waiting for {waiting_for}, {duration(since_s)} so far"
        case CheckedFirst(result=result, name=name, number=number):
            which = "the first iteration" if number == 1 else f"iteration {number}"
            return f"{name} before {which}: {result.words}"
        case LoopWaits():
            return _waiting_line(event)
        case Pushed(commits=commits, branch=branch):
            return f"pushed {counted(commits, 'commit')}" + ("" if branch is None else f" as {branch}")
        case LoopEnded(end=end, state=state):
            return ending_line(state, end)
        case _:
            return _line_about_iteration(event)


def _line_about_iteration(event: Event) -> str | None:
    match event:
        case IterationBegan(number=number, max_iterations=most, session_id=session_id):
            left = [dollars(event.left_usd)] if event.left_usd is not None else []
            left += [duration(event.left_s)] if event.left_s is not None else []
            rest = f", {' and '.join(left)} left" if left else ""
            return f"{_which(number, most, session_id)}{rest}"
        case IterationResumed(number=number, max_iterations=most, session_id=session_id):
            how = "starts over: its session cannot be resumed" if event.is_anew else "resumes"
            return f"{_which(number, most, session_id)}, {how}"
        case IterationEnded(record=record, max_iterations=most):
            return iteration_line(record, most)
        case IterationCutOff(number=number, max_iterations=most, outcome=outcome):
            spent = f"{counted(event.turns, 'turn')}, {dollars(event.cost_usd)}"
            how = f"{outcome.value}{_code(event.exit_code)}"
            return (
                f"iteration {_number(number, most)}: {how}, {spent}, not finished, {duration(event.took_s)}"
            )
        case BranchChanged(iteration=number, before=before, after=after):
            now = "left its branch (HEAD is detached)" if after is None else f"went to branch {after}"
            return f"iteration {number} {now}; before it was {before or 'on none'}"
        case GitChanged(iteration=number, names=names):
            return _git_line(number, names)
        case _:
            return None


def _waiting_line(event: LoopWaits) -> str:
    what, counts = _SETBACKS[event.setback]
    own = ", by the schedule loop.outage_waits_s" if event.has_own_schedule else ""
    why = (
        "as the server asks"
        if event.is_from_server
        else f"{counts} {event.setbacks}{' in a row' if event.setbacks > 1 else ''}{own}"
    )
    then = "it is tried again"
    if event.iteration is not None and event.session_id is not None:
        # An iteration that was killed or not started may have no session yet.
        is_outage = event.setback is Setback.OUTAGE
        who = f"session {event.session_id[:8]}" if is_outage else f"iteration {event.iteration}"
        then = f"{who} resumes"
    until = f"{event.until.astimezone():%H:%M:%S}"
    return f"{what}: waiting {time_limit(event.wait_s)} ({why}), until {until}, then {then}"


def iteration_line(record: IterationRecord, max_iterations: int | None) -> str:
    """A line with an iteration's number, outcome, turns, cost, commits, changed files, gate, check, open tasks and duration."""
    parts = [
        counted(record.turns, "turn"),
        dollars(record.cost_usd),
        counted(record.commits, "commit") + (" (1 by --commit)" if record.has_loop_commit else ""),
        changed(record),
        *judged(record),
        duration(record.duration_s),
    ]
    number = _number(record.number, max_iterations)
    return f"iteration {number}: {record.outcome.value}{_code(record.exit_code)}, {', '.join(parts)}"


def judged(record: IterationRecord) -> list[str]:
    """The verdicts of the gate, the check and the plan after an iteration, each in a few words."""
    gate = [f"gate {record.gate}"] if record.gate is not None else []
    check = [f"check {record.check}"] if record.check is not None else []
    return [*gate, *check, *([] if record.open_tasks is None else [tasks_text(record.open_tasks)])]


def _git_line(iteration: int, names: tuple[str, ...]) -> str:
    """A warning that an iteration changed git settings or hooks. The user's next git command may run them."""
    shown = [name if len(name) <= _MOST_NAME_CHARS else f"{name[:_MOST_NAME_CHARS]}…" for name in names]
    return (
        f"iteration {iteration} changed git's settings or hooks in this repository: {names_of(tuple(shown), len(names))}; "
        "ralph's own git runs none of them, but yours may: check .git/config and .git/hooks first"
    )


def changed(record: IterationRecord) -> str:
    if not record.made_progress:
        return "nothing changed"
    if not record.file_count:
        return "no file changed"
    return f"{counted(record.file_count, 'file')} changed: {names_of(record.files, record.file_count)}"


def ending_line(state: LoopState | None, end: LoopEnd) -> str:
    """The last line of a loop. `state` is None if the loop did not begin."""
    came_to = "" if state is None else f"; {totals(state)}"
    return f"{end.outcome.value}{_code(end.exit_code)}: {end.reason}{came_to}"


def totals(state: LoopState) -> str:
    commits = sum(record.commits for record in state.iterations)
    commits += state.current.commits if state.current is not None else 0
    unfinished = "" if state.current is None else " and 1 not finished"
    return (
        f"{counted(len(state.iterations), 'iteration')}{unfinished}, {counted(state.turns, 'turn')}, {dollars(state.spent_usd)}, "
        f"{counted(commits, 'commit')}, {duration(state.elapsed_s)}"
    )


class LoopStatus(Struct, frozen=True):
    """A loop at one moment."""

    folder: Path
    state: LoopState
    is_running: bool
    """Whether a process of the loop holds the lock."""
    live: LiveIteration | None
    """The live file of the running iteration, or None if it is not known."""
    at: datetime

    @property
    def present(self) -> LoopState:
        """The state brought forward to this moment, with the turns and the cost of the running iteration so far."""
        state, live, current = self.state, self.live, self.state.current
        if not self.is_running:
            return state
        if current is not None and live is not None:
            cost = total_usd((current.cost_usd, live.run.cost_usd))
            current = replace(current, turns=current.turns + live.run.answered, cost_usd=cost)
        age_s = _age_s(state.updated_at, self.at) or 0.0
        return replace(state, current=current, elapsed_s=state.elapsed_s + age_s)


def status_lines(
    status: LoopStatus, most_iterations: int = 10, *, tells_words: bool = False
) -> Iterator[str]:
    """The lines of `ralph loop --status`, with the last `most_iterations` iterations, and their words if `tells_words`."""
    state, is_running = status.present, status.is_running
    plan = state.plan
    yield f"loop in {plan.directory}, started {local(state.started_at)}"
    if state.ended is not None:
        yield f"ended {local(state.updated_at)}: {ending_line(state, state.ended)}"
    elif is_running:
        yield f"running as process {state.pid}: {totals(state)}"
        yield from _left_text(state)
    else:
        yield f"stopped without recording an end, last active {local(state.updated_at)}: {totals(state)}"
    if state.current is not None:
        yield _now_at(status, state.current)
        yield from [] if status.live is None else _process_lines(status.live, status.at)
    if plan.gate is not None and state.last_gate is not None:
        yield f"gate `{plan.gate}`: {state.last_gate.words}"
    if plan.until is not None and state.last_check is not None:
        yield f"check `{plan.until}`: {state.last_check.words}"
    if plan.plan is not None:
        yield f"plan {plan.plan}: {tasks_text(state.open_tasks)}"
    most = plan.limits.max_iterations
    for record in state.iterations[-most_iterations:]:
        yield iteration_line(record, most)
        if tells_words:
            yield from (f"  {text}" for text in (record.reason, record.last_words) if text)
    yield from state.warnings
    yield f"record, last prompt, log and the check's output: {status.folder}"
    if state.ended is not None:
        yield from filter(None, [resume_hint(state, state.ended)])
    elif not is_running:
        yield f"continue with: {continue_command(state)}"


def _left_text(state: LoopState) -> Iterator[str]:
    limits, left = state.plan.limits, left_of(state)
    parts = []
    if left.iterations is not None:
        parts.append(f"{left.iterations} of {counted(limits.max_iterations or 0, 'iteration')}")
    if limits.max_budget_usd is not None:
        parts.append(f"{dollars(left.usd)} of {dollars(limits.max_budget_usd)}")
    if left.seconds is not None:
        parts.append(f"{duration(left.seconds)} of {duration(limits.max_time_s or 0)}")
    if parts:
        yield f"left: {', '.join(parts)}"


class LimitsLeft(Struct, frozen=True):
    """The rest of a loop's limits. None without a limit."""

    iterations: int | None
    """The number of iterations that have not begun."""
    usd: float | None
    """The rest of the budget in US dollars. Also None if the cost so far is unknown."""
    seconds: float | None


def left_of(state: LoopState) -> LimitsLeft:
    limits, spent = state.plan.limits, state.spent_usd
    begun = len(state.iterations) + (state.current is not None)
    return LimitsLeft(
        None if limits.max_iterations is None else max(limits.max_iterations - begun, 0),
        None
        if limits.max_budget_usd is None or spent is None
        else plain(max(limits.max_budget_usd - spent, 0.0)),
        None if limits.max_time_s is None else plain(max(limits.max_time_s - state.elapsed_s, 0.0)),
    )


def _now_at(status: LoopStatus, current: CurrentIteration) -> str:
    which = _which(current.number, status.state.plan.limits.max_iterations, current.session_id)
    if not status.is_running:
        return f"{which}: not finished"
    age_s = _age_s(current.started_at, status.at)
    started = current.started_at if age_s is None else f"{duration(age_s)} ago"
    return f"{which}: {doing_text(status, current)}, started {started}"


def doing_text(status: LoopStatus, current: CurrentIteration, *, has_times: bool = True) -> str:
    """The present work of a running loop, or its wait. Without `has_times`, the text contains no duration, so that it
    changes only if something else happens.
    """
    if status.live is not None:
        return _progress_text(status.live, status.at, has_times=has_times)
    doing = _DOING[current.phase]
    if current.waits_until is not None:
        # An outage sets the number of kills to 0.
        after = counted(current.kills, "kill") if current.kills else counted(current.outages, "outage")
        doing += f" until {local(current.waits_until)} ({after})"
    return doing


def _progress_text(live: LiveIteration, now: datetime, *, has_times: bool) -> str:
    run, now_s = live.run, now.timestamp()
    if not run.turn:
        return "starting"
    most = "" if live.max_turns is None else f" of {live.max_turns}"
    what, how_long = doing_now(run, now_s)
    until = ""
    if run.wait is not None and run.wait.until_s > now_s:
        until = f" until {datetime.fromtimestamp(run.wait.until_s, now.tzinfo).astimezone():%H:%M:%S}"
    return f"turn {run.turn}{most}, {what}{until}{f' ({how_long})' if has_times else ''}"


def _process_lines(live: LiveIteration, now: datetime) -> Iterator[str]:
    run, took_s = live.run, max(now.timestamp() - live.began_s, 0.0)
    budget = "" if live.max_budget_usd is None else f" of {dollars(live.max_budget_usd)}"
    time = "" if live.max_time_s is None else f" of {duration(live.max_time_s)}"
    yield (
        f"{run.model or 'its process'}: {counted(run.answered, 'turn')}, {run.tokens_in:,} tokens in, "
        f"{run.tokens_out:,} out, {dollars(run.cost_usd)}{budget}, {duration(took_s)}{time}"
    )
    for one in run.background:
        text = cut_to_columns(one.text, _LONGEST_BACKGROUND)
        yield f"in the background: {one.id} for {duration(max(now.timestamp() - one.since_s, 0.0))}: {text}"


def _age_s(moment: str, now: datetime) -> float | None:
    """The seconds since an ISO 8601 time, 0 in the future, or None if it is not valid."""
    try:
        return max((now - datetime.fromisoformat(moment)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


def resume_hint(state: LoopState, end: LoopEnd) -> str | None:
    """A line with what to do about the end, and the command that continues the loop, with twice the limits that it has reached.
    None if the work is done, or if a continued loop would end in the same way again, as with a check that cannot be run.
    """
    if end.outcome in (Outcome.COMPLETED, Outcome.NO_PROGRESS):
        return None
    if end.outcome is Outcome.CONFIG and not state.iterations and state.current is None:
        return None
    command = f"{continue_command(state)}{_twice_the_limit(state, end.outcome)}"
    return f"{end.advice} Then continue with: {command}" if end.advice else f"continue with: {command}"


def _twice_the_limit(state: LoopState, outcome: Outcome) -> str:
    limits = state.plan.limits
    if outcome not in STOPPED_AT_A_LIMIT:
        return ""
    most, iterations = limits.max_iterations, ""
    if most is not None and len(state.iterations) >= most:
        iterations = f" --max-iterations {2 * most}"
    if outcome is Outcome.TIMED_OUT and limits.max_time_s is not None:
        return f"{iterations} --max-time {time_limit(2 * limits.max_time_s)}"
    if iterations or limits.max_budget_usd is None:
        return iterations
    return f" --max-budget-usd {plain(2 * limits.max_budget_usd)}"


def continue_command(state: LoopState) -> str:
    """The command that continues the loop. It must be typed in the directory where the loop was started."""
    plan = state.plan
    where = "" if plan.directory == plan.launch_directory else f" --cd {shell_word(plan.directory)}"
    return f"ralph loop --continue{where}"


# GitHub shows a megabyte of a step; a row has at most some hundred bytes.
_MOST_ROWS = 1000


def step_summary(state: LoopState | None, end: LoopEnd) -> str:
    """The text for `$GITHUB_STEP_SUMMARY` in Markdown, with a line for each iteration. `state` is None if none began."""
    lines = [f"### ralph loop: {end.outcome.value}", ""]
    if state is None:
        return "\n".join([*lines, _plain(end.reason), ""])
    lines += [f"{_plain(end.reason)} ({totals(state)})", ""]
    most = state.plan.limits.max_iterations
    lines += [f"- {_plain(iteration_line(record, most))}" for record in state.iterations[-_MOST_ROWS:]]
    for note in state.warnings:
        lines += ["", _plain(note)]
    return "\n".join([*lines, ""])


def local(moment: str) -> str:
    """An ISO 8601 time as local time. A text that is not a valid time is returned unchanged."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return moment


def _which(number: int, max_iterations: int | None, session_id: str) -> str:
    return f"iteration {_number(number, max_iterations)}, session {session_id[:8]}"


def _number(number: int, max_iterations: int | None) -> str:
    return f"{number}" if max_iterations is None else f"{number} of {max_iterations}"


def _code(exit_code: int) -> str:
    return f" (exit {exit_code})" if exit_code else ""


def _plain(text: str) -> str:
    """Text from a model or a program as one line of Markdown."""
    shown = " ".join(in_one_line(text).split())
    # An underscore within a word means nothing.
    return re.sub(r"([\\`*\[~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", shown).replace("<", "&lt;")
