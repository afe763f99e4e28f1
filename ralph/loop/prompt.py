"""Writes the text that precedes the user's prompt. It tells an iteration facts that its fresh context lacks. No I/O
happens here. docs/loop-reference.md quotes these texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.loop.rules import MOST_IDLE, STOPPED_AT_A_LIMIT, has_passed, tasks_text, what_is_missing
from ralph.loop.values import STOP_FILE
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from ralph.loop.state import IterationRecord, LoopState
    from ralph.loop.values import CheckResult

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
