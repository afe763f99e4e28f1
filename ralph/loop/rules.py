"""The rules of `ralph loop`: when it ends, which limits an iteration gets, and how long it waits in an outage. The
rules use exit codes and snapshots, never the model's text. No I/O happens here: `iterate.py` commits and pushes, or keeps work
that did not pass the gate on a branch of its own.
"""

from __future__ import annotations

import math
import signal
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from ralph.loop.values import IterationResult, LoopEnd, loop_end
from ralph.retry.backoff import GiveUp, Wait
from ralph.values.outcome import Outcome
from ralph.values.screen_text import counted, dollar_limit, duration, time_limit
from ralph.values.usage import plain

if TYPE_CHECKING:
    from ralph.loop.state import LoopState
    from ralph.loop.values import CheckResult, LoopLimits
    from ralph.settings.tables import LoopSettings
    from ralph.values.limits import LimitSettings

MOST_IDLE = 3
"""After so many iterations in a row without progress, the prompt asks for another approach. After one more, the loop ends."""
SHORTEST_WAIT_S = 1.0
"""The shortest wait, also if a server asks for less."""
MOST_KILLS = 2
"""After so many kills in a row an iteration is resumed. After one more, the loop gives up."""
CHECK_GRACE_S = 10.0
"""The time of a check besides `reserve_s` when the loop's time is over: the work may be done."""
STOPPED_LIMIT_S = 3.0
"""The time for git to commit red work after a signal: the loop must end soon."""

ENDS_THE_LOOP = frozenset(
    {
        Outcome.USAGE,
        Outcome.API_REJECTED,
        Outcome.INTERNAL_ERROR,
        Outcome.IO_ERROR,
        Outcome.AUTH,
        Outcome.CONFIG,
        Outcome.INTERRUPTED,
    }
)
"""Outcomes of an iteration that end the loop: the next one would end in the same way, or a person stopped it."""

STOPPED_AT_A_LIMIT = frozenset({Outcome.LIMIT_REACHED, Outcome.TIMED_OUT})


class Share(Struct, frozen=True):
    """The limits for one `ralph run` process. A limit of None means no limit."""

    budget_usd: float | None
    time_s: float | None
    is_rest_of_budget: bool
    """True if `budget_usd` is the whole rest of the loop's budget. The loop ends when this rest is spent."""
    is_rest_of_time: bool


def is_counted(outcome: Outcome) -> bool:
    """Whether a run with this outcome completes an iteration. If the API was unavailable, its session is resumed."""
    return outcome not in ENDS_THE_LOOP and outcome is not Outcome.API_UNAVAILABLE


def reserve_s(state: LoopState) -> float:
    """The seconds of the loop's time to keep for the next gate and check: what the last ones took."""
    return sum(last.duration_s for last in (state.last_gate, state.last_check) if last is not None)


def end_before(state: LoopState, elapsed_s: float) -> LoopEnd | None:
    """The loop's end if a limit of the loop is already reached. None if another iteration may begin."""
    limits, spent = state.plan.limits, state.spent_usd
    done = len(state.iterations)
    if limits.max_iterations is not None and done >= limits.max_iterations:
        return _iteration_limit(state)
    if limits.max_time_s is not None and elapsed_s >= limits.max_time_s:
        return _time_is_up(limits)
    if limits.max_budget_usd is not None and (spent is None or spent >= limits.max_budget_usd):
        return _budget_is_spent(limits)
    return None


def share(state: LoopState, own: LimitSettings, elapsed_s: float) -> Share:
    """The limits of the next process: what is left of the loop's (of its time at least 1 second), or the lower limits `own`
    that the settings give to each iteration.
    """
    limits = state.plan.limits
    left_usd = (
        None if limits.max_budget_usd is None else plain(limits.max_budget_usd - (state.spent_usd or 0.0))
    )
    left_s = None
    if limits.max_time_s is not None:
        rest_s = limits.max_time_s - elapsed_s
        left_s = max(rest_s - min(reserve_s(state), rest_s / 2), 1.0)
    # A resumed session has already spent a part of its own budget.
    used_usd = (state.current.cost_usd or 0.0) if state.current is not None else 0.0
    own_usd = None if own.max_budget_usd is None else plain(own.max_budget_usd - used_usd)
    return Share(
        min((usd for usd in (left_usd, own_usd) if usd is not None), default=None),
        min((time_s for time_s in (left_s, own.max_time_s) if time_s is not None), default=None),
        left_usd is not None and (own_usd is None or left_usd <= own_usd),
        left_s is not None and (own.max_time_s is None or left_s <= own.max_time_s),
    )


def end_by_result(number: int, result: IterationResult) -> LoopEnd | None:
    """The loop's end if `result` ends the loop at once, otherwise None. `number` is the number of the iteration."""
    if result.stopped_by is not None:
        reason = f"stopped by {signal.Signals(result.stopped_by).name}"
        return LoopEnd(Outcome.INTERRUPTED, 128 + result.stopped_by, reason)
    if result.outcome not in ENDS_THE_LOOP:
        return None
    why = f": {result.reason}" if result.reason else ""
    reason = f"iteration {number} ended with exit {result.exit_code}{why}"
    return LoopEnd(result.outcome, result.exit_code, reason, advice=result.advice)


def outage_wait(
    number: int,
    slept_s: float,
    requested_s: float | None,
    schedule: LoopSettings,
    time_left_s: float = math.inf,
    *,
    away: str = "the API",
) -> Wait | GiveUp:
    """The wait after the `number`-th outage in a row, or the reason to give up. `slept_s` is the time of the earlier
    waits. `requested_s` is what the server asked for, which replaces the scheduled wait if it is longer, and always
    after the first outage. With a budget of 0, ralph gives up at once.
    """
    if schedule.outage_budget_s <= 0:
        return GiveUp(f"{away} is unavailable, and the caller of this loop tries again (--no-outage-waits)")
    scheduled_s = _scheduled_s(number, schedule)
    wait = Wait(scheduled_s)
    if requested_s is not None and (number == 1 or requested_s > scheduled_s):
        wait = Wait(max(requested_s, SHORTEST_WAIT_S), from_server=True)
    left_s = schedule.outage_budget_s - slept_s
    if wait.seconds > left_s and wait.from_server:
        rest = f"{time_limit(round(left_s))} of its {time_limit(schedule.outage_budget_s)} for outages"
        return GiveUp(
            f"the server asks for a wait of {time_limit(wait.seconds)}, and the loop has {rest} left",
            is_early=True,
        )
    if wait.seconds > left_s:
        return GiveUp(f"{away} did not come back in {time_limit(schedule.outage_budget_s)} of waiting")
    if wait.seconds >= time_left_s:
        next_try = f"{away} should be tried again in {time_limit(wait.seconds)}"
        return GiveUp(f"{next_try}, and --max-time leaves {duration(max(time_left_s, 0.0))}", is_early=True)
    return wait


def wait_after_kill(
    number: int, reason: str, schedule: LoopSettings, time_left_s: float = math.inf
) -> Wait | GiveUp:
    """The wait after the `number`-th kill in a row, or the reason to give up. Waiting can help: if memory ran out, the
    program that used it may end soon.
    """
    if number > MOST_KILLS:
        return GiveUp(f"{reason}, {number} times in a row")
    wait = Wait(_scheduled_s(number, schedule))
    if wait.seconds >= time_left_s:
        return GiveUp(f"{reason}, and --max-time leaves no time for another try", is_early=True)
    return wait


def _scheduled_s(number: int, schedule: LoopSettings) -> float:
    return schedule.outage_waits_s[min(number, len(schedule.outage_waits_s)) - 1]


def check_limit_s(state: LoopState, elapsed_s: float) -> float:
    """The seconds that the gate or the check may take now: the rest of the loop's time, and never more than the plan's
    `check_timeout_s`. As soon as there is work to check, at least `reserve_s` + `CHECK_GRACE_S`.
    """
    plan = state.plan
    if plan.limits.max_time_s is None:
        return plan.check_timeout_s
    least_s = reserve_s(state) + CHECK_GRACE_S if _was_begun(state) else 1.0
    return min(plan.check_timeout_s, max(plan.limits.max_time_s - elapsed_s, least_s))


def _was_begun(state: LoopState) -> bool:
    return bool(state.iterations) or state.current is not None


def end_of_unusable(state: LoopState) -> LoopEnd | None:
    """The loop's end if a new loop's gate or check can never say that the work is done. In a resumed loop, the agent's
    work may be the cause, and None is returned.
    """
    if _was_begun(state):
        return None
    for name, result in (("check", state.last_check), ("gate", state.last_gate)):
        if result is not None and result.why_not_run is not None:
            last_line = result.tail.rpartition("\n")[2].strip()
            said = f": {last_line}" if last_line else ""
            reason = f"the {name} cannot be run (exit {result.exit_code}: {result.why_not_run}){said}"
            return loop_end(Outcome.CONFIG, reason)
    return None


def what_is_missing(state: LoopState) -> str | None:
    """Which of the gate and of the conditions that the user gave does not hold, as a clause. None if all hold."""
    plan = state.plan
    if plan.gate is not None and not has_passed(state.last_gate):
        return f"the gate {_words(state.last_gate)}"
    if plan.until is not None and not has_passed(state.last_check):
        return f"the check {_words(state.last_check)}"
    if plan.plan is not None and state.open_tasks != 0:
        return f"{plan.plan} has {tasks_text(state.open_tasks)}"
    return None


def has_passed(result: CheckResult | None) -> bool:
    return result is not None and result.passed


def _words(result: CheckResult | None) -> str:
    return "has not run" if result is None else result.words


def tasks_text(count: int | None) -> str:
    """A number of open tasks as text. None stands for a plan without any task."""
    return "no task at all" if count is None else counted(count, "open task")


def end_if_done(state: LoopState, *, has_stop_file: bool) -> LoopEnd | None:
    """The loop's end if the work is done: the gate is green and all conditions hold, or, without a condition, a stop
    file exists. At the first look of a new loop, `at_least_once` overrules this.
    """
    plan = state.plan
    if what_is_missing(state) is not None or not (plan.has_condition or has_stop_file):
        return None
    was_begun = _was_begun(state)
    if plan.at_least_once and not was_begun:
        return None
    reasons = [
        *(["the gate passes"] if plan.gate is not None else []),
        *(["the check passes"] if plan.until is not None else []),
        *([f"no task in {plan.plan} is open"] if plan.plan is not None else []),
        *([] if plan.has_condition else ["the stop file exists"]),
    ]
    reason = " and ".join(filter(None, (", ".join(reasons[:-1]), reasons[-1])))
    if not was_begun:
        reason += " already, so nothing was started (--at-least-once starts anyway)"
    return loop_end(Outcome.COMPLETED, reason)


def idle_after(state: LoopState, outcome: Outcome, *, made_progress: bool) -> int:
    """The number of consecutive iterations without progress. An iteration that ended with NO_PROGRESS made none,
    whatever it changed.
    """
    return 0 if made_progress and outcome is not Outcome.NO_PROGRESS else state.idle + 1


def end_after(state: LoopState, granted: Share, limit: str | None, *, has_stop_file: bool) -> LoopEnd | None:
    """The loop's end after the last recorded iteration, or None. `granted` are the limits of that iteration, and `limit` is
    the one that it reached, as in `IterationResult`.
    """
    last = state.last
    assert last is not None  # noqa: S101 - the caller has just recorded an iteration
    done = end_if_done(state, has_stop_file=has_stop_file)
    if done is not None:
        return done
    if granted.is_rest_of_budget and limit == "max_budget_usd":
        return _budget_is_spent(state.plan.limits)
    if granted.is_rest_of_time and last.outcome is Outcome.TIMED_OUT:
        return _time_is_up(state.plan.limits)
    if state.idle > MOST_IDLE:
        reason = f"{state.idle} iterations in a row made no progress"
        return loop_end(Outcome.NO_PROGRESS, reason)
    return None


def end_with_unsaved_work(end: LoopEnd, *, is_uncommitted: bool, is_unpushed: bool) -> LoopEnd:
    """The loop's end if the last commit or the last push failed. A success or a limit becomes an IO_ERROR, because the
    caller would rely on work that nobody else has: the machine of a CI job is deleted after the loop.
    """
    missing = "committed" if is_uncommitted else "pushed" if is_unpushed else None
    if missing is None or end.outcome not in {Outcome.COMPLETED, *STOPPED_AT_A_LIMIT}:
        return end
    reason = f"{end.reason}, but not all work is {missing}"
    return loop_end(Outcome.IO_ERROR, reason)


def with_new_limits(state: LoopState, given: LoopLimits) -> LoopState:
    """The state with the limits that were given with `--continue`. The others keep their recorded values."""
    new = {name: value for name, value in asdict(given).items() if value is not None}
    limits = replace(state.plan.limits, **new)
    return replace(state, plan=replace(state.plan, limits=limits))


def _iteration_limit(state: LoopState) -> LoopEnd:
    count = state.plan.limits.max_iterations
    reason = "1 iteration is done" if count == 1 else f"{count} iterations are done"
    missing = what_is_missing(state)
    if missing is None and not state.plan.has_condition:
        return loop_end(Outcome.COMPLETED, reason)
    why = f", {missing}" if missing is not None else ""
    return loop_end(Outcome.LIMIT_REACHED, reason + why)


def _budget_is_spent(limits: LoopLimits) -> LoopEnd:
    reason = f"the budget of {dollar_limit(limits.max_budget_usd or 0.0)} is spent"
    return loop_end(Outcome.LIMIT_REACHED, reason)


def _time_is_up(limits: LoopLimits) -> LoopEnd:
    reason = f"the time limit of {time_limit(limits.max_time_s or 0.0)} (--max-time) is used up"
    return loop_end(Outcome.TIMED_OUT, reason)
