"""How a loop is told: a line for each iteration, its end, its state for `--status`, a table for CI.

Pure, but for the local time zone.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ralph.loop.prompt import names_of
from ralph.loop.state import Phase
from ralph.loop.values import Setback
from ralph.retry.backoff import PATIENT_SCHEDULE_S
from ralph.values.outcome import Outcome
from ralph.values.resume_command import shell_word
from ralph.values.screen_text import in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from ralph.loop.rules import Share
    from ralph.loop.state import IterationRecord, LoopState
    from ralph.loop.values import IterationResult, LoopEnd
    from ralph.retry.backoff import Wait
    from ralph.settings.tables import LoopSettings

_SETBACKS = {
    Setback.OUTAGE: ("the API is unavailable", "outage"),
    Setback.SHORTAGE: (
        "this machine has no process, thread, memory or file descriptor left",
        "shortage",
    ),
    Setback.KILL: ("the iteration was killed, for its memory perhaps", "kill"),
}
TENTHS_BELOW_S, MINUTE_S, HOUR_S = 9.95, 60, 3600
_MOST_NAME_CHARS = 80
_DOING = {
    Phase.WORKING: "the model works",
    Phase.WAITING: "waiting",
    Phase.SAVING: "committing and pushing",
    Phase.CHECKING: "running the check",
}


def time_text(seconds: float) -> str:
    """`4.2s`, `42s`, `3m12s`, `2h05m`."""
    if seconds < TENTHS_BELOW_S:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole}s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}m{whole % MINUTE_S:02d}s"
    return f"{whole // HOUR_S}h{whole % HOUR_S // MINUTE_S:02d}m"


def money_text(cost_usd: float | None) -> str:
    """Small sums with the digits that tell them from nothing. None: not known."""
    if cost_usd is None:
        return "$?"
    return f"${cost_usd:.2f}" if cost_usd >= 1 or not cost_usd else f"${cost_usd:.4f}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def beginning_line(state: LoopState, granted: Share) -> str:
    current = state.current
    assert current is not None  # noqa: S101 - it is said when one begins
    left = []
    if granted.is_rest_of_budget:
        left.append(money_text(granted.budget_usd))
    if granted.is_rest_of_time and granted.time_s is not None:
        left.append(time_text(granted.time_s))
    rest = f", {' and '.join(left)} left" if left else ""
    return f"iteration {_number(current.number, state)}, session {current.session_id[:8]}{rest}"


def taken_up_line(state: LoopState, *, is_anew: bool) -> str:
    current = state.current
    assert current is not None  # noqa: S101 - it is what is taken up
    how = "begins anew: nothing of it was kept" if is_anew else "goes on"
    return f"iteration {_number(current.number, state)}, session {current.session_id[:8]}, {how}"


def waiting_line(
    state: LoopState, wait: Wait, until: datetime, setback: Setback, number: int, *, schedule: LoopSettings
) -> str:
    """The line of a wait. `number`: the count of such setbacks in a row."""
    current = state.current
    what, counts = _SETBACKS[setback]
    own = "" if schedule.outage_waits_s == PATIENT_SCHEDULE_S else ", by the schedule loop.outage_waits_s"
    why = "as the server asks" if wait.from_server else f"{counts} {number} in a row{own}"
    then = "it is tried again"
    if current is not None:  # what was killed or not started may have no session yet
        is_outage = setback is Setback.OUTAGE
        who = f"session {current.session_id[:8]}" if is_outage else f"iteration {current.number}"
        then = f"{who} goes on"
    return (
        f"{what}: waiting {time_text(wait.seconds)} ({why}), until {until.astimezone():%H:%M:%S}, then {then}"
    )


def iteration_line(record: IterationRecord, state: LoopState) -> str:
    """Number, outcome, turns, cost, commits, what changed, check, time."""
    code = f" (exit {record.exit_code})" if record.exit_code else ""
    check = [f"check {record.check}"] if record.check is not None else []
    parts = [
        counted(record.turns, "turn"),
        money_text(record.cost_usd),
        counted(record.commits, "commit") + (" (1 by --commit)" if record.has_loop_commit else ""),
        changed(record),
        *check,
        time_text(record.duration_s),
    ]
    return f"iteration {_number(record.number, state)}: {record.outcome.value}{code}, {', '.join(parts)}"


def branch_line(state: LoopState, before: str | None, after: str | None) -> str:
    current = state.current
    assert current is not None  # noqa: S101 - it changed the branch
    now = "left every branch (HEAD is detached)" if after is None else f"went to branch {after}"
    return f"iteration {current.number} {now}; before it was {before or 'on none'}"


def git_line(state: LoopState, names: Sequence[str]) -> str:
    """A line that names changed git settings and hooks: the next git command may run them, whoever types it."""
    current = state.current
    assert current is not None  # noqa: S101 - it changed them
    shown = [name if len(name) <= _MOST_NAME_CHARS else f"{name[:_MOST_NAME_CHARS]}…" for name in names]
    return (
        f"iteration {current.number} changed what git follows in this repository: {names_of(tuple(shown), len(names))}; "
        "ralph's own git runs none of it, yours may: look at .git/config and .git/hooks first"
    )


def cut_off_line(state: LoopState, result: IterationResult) -> str:
    current = state.current
    assert current is not None  # noqa: S101 - it was cut off
    code = f" (exit {result.exit_code})" if result.exit_code else ""
    spent = f"{counted(result.turns, 'turn')}, {money_text(result.cost_usd)}"
    took = time_text(state.elapsed_s - current.elapsed_s)
    return f"iteration {_number(current.number, state)}: {result.outcome.value}{code}, {spent}, not finished, {took}"


def changed(record: IterationRecord) -> str:
    if not record.made_progress:
        return "nothing changed"
    if not record.file_count:
        return "no file changed"
    return f"{counted(record.file_count, 'file')} changed: {names_of(record.files, record.file_count)}"


def ending_line(state: LoopState | None, end: LoopEnd) -> str:
    """The last line of a loop. `state`: None if nothing was begun."""
    code = f" (exit {end.exit_code})" if end.exit_code else ""
    came_to = "" if state is None else f"; {totals(state)}"
    return f"{end.outcome.value}{code}: {end.reason}{came_to}"


def totals(state: LoopState) -> str:
    commits = sum(record.commits for record in state.iterations)
    commits += state.current.commits if state.current is not None else 0
    turns = sum(record.turns for record in state.iterations)
    turns += state.current.turns if state.current is not None else 0
    return (
        f"{counted(len(state.iterations), 'iteration')}, {counted(turns, 'turn')}, {money_text(state.spent_usd)}, "
        f"{counted(commits, 'commit')}, {time_text(state.elapsed_s)}"
    )


def status_lines(state: LoopState, folder: Path, *, is_running: bool, now: datetime) -> Iterator[str]:
    """For `ralph loop --status`. `folder`: the loop's own. `is_running`: its process holds the lock."""
    plan = state.plan
    yield f"loop in {plan.directory}, begun {local(state.started_at)}"
    if state.ended is not None:
        yield f"ended {local(state.updated_at)}: {ending_line(state, state.ended)}"
    elif is_running:
        yield f"running as process {state.pid}: {totals(state)}"
    else:
        yield f"stopped without an end, last seen {local(state.updated_at)}: {totals(state)}"
    if state.current is not None:
        yield _now_at(state, now, is_running=is_running)
    if plan.until is not None and state.last_check is not None:
        yield f"check `{plan.until}`: {state.last_check.words}"
    yield from (iteration_line(record, state) for record in state.iterations[-10:])
    yield from state.warnings
    yield f"record, last prompt and the check's output: {folder}"
    if state.ended is not None:
        yield from filter(None, [way_on(state, state.ended)])
    elif not is_running:
        yield f"go on with: {continue_command(state)}"


def _now_at(state: LoopState, now: datetime, *, is_running: bool) -> str:
    current = state.current
    assert current is not None  # noqa: S101 - the caller looked
    number = _number(current.number, state)
    which = f"iteration {number}, session {current.session_id[:8]}"
    if not is_running:
        return f"{which}: not finished"
    doing = _DOING[current.phase]
    if current.waits_until is not None:
        doing += f" until {local(current.waits_until)} ({counted(current.outages, 'outage')})"
    return f"{which}: {doing}, begun {_since(current.started_at, now)}"


def _since(moment: str, now: datetime) -> str:
    try:
        seconds = (now - datetime.fromisoformat(moment)).total_seconds()
    except (ValueError, TypeError):
        return moment
    return f"{time_text(max(seconds, 0))} ago"


_HIGHER = {Outcome.TIMED_OUT: " with a higher --max-time", Outcome.LIMIT_REACHED: " with a higher limit"}


def way_on(state: LoopState, end: LoopEnd) -> str | None:
    """How to continue a loop with this end; None: it is done, or would meet the same end again."""
    if end.outcome in (Outcome.COMPLETED, Outcome.NO_PROGRESS):
        return None
    return f"go on with: {continue_command(state)}{_HIGHER.get(end.outcome, '')}"


def continue_command(state: LoopState) -> str:
    """The command that continues the loop, as it can be typed where the loop was started."""
    plan = state.plan
    where = "" if plan.directory == plan.launch_directory else f" --cd {shell_word(plan.directory)}"
    return f"ralph loop --continue{where}"


_TABLE_HEAD = (
    "| # | outcome | turns | cost | commits | changed | check | time |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)
# GitHub shows a megabyte of a step; a row has at most some hundred bytes.
_MOST_ROWS = 1000


def step_summary(state: LoopState | None, end: LoopEnd) -> str:
    """Markdown, for `$GITHUB_STEP_SUMMARY`. `state`: None where nothing was begun."""
    lines = [f"### ralph loop: {end.outcome.value}", ""]
    if state is None:
        return "\n".join([*lines, _cell(end.reason), ""])
    lines.append(f"{_cell(end.reason)} ({totals(state)})")
    if state.iterations or state.current is not None:
        lines += ["", *_TABLE_HEAD, *map(_row, state.iterations[-_MOST_ROWS:]), *_row_of_current(state, end)]
    for note in state.warnings:
        lines += ["", _cell(note)]
    return "\n".join([*lines, ""])


def _row(record: IterationRecord) -> str:
    cells = (
        str(record.number),
        record.outcome.value,
        str(record.turns),
        money_text(record.cost_usd),
        str(record.commits),
        changed(record),
        record.check or "",
        time_text(record.duration_s),
    )
    return _joined(cells)


def _row_of_current(state: LoopState, end: LoopEnd) -> Iterator[str]:
    current = state.current
    if current is not None:
        took = time_text(state.elapsed_s - current.elapsed_s)
        spent = str(current.turns), money_text(current.cost_usd), str(current.commits)
        yield _joined((str(current.number), end.outcome.value, *spent, "not finished", "", took))


def _joined(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def local(moment: str) -> str:
    """An ISO time in local time; a text that is none stays as it is."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return moment


def _number(number: int, state: LoopState) -> str:
    most = state.plan.limits.max_iterations
    return f"{number}" if most is None else f"{number} of {most}"


def _cell(text: str) -> str:
    """The text of a model or a program, made safe for a cell: it cannot end the cell, the row or the table."""
    shown = " ".join(in_one_line(text).split()).replace("\\", "\\\\").replace("|", "\\|")
    return shown.replace("<", "&lt;").replace("`", "\\`")
