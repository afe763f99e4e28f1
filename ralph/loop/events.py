"""The events of a loop, as values, and the words in which people are told of them: a line for each event, and a list for CI
systems. A message that has no event class is a `Notice`. `--quiet` hides a notice unless its `is_vital` is True. No I/O
happens here. Times are in the local time zone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ralph.loop.rules import MOST_IDLE, STOPPED_AT_A_LIMIT, has_passed, tasks_text, what_is_missing
from ralph.loop.values import STOP_FILE, Setback
from ralph.sessions.store import shell_word
from ralph.values.events import Heartbeat, LoopEvent, Notice
from ralph.values.outcome import Outcome
from ralph.values.screen_text import counted, dollars, duration, in_one_line, time_limit
from ralph.values.usage import plain

if TYPE_CHECKING:
    from datetime import datetime

    from ralph.loop.state import IterationRecord, LoopState
    from ralph.loop.values import CheckResult, LoopEnd
    from ralph.values.events import Event

_SETBACKS = {
    Setback.OUTAGE: ("the API is unavailable", "outage"),
    Setback.SHORTAGE: ("this machine has no process, thread, memory or file descriptor left", "shortage"),
    Setback.KILL: ("the iteration was killed, perhaps because it used too much memory", "kill"),
}
_ITERATION = "iteration"
"""While the loop waits for an iteration, `waiting_for` in a heartbeat begins with this word."""
_MOST_NAME_CHARS = 80


class CheckedFirst(LoopEvent, frozen=True):
    """A process of the loop has run the gate or the `--until` check before it begins or resumes an iteration."""

    result: CheckResult
    name: str
    """`gate` or `check`."""
    number: int = 1
    """The number of the iteration that follows."""


class IterationBegan(LoopEvent, frozen=True):
    number: int
    max_iterations: int | None
    session_id: str
    left_usd: float | None
    """The rest of the loop's budget. None without one, or if the settings give less to each iteration."""
    left_s: float | None
    """The rest of the loop's time, as `left_usd`."""


class IterationResumed(LoopEvent, frozen=True):
    """The loop resumes an iteration that was begun by an earlier process of the loop."""

    number: int
    max_iterations: int | None
    session_id: str
    is_anew: bool
    """True if the iteration begins again, because its session is missing or the API rejected it."""


class LoopWaits(LoopEvent, frozen=True):
    """The loop begins to wait after a failure, and then repeats what failed: the iteration or a step."""

    setback: Setback
    setbacks: int
    """The number of consecutive failures of this kind."""
    wait_s: float
    until: datetime
    is_from_server: bool
    has_own_schedule: bool
    """True if the settings have another schedule than `--retry patient`."""
    iteration: int | None
    session_id: str | None


class BranchChanged(LoopEvent, frozen=True):
    """An iteration switched the git branch. None stands for a detached HEAD."""

    iteration: int
    before: str | None
    after: str | None


class GitChanged(LoopEvent, frozen=True):
    """An iteration changed git settings or git hooks of the checkout."""

    iteration: int
    names: tuple[str, ...]


class Pushed(LoopEvent, frozen=True):
    commits: int
    branch: str | None = None
    """The branch, or None for the current one."""


class IterationEnded(LoopEvent, frozen=True):
    record: IterationRecord
    max_iterations: int | None


class IterationCutOff(LoopEvent, frozen=True):
    """An iteration has ended with an outcome that also ends the loop, as a signal does. It does not count."""

    number: int
    max_iterations: int | None
    outcome: Outcome
    exit_code: int
    turns: int
    cost_usd: float | None
    took_s: float


class LoopEnded(LoopEvent, frozen=True):
    """The last event of a loop."""

    end: LoopEnd
    state: LoopState | None = None
    """The last state of the loop. None if the loop could not begin, or if an unexpected error ended the loop."""


# --- The words


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
            return f"{which_iteration(number, most, session_id)}{rest}"
        case IterationResumed(number=number, max_iterations=most, session_id=session_id):
            how = "starts over: its session cannot be resumed" if event.is_anew else "resumes"
            return f"{which_iteration(number, most, session_id)}, {how}"
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


def which_iteration(number: int, max_iterations: int | None, session_id: str) -> str:
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


# --- The text that precedes the user's prompt. It tells an iteration facts that its fresh context lacks.
# docs/loop-reference.md quotes these texts.

_ANOTHER_APPROACH = (
    "Do not do the same again. Find out what kept them from it, and take another approach: a smaller step, another "
    "part of the task, or the obstacle itself. If this iteration makes none either, the loop ends."
)

LONGEST_LAST_WORDS = 1500
"""The maximum number of characters that the prompt quotes from the previous iteration's answer or report."""
_MOST_NAMED = 3
"""The maximum number of changed files that are named. Further files are only counted."""


def iteration_prompt(state: LoopState, prompt: str) -> str:
    """The prompt of the next iteration: the facts that it needs, then the user's prompt."""
    most = state.plan.limits.max_iterations
    number = f"{len(state.iterations) + 1}" + (f" of {most}" if most is not None else "")
    parts = [
        (
            f"[ralph loop {number}] The same task is given again and again, each time to a fresh context. "
            "What earlier iterations did is in the files and in git, nowhere else."
        ),
        *_how_it_ends(state),
        *_how_the_last_one_ended(state.last),
    ]
    if state.idle >= MOST_IDLE:
        parts.append(
            f"The last {state.idle} iterations made no progress: nothing changed, or they went in circles. {_ANOTHER_APPROACH}"
        )
    return "\n\n".join(parts) + f"\n\n---\n\n{prompt}"


def _how_it_ends(state: LoopState) -> list[str]:
    """How the work is checked, when it is done, and the output of what failed: of the gate, else of the check."""
    plan, parts = state.plan, []
    if plan.gate is not None:
        good = f"An iteration is good if this command exits 0, and ralph runs it after each: {plan.gate}"
        parts.append(good + _failure(state, state.last_gate))
    if plan.until is not None:
        each = "each iteration" if plan.gate is None else "each good iteration"
        ends = f"The work is done when this command exits 0, and ralph runs it after {each}: {plan.until}"
        is_red = plan.gate is not None and not has_passed(state.last_gate)
        parts.append(ends if is_red else ends + _failure(state, state.last_check))
    if plan.plan is not None:
        both = "" if plan.until is None else " Both must hold."
        parts.append(
            f"The work is done when no task in {plan.plan} is open.{both} Tick a task (`- [x]`) only when all of it is "
            f"done; write what is missing as a task of its own (`- [ ]`). It has {tasks_text(state.open_tasks)}."
        )
    if not plan.has_condition:
        ends = "It ends the loop" + (" only if the command above exits 0" if plan.gate is not None else "")
        parts.append(
            f"Only when nothing of the task is left to do: create the file {STOP_FILE} with one line that says why. "
            f"{ends}; create it for nothing else."
        )
    if state.has_removed_stop_file:
        parts.append(
            f"The file {STOP_FILE} was removed, because {what_is_missing(state)}: the work continues."
        )
    return parts


def _failure(state: LoopState, result: CheckResult | None) -> str:
    if result is None or result.passed:
        return ""
    when = "after the last iteration" if state.iterations else "before any work was done"
    return f"\n\nIt was run {when}: it {result.words}.{_shown(result)}"


def _shown(check: CheckResult) -> str:
    if not check.tail.strip():
        return " It printed nothing."
    fence = "```"
    while fence in check.tail:
        fence += "`"
    end = check.tail.strip("\n")
    return f" The end of its output:\n\n{fence}\n{end}\n{fence}"


def _how_the_last_one_ended(last: IterationRecord | None) -> list[str]:
    if last is None or (last.outcome not in STOPPED_AT_A_LIMIT and last.outcome is not Outcome.TASK_FAILED):
        return []
    if last.outcome is Outcome.TASK_FAILED:
        how = "The last iteration reported failure."
    else:
        why = f" ({last.reason})" if last.reason else ""
        how = f"The last iteration was stopped before it was finished: {last.outcome.value}{why}."
    changed = f" It changed: {names_of(last.files, last.file_count)}." if last.file_count else ""
    words = last.last_words.strip()
    if len(words) > LONGEST_LAST_WORDS:
        words = "… " + words[-LONGEST_LAST_WORDS:]
    return [
        f"{how}{changed}"
        + (f" Its last words:\n\n> {words.replace(chr(10), chr(10) + '> ')}" if words else "")
    ]


def names_of(files: tuple[str, ...], count: int) -> str:
    """The names of the first files and the number of the others, as in `a.py, b.py, c.py and 4 more`."""
    shown = ", ".join(files[:_MOST_NAMED])
    return shown if count <= _MOST_NAMED else f"{shown} and {count - _MOST_NAMED} more"
