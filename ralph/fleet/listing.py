"""The texts and JSON objects with which users see sets, jobs and attempts. All foreign text in a line is made safe for a
terminal. No I/O happens here.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from ralph.fleet.jobs import JobState, UnknownFormatError, branch_of
from ralph.values.screen_text import (
    columns_of,
    counted,
    dollar_limit,
    dollars,
    duration,
    in_one_line,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.fleet.jobs import Job, SetLimits
    from ralph.fleet.schema import AttemptRow, JobRow, KeptRow, SetRow

_MOST_FAILURES = 20
_HEADER = ("JOB", "STATE", "TRIES", "TURNS", "COST", "TIME", "REASON")
_RIGHT = (2, 3, 4, 5)
"""The columns that are aligned to the right."""
_PERIODS = {1.0: "s", 60.0: "min", 3600.0: "h"}


class Workers(Struct, frozen=True):
    """The executors that have told the store of themselves in the last half minute."""

    slots: int
    machines: int


# --- Lines for people


def set_lines(row: SetRow, workers: Workers) -> Iterator[str]:
    """The line of a set, and who works for it."""
    budget = row.limits.max_budget_usd
    of_budget = "" if budget is None else f" of {dollar_limit(budget)}"
    yield f"{row.name}: {counts_text(row)}; {dollars(row.cost_usd)}{of_budget}"
    limits = limits_text(row.limits)
    if limits:
        yield f"  limits: {limits}"
    if not row.open_jobs:
        return
    if workers.slots:
        yield f"  {counted(workers.slots, 'slot')} on {counted(workers.machines, 'machine')} at work"
    else:
        yield "  no worker: ralph fleet work"


def counts_text(row: SetRow) -> str:
    """The number of jobs in each state, such as `12 jobs: 3 running, 8 done, 1 failed`."""
    total = sum(row.counts.values())
    states = _states_text(row.counts, row.failed)
    return f"{counted(total, 'job')}: {states}" if states else counted(total, "job")


def _states_text(counts: Mapping[JobState, int], failed: int) -> str:
    parts: list[str] = []
    for state in JobState:
        number = counts.get(state, 0)
        if state is JobState.DONE:
            parts += [f"{number - failed} done"] if number > failed else []
            parts += [f"{failed} failed"] if failed else []
        elif number:
            parts.append(f"{number} {state.value}")
    return ", ".join(parts)


def limits_text(limits: SetLimits, *, has_budget: bool = False) -> str:
    """The limits of a set that a user has given. Empty if there are none. The budget is among them if `has_budget`."""
    parts = []
    if limits.concurrency is not None:
        parts.append(f"{limits.concurrency} at once")
    if limits.per_host is not None:
        parts.append(f"{limits.per_host} at once for each host")
    if limits.rate is not None:
        parts.append(
            f"{limits.rate.starts}/{_PERIODS.get(limits.rate.period_s, f'{limits.rate.period_s:g}s')}"
        )
    if limits.max_attempts != type(limits)().max_attempts:
        parts.append(counted(limits.max_attempts, "attempt"))
    if has_budget and limits.max_budget_usd is not None:
        parts.append(dollar_limit(limits.max_budget_usd))
    return ", ".join(parts)


def state_text(row: JobRow) -> str:
    """The state of a job in a word or two. A job that failed has its exit code there."""
    if row.state is JobState.DONE and row.exit_code:
        return f"exit {row.exit_code}"
    if row.state is JobState.RUNNING and row.is_cancelled:
        return "cancelling"
    return row.state.value


def time_text(row: JobRow, now: float) -> str:
    """How long a job has run or ran, or after which time its next attempt begins."""
    if row.state is JobState.QUEUED and row.not_before > now:
        return f"in {duration(row.not_before - now)}"
    if row.started_at is None or row.state in {JobState.QUEUED, JobState.WAITING}:
        return ""
    return duration(max((row.ended_at or now) - row.started_at, 0.0))


def job_lines(rows: Sequence[JobRow], *, now: float) -> Iterator[str]:
    """A table with one line per job."""
    cells = [_HEADER, *(_cells(row, now) for row in rows)]
    widths = [max(columns_of(line[at]) for line in cells) for at in range(len(_HEADER) - 1)]
    for line in cells:
        gaps = (" " * (wide - columns_of(text)) for text, wide in zip(line, widths, strict=False))
        parts = (
            gap + text if at in _RIGHT else text + gap
            for at, (text, gap) in enumerate(zip(line, gaps, strict=False))
        )
        yield "  ".join([*parts, line[-1]]).rstrip()


def kept_lines(rows: Sequence[JobRow]) -> Iterator[str]:
    """The work that was not delivered, whole lines also on a narrow terminal."""
    for row in rows:
        if row.kept is not None:
            yield f"not delivered: {row.set_name}/{row.id}: {in_one_line(_place(row.kept))}"


def _place(kept: KeptRow) -> str:
    return f"{kept.path} on {kept.machine}"


def _cells(row: JobRow, now: float) -> tuple[str, ...]:
    return (
        row.id,
        state_text(row),
        str(row.tries or ""),
        str(row.turns or ""),
        dollars(row.cost_usd) if row.cost_usd or row.turns else "",
        time_text(row, now),
        in_one_line(row.reason or ""),
    )


def story_lines(row: JobRow, attempts: Sequence[AttemptRow], now: float) -> Iterator[str]:
    """All that is known about one job."""
    yield f"{row.set_name}/{row.id}: {state_text(row)}{_because(row.reason)}"
    try:
        job: Job | None = row.job
    except UnknownFormatError as error:
        job = None
        yield f"  {in_one_line(str(error))}"
    for name, text in _facts(row, job, now):
        yield f"  {name:10}  {in_one_line(text)}"
    if attempts:
        yield "  attempts:"
    for one in attempts:
        length = duration(max((one.ended_at or now) - one.started_at, 0.0))
        if one.exit_code is not None:
            end = f"exit {one.exit_code}{_because(one.reason)}"
        else:
            end = "running" if one.ended_at is None else in_one_line(one.reason or "lost")
        yield f"    {one.attempt}  {_local(one.started_at)}  {length:>6}  {in_one_line(one.machine)}  {end}"
    if row.result:
        yield "  result:"
        yield from (f"    {line}" for line in visible(row.result).splitlines())


def _because(reason: str | None) -> str:
    return f" ({in_one_line(reason)})" if reason else ""


def _facts(row: JobRow, job: Job | None, now: float) -> Iterator[tuple[str, str]]:
    yield "repository", row.repository + (f" at {job.ref}" if job is not None and job.ref else "")
    if job is not None:
        at = f" at {row.commit}" if row.commit else ", nothing pushed yet" if not row.state.is_final else ""
        yield "branch", branch_of(job) + at
        yield "prompt", next((line.strip() for line in job.prompt.splitlines() if line.strip()), "")
        if job.until is not None:
            yield "until", job.until
        if job.after:
            yield "after", ", ".join(job.after)
    if row.turns or row.cost_usd:
        yield "spent", f"{counted(row.turns, 'turn')}, {dollars(row.cost_usd)}"
    times = [f"submitted {_local(row.created_at)}"]
    if row.started_at is not None:
        times.append(f"started {_local(row.started_at)}")
    if row.ended_at is not None:
        times.append(f"ended {_local(row.ended_at)}")
    if row.state is JobState.QUEUED and row.not_before > now:
        times.append(f"again in {duration(row.not_before - now)}")
    yield "time", ", ".join(times)
    if row.holder is not None:
        yield "worker", row.holder
    if row.kept is not None:
        yield "kept", f"{_place(row.kept)}, not delivered"


def progress_line(sets: Sequence[SetRow]) -> str:
    """One line about sets: how many jobs are in each state, and the cost."""
    counts: Counter[JobState] = Counter()
    for row in sets:
        counts.update(row.counts)
    states = _states_text(counts, sum(row.failed for row in sets))
    return f"{states}; {dollars(sum(row.cost_usd for row in sets))}"


def end_lines(sets: Sequence[SetRow], rows: Sequence[JobRow]) -> Iterator[str]:
    """The end of `wait`: each set, and the jobs that did not end with 0."""
    for row in sets:
        yield f"{row.name}: {counts_text(row)}; {dollars(row.cost_usd)}"
    failed = [job for job in rows if job.exit_code]
    for job in failed[:_MOST_FAILURES]:
        yield f"  {job.set_name}/{job.id}: exit {job.exit_code}{_because(job.reason)}"
    if len(failed) > _MOST_FAILURES:
        yield f"  and {len(failed) - _MOST_FAILURES} more"


def _local(at: float) -> str:
    return f"{datetime.fromtimestamp(at, tz=UTC).astimezone():%Y-%m-%d %H:%M:%S}"


# --- JSON


def set_object(row: SetRow, workers: Workers | None = None) -> dict[str, Any]:
    """A set and its limits. Without `workers`, who works for it is left out."""
    return {
        "set": row.name,
        "jobs": sum(row.counts.values()),
        "open": row.open_jobs,
        "states": {state.value: row.counts.get(state, 0) for state in JobState},
        "failed": row.failed,
        "cost_usd": row.cost_usd,
        "limits": to_builtins(row.limits),
        **({} if workers is None else asdict(workers)),
        "created_at": _iso(row.created_at),
    }


def job_object(row: JobRow) -> dict[str, Any]:
    try:
        branch: str | None = branch_of(row.job)
    except UnknownFormatError:
        branch = None
    return {
        "set": row.set_name,
        "id": row.id,
        "state": row.state.value,
        **{name: getattr(row, name) for name in _SAME_OF_JOB},
        "branch": branch,
        "worker": row.holder,
        "undelivered": None if row.kept is None else {"machine": row.kept.machine, "path": row.kept.path},
        **{name: _iso(getattr(row, name) or None) for name in _TIMES_OF_JOB},
    }


_SAME_OF_JOB = (
    "exit_code outcome reason attempt tries turns cost_usd repository commit base is_cancelled result".split()
)
_TIMES_OF_JOB = ("created_at", "started_at", "ended_at", "not_before")


def wait_object(sets: Sequence[SetRow], rows: Sequence[JobRow], exit_code: int) -> dict[str, Any]:
    """The result of `wait`. `exit_code` is the exit code of the command."""
    return {
        "exit_code": exit_code,
        "sets": [set_object(row) for row in sets],
        "jobs": [job_object(row) for row in rows],
    }


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, tz=UTC).isoformat(timespec="milliseconds")
