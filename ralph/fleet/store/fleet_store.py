"""The fleet's own facts in the store, as users and their commands see them: sets, jobs, attempts and logs. What changes them
after the submission is in `claims`.

All methods raise the library's errors if the store is away, so call them with `database.patiently`. Each may be called
again if nobody knows whether it has succeeded.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict

from ralph.fleet.decisions import JobState
from ralph.fleet.jobs import SetLimits, content_of
from ralph.fleet.store.database import SCHEMA, make_engine, reading
from ralph.fleet.store.schema import (
    FINAL_STATES,
    AttemptRow,
    JobRow,
    KeptRow,
    attempts,
    checkpoints,
    executors,
    job_row,
    jobs,
    kept_row,
    limits_from,
    logs,
    metadata,
    of_job,
    refuse_names,
    sets,
    state_from,
    translated,
    undelivered,
)
from ralph.values.outcome import UsageError
from ralph.values.usage import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.fleet.jobs import Job
    from ralph.fleet.store.database import Database

MOST_PARAMETERS = 10_000
"""Postgres takes 65,535 parameters in one statement."""
_LOCK_KEY = 0x72616C7068  # "ralph": taken while the tables are made


class SubmitResult(Struct, frozen=True):
    new: int
    known: int
    """Jobs that the set had already, with the same content."""
    has_new_limits: bool


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


class FleetStore:
    """The store as one process sees it. Make it after a fork. Threads may share it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = translated(make_engine(database), database)
        self._has_kept = False

    def close(self) -> None:
        self._engine.dispose()

    def reading(self) -> sa.Connection:
        return reading(self._engine)

    @contextmanager
    def writing(self, locked: str | None = None) -> Iterator[sa.Connection]:
        """A transaction. Those that name the same set follow each other. SQLite has one writer anyway."""
        with self._engine.begin() as c:
            if self._database.is_postgres and locked is not None:
                c.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext(:name), 1)"), {"name": locked})
            yield c

    def now(self, c: sa.Connection) -> float:
        """Seconds since 1970 by the clock of the store."""
        if not self._database.is_postgres:
            return time.time()
        return float(c.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def _has_table(self, c: sa.Connection, table: sa.Table) -> bool:
        return sa.inspect(c).has_table(table.name, schema=SCHEMA if self._database.is_postgres else None)

    def create(self) -> None:
        """Makes the tables that are missing. Several processes may do so at once."""
        with self._engine.begin() as c:
            if self._database.is_postgres:
                c.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
                c.execute(sa.schema.CreateSchema(SCHEMA, if_not_exists=True))
            metadata.create_all(c)

    def exists(self) -> bool:
        """Whether the store has the fleet's tables. Makes nothing."""
        with self.reading() as c:
            return self._has_table(c, jobs)

    def submit(self, set_name: str, limits: SetLimits, wanted: Sequence[Job]) -> SubmitResult:
        """Adds the jobs that the set does not have. Raises UsageError if it has one of them with another content, or if
        another set works on the same branch or checkpoints; then nothing is added.
        """
        text = msgspec.json.encode(limits)
        with self.writing(set_name) as c:
            now = self.now(c)
            known_limits = c.execute(sa.select(sets.c.limits).where(sets.c.name == set_name)).scalar()
            if known_limits is None:
                c.execute(sets.insert().values(name=set_name, limits=text, created_at=now))
            elif known_limits != text:
                if (limits_from(known_limits).per_host is None) != (limits.per_host is None):
                    raise UsageError(
                        f"the set {set_name} was made {'with' if limits.per_host is None else 'without'} --per-host, and that "
                        "cannot change: submit another set (--set NAME)"
                    )
                c.execute(sets.update().where(sets.c.name == set_name).values(limits=text))
            rows = c.execute(sa.select(jobs.c.id, jobs.c.content).where(jobs.c.set_name == set_name)).all()
            known = {row.id: row.content for row in rows}
            _refuse_others(c, set_name, [job for job in wanted if job.id not in known])
            new = []
            for position, job in enumerate(wanted, len(known)):
                content = content_of(job)
                if job.id not in known:
                    new.append(_new_row(set_name, position, job, content, now))
                elif known[job.id] != content:
                    raise UsageError(
                        f"the set {set_name} has a job {job.id} with another content: give the job another id, or "
                        "submit another set (--set NAME)"
                    )
            if new:
                c.execute(jobs.insert(), new)
        return SubmitResult(len(new), len(wanted) - len(new), known_limits not in {None, text})

    def job_ids(self, set_name: str) -> list[str]:
        query = sa.select(jobs.c.id).where(jobs.c.set_name == set_name).order_by(jobs.c.position)
        with self.reading() as c:
            return list(c.execute(query).scalars())

    def set_rows(self) -> list[SetRow]:
        failed, cost = sa.func.count(sa.case((jobs.c.exit_code != 0, 1))), sa.func.sum(jobs.c.cost_usd)
        by_state = sa.select(jobs.c.set_name, jobs.c.state, sa.func.count(), cost, failed)
        with self.reading() as c:
            found = c.execute(sa.select(sets).order_by(sets.c.created_at)).all()
            counted = c.execute(by_state.group_by(jobs.c.set_name, jobs.c.state)).all()
        rows = []
        refuse_names(*(row.name for row in found))
        for row in found:
            ours = [one for name, *one in counted if name == row.name]
            rows.append(
                SetRow(
                    name=row.name,
                    limits=limits_from(row.limits),
                    created_at=row.created_at,
                    counts={state_from(state): count for state, count, _, _ in ours},
                    cost_usd=plain(sum(cost for _, _, cost, _ in ours)),
                    failed=sum(failed for state, _, _, failed in ours if state == JobState.DONE.value),
                )
            )
        return rows

    def job_rows(self, set_name: str) -> list[JobRow]:
        query = sa.select(jobs).where(jobs.c.set_name == set_name).order_by(jobs.c.position)
        with self.reading() as c:
            kept = self._kept(c, undelivered.c.set_name == set_name)
            return [job_row(row, kept.get((row.set_name, row.id))) for row in c.execute(query)]

    def job_row(self, set_name: str, job: str) -> JobRow | None:
        with self.reading() as c:
            row = c.execute(sa.select(jobs).where(*of_job(set_name, job))).one_or_none()
            return None if row is None else job_row(row, self._kept_of(c, set_name, job))

    def _kept_of(self, c: sa.Connection, set_name: str, job: str) -> KeptRow | None:
        return self._kept(c, *of_job(set_name, job, undelivered)).get((set_name, job))

    def _kept(self, c: sa.Connection, *which: Any) -> dict[tuple[str, str], KeptRow]:
        """The work that machines keep, by set and job. An older ralph has made no table for it, and a command that reads makes none."""
        self._has_kept = self._has_kept or self._has_table(c, undelivered)
        if not self._has_kept:
            return {}
        rows = c.execute(sa.select(undelivered).where(*which, undelivered.c.is_over.is_(False)))
        return {(row.set_name, row.job): kept_row(row) for row in rows}

    def attempt_rows(self, set_name: str, job: str | None = None) -> list[AttemptRow]:
        ours = (attempts.c.set_name == set_name,) if job is None else of_job(set_name, job, attempts)
        query = sa.select(attempts).where(*ours).order_by(attempts.c.job, attempts.c.generation)
        with self.reading() as c:
            return [AttemptRow(**row._mapping) for row in c.execute(query)]  # noqa: SLF001 - SQLAlchemy's public name

    def log_lines(self, set_name: str, job: str, after_number: int = 0) -> list[LogLine]:
        query = sa.select(logs.c.number, logs.c.generation, logs.c.at, logs.c.text).order_by(logs.c.number)
        query = query.where(*of_job(set_name, job, logs), logs.c.number > after_number)
        with self.reading() as c:
            return [LogLine(*row) for row in c.execute(query)]

    def checkpoint(self, set_name: str, job: str) -> StoredCheckpoint | None:
        query = sa.select(checkpoints).where(*of_job(set_name, job, checkpoints))
        with self.reading() as c:
            row = c.execute(query).one_or_none()
        return None if row is None else StoredCheckpoint(row.ref, row.commit, row.state)

    def executor_rows(self) -> list[tuple[str, str, str, float]]:
        """Id, machine, set, and how many seconds ago it was seen, of each executor."""
        with self.reading() as c:
            now = self.now(c)
            rows = c.execute(sa.select(executors).order_by(executors.c.id)).all()
        return [(row.id, row.machine, row.set_name, now - row.seen_at) for row in rows]


def _new_row(set_name: str, position: int, job: Job, content: bytes, now: float) -> dict[str, Any]:
    row = JobRow(
        set_name=set_name,
        id=job.id,
        position=position,
        content=content,
        repository=job.repository,
        after=json.dumps(job.after),
        state=JobState.WAITING if job.after else JobState.QUEUED,
        created_at=now,
    )
    values = {**asdict(row), "state": row.state.value}
    del values["kept"]
    return values


def _refuse_others(c: sa.Connection, set_name: str, new: Sequence[Job]) -> None:
    """Raises UsageError if another set has an open job on the same branch: they would push over each other's work."""
    open_ids: dict[tuple[str, str], str] = {}
    repositories = sorted({job.repository for job in new})
    is_open = (jobs.c.set_name != set_name, jobs.c.state.notin_(FINAL_STATES))
    for at in range(0, len(repositories), MOST_PARAMETERS):
        some = jobs.c.repository.in_(repositories[at : at + MOST_PARAMETERS])
        rows = c.execute(sa.select(jobs.c.set_name, jobs.c.id, jobs.c.repository).where(*is_open, some))
        open_ids |= {(row.repository, row.id): row.set_name for row in rows}
    for job in new:
        if (other := open_ids.get((job.repository, job.id))) is not None:
            raise UsageError(
                f"the set {other} has an open job {job.id} on the same repository, and both may push to one branch: "
                "give this job another id, or wait for that set"
            )
