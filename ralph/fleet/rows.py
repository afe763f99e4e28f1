"""The values that the store returns, and the columns that a change of a job sets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ralph.fleet.decisions import Final, JobState
from ralph.fleet.job_content import job_from
from ralph.fleet.jobs import SetLimits
from ralph.fleet.schema import jobs
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from ralph.fleet.jobs import Job

FINAL_STATES = tuple(state.value for state in JobState if state.is_final)
OPEN_STATES = tuple(state.value for state in JobState if not state.is_final)
MOST_COUNTED = 1000
_CANCELLED_EXIT = 143
"""A cancelled job ends as a process that got a SIGTERM."""


class Submitted(Struct, frozen=True):
    new: int
    known: int
    """Jobs that the set had already, with the same content."""
    has_new_limits: bool


class Kept(Struct, frozen=True, kw_only=True):
    """Work of a job that the git host has not taken, on the machine that keeps it."""

    set_name: str
    job: str
    generation: int
    place: str
    machine: str
    path: str
    tries: int = 0
    is_retried: bool = False
    is_over: bool = False


class JobRow(Struct, frozen=True, kw_only=True):
    """One job as `ls`, `show` and the report see it. Times are seconds since 1970."""

    set_name: str
    id: str
    position: int
    content: bytes
    repository: str
    after: str
    state: JobState
    attempt: int
    tries: int
    generation: int
    not_before: float
    is_queued: bool
    claimed_until: float
    holder: str | None
    is_cancelled: bool
    exit_code: int | None
    outcome: str | None
    reason: str | None
    result: str | None
    base: str | None
    commit: str | None
    planned: str | None = None
    turns: int
    cost_usd: float
    reserved_usd: float
    created_at: float
    started_at: float | None
    ended_at: float | None
    kept: Kept | None = None

    @property
    def job(self) -> Job:
        """Raises UnknownFormatError."""
        return job_from(self.content)


class AttemptRow(Struct, frozen=True, kw_only=True):
    """One takeup of a job by a worker."""

    set_name: str
    job: str
    generation: int
    attempt: int
    executor: str
    machine: str
    started_at: float
    ended_at: float | None
    exit_code: int | None
    reason: str | None
    turns: int | None
    cost_usd: float | None


class SetRow(Struct, frozen=True, kw_only=True):
    name: str
    limits: SetLimits
    created_at: float
    counts: dict[JobState, int]
    cost_usd: float
    failed: int = 0
    """The number of jobs in the state DONE whose exit code is not 0."""

    @property
    def open_jobs(self) -> int:
        return sum(count for state, count in self.counts.items() if not state.is_final)


class OpenSet(Struct, frozen=True, kw_only=True):
    """A set with jobs that have not ended, for the workers."""

    name: str
    open_jobs: int
    due_jobs: int
    """Jobs that may begin now."""
    running_jobs: int
    concurrency: int | None
    workers: int
    """Slots of all machines that work for the set."""

    @property
    def useful_slots(self) -> int:
        """The number of slots, of all machines, that have something to do."""
        return min(self.due_jobs + self.running_jobs, self.concurrency or MOST_COUNTED)


class LogLine(Struct, frozen=True):
    number: int
    generation: int
    at: float
    text: str


class StoredCheckpoint(Struct, frozen=True):
    ref: str | None
    commit: str | None
    """None if no file had changed."""
    state: bytes


class TakeUp(Struct, frozen=True, kw_only=True):
    """A job that this executor works on from now on."""

    set_name: str
    id: str
    content: bytes
    attempt: int
    generation: int
    tries: int
    """The number of tries, this one included."""
    most_tries: int
    cost_usd: float
    granted_usd: float | None
    """The part that this takeup may spend of the set's budget until it asks again. None if the set has no budget."""
    base: str | None
    own_commits: tuple[str, ...]
    """Commits that earlier takeups of the job have pushed, or were about to push."""
    ending: Final | None = None
    """The job's process must not start again, and this is why. The work so far is delivered."""
    kept: Kept | None = None
    """The work that this machine keeps of the job. The takeup delivers it and does nothing else."""


class Later(Struct, frozen=True):
    """The job cannot begin now. Its next attempt has been planned."""

    reason: str


class NotOurs(Struct, frozen=True):
    """The workflow is not the job's current one, or the job has ended."""


class DueJob(Struct, frozen=True):
    """A job that the engine must get."""

    id: str
    attempt: int
    priority: int
    host: str


def storable(text: str) -> str:
    """The text without NUL and halves of surrogate pairs, which Postgres does not take."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def of_job(set_name: str, job: str) -> tuple[Any, ...]:
    """The conditions that choose one job."""
    return (jobs.c.set_name == set_name, jobs.c.id == job)


def job_row(row: Any, kept: Kept | None = None) -> JobRow:
    values = {**row._mapping, "state": JobState(row.state), "kept": kept}  # noqa: SLF001 - SQLAlchemy's public name
    return JobRow(**values)


def kept_row(row: Any) -> Kept:
    return Kept(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name


def limits_from(text: bytes) -> SetLimits:
    return msgspec.json.decode(text, type=SetLimits)


def new_row(set_name: str, position: int, job: Job, content: bytes, now: float) -> dict[str, Any]:
    """The row of a job that was just submitted."""
    state = JobState.WAITING if job.after else JobState.QUEUED
    return {
        "set_name": set_name,
        "id": job.id,
        "position": position,
        "content": content,
        "repository": job.repository,
        "after": json.dumps(job.after),
        "state": state.value,
        "attempt": 1,
        "tries": 0,
        "generation": 0,
        "not_before": 0.0,
        "is_queued": False,
        "is_cancelled": False,
        "turns": 0,
        "claimed_until": 0.0,
        "cost_usd": 0.0,
        "reserved_usd": 0.0,
        "created_at": now,
    }


def columns_of_end(
    now: float, exit_code: int, outcome: Outcome, reason: str, state: JobState = JobState.DONE
) -> dict[str, Any]:
    """The columns of a job that has ended."""
    return {
        "state": state.value,
        "exit_code": exit_code,
        "outcome": outcome.value,
        "reason": reason,
        "holder": None,
        "reserved_usd": 0.0,
        "ended_at": now,
    }


def columns_of_cancel(now: float) -> dict[str, Any]:
    """The columns of a cancelled job."""
    return columns_of_end(now, _CANCELLED_EXIT, Outcome.INTERRUPTED, "cancelled", JobState.CANCELLED)


def columns_of_next(attempt: int, not_before: float, reason: str) -> dict[str, Any]:
    """The columns of a job whose next attempt begins at `not_before`."""
    return {
        "state": JobState.QUEUED.value,
        "attempt": attempt + 1,
        "not_before": not_before,
        "is_queued": False,
        "claimed_until": 0.0,
        "holder": None,
        "reserved_usd": 0.0,
        "reason": reason,
    }
