"""The fleet's own facts in the store, as users and their commands see them: sets, jobs, attempts and logs. What workers do
is in `takeups`.

All methods raise the library's errors if the store is away, so call them with `database.patiently`. Each may be called
again if nobody knows whether it has succeeded.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from ralph.fleet.database import SCHEMA, make_engine, reading
from ralph.fleet.decisions import JobState
from ralph.fleet.job_content import content_of
from ralph.fleet.rows import (
    FINAL_STATES,
    AttemptRow,
    JobRow,
    Kept,
    LogLine,
    SetRow,
    Submitted,
    columns_of_cancel,
    job_row,
    kept_row,
    limits_from,
    new_row,
    of_job,
)
from ralph.fleet.schema import (
    attempts,
    checkpoints,
    executors,
    jobs,
    logs,
    metadata,
    sets,
    translated,
    undelivered,
)
from ralph.values.outcome import UsageError
from ralph.values.usage import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.fleet.database import Database
    from ralph.fleet.jobs import Job, SetLimits

_MOST_PARAMETERS = 10_000
"""Postgres takes 65,535 parameters in one statement."""
_LOCK_KEY = 0x72616C7068  # "ralph": taken while the tables are made


class FleetStore:
    """The store as one process sees it. Make it after a fork. Threads may share it."""

    def __init__(self, database: Database, engine: sa.Engine | None = None) -> None:
        self._database = database
        self._engine = translated(engine or make_engine(database), database)
        self._has_kept = False

    def create(self) -> None:
        """Makes the tables that are missing. Several processes may do so at once."""
        with self._engine.begin() as c:
            if self._database.is_postgres:
                c.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
                c.execute(sa.schema.CreateSchema(SCHEMA, if_not_exists=True))
            metadata.create_all(c)

    def close(self) -> None:
        self._engine.dispose()

    def submit(self, set_name: str, limits: SetLimits, wanted: Sequence[Job]) -> Submitted:
        """Adds the jobs that the set does not have. Raises UsageError if it has one of them with another content, or if
        another set works on the same branch or checkpoints; then nothing is added.
        """
        text = msgspec.json.encode(limits)
        with self._engine.begin() as c:
            now = self._now(c)
            self._lock_set(c, set_name)
            known_limits = c.execute(sa.select(sets.c.limits).where(sets.c.name == set_name)).scalar()
            if known_limits is None:
                c.execute(sets.insert().values(name=set_name, limits=text, created_at=now))
            elif known_limits != text:
                _refuse_other_partition(set_name, known_limits, limits)
                c.execute(sets.update().where(sets.c.name == set_name).values(limits=text))
            rows = c.execute(sa.select(jobs.c.id, jobs.c.content).where(jobs.c.set_name == set_name)).all()
            known = {row.id: row.content for row in rows}
            self._refuse_others(c, set_name, [job for job in wanted if job.id not in known])
            new = []
            for position, job in enumerate(wanted, len(known)):
                content = content_of(job)
                if job.id not in known:
                    new.append(new_row(set_name, position, job, content, now))
                elif known[job.id] != content:
                    raise UsageError(
                        f"the set {set_name} has a job {job.id} with another content: give the job another id, or "
                        "submit another set (--set NAME)"
                    )
            if new:
                c.execute(jobs.insert(), new)
        return Submitted(len(new), len(wanted) - len(new), known_limits not in {None, text})

    def cancel(self, set_name: str, ids: Sequence[str] | None) -> tuple[int, int]:
        """Cancels these jobs, or all of the set. Returns how many had not begun, and how many run: their workers stop
        them.
        """
        with self._engine.begin() as c:
            now = self._now(c)
            chosen = self._chosen(set_name, ids)
            idle = c.execute(
                jobs.update()
                .where(*chosen, jobs.c.state.in_([JobState.WAITING.value, JobState.QUEUED.value]))
                .values(**columns_of_cancel(now), is_cancelled=True)
            ).rowcount
            running = c.execute(
                jobs.update().where(*chosen, jobs.c.state == JobState.RUNNING.value).values(is_cancelled=True)
            ).rowcount
        return idle, running

    def retry(self, set_name: str, ids: Sequence[str] | None, *, discards: bool = False) -> int:
        """Lets jobs that have ended begin another attempt: those named, or all of the set that did not end with 0.
        Returns their number. Blocked jobs wait again. What a machine keeps of a job is delivered first. If `discards` is
        True, these jobs begin anew, also those that wait for that machine.
        """
        with self._engine.begin() as c:
            failed = [jobs.c.exit_code != 0] if ids is None else []
            ended = sa.and_(jobs.c.state.in_(FINAL_STATES), *failed)
            again = [*self._chosen(set_name, ids), sa.or_(ended, is_kept()) if discards else ended]
            values = {
                "attempt": jobs.c.attempt + 1,
                "tries": 0,
                "not_before": 0.0,
                "is_queued": False,
                "claimed_until": 0.0,
                "generation": jobs.c.generation + 1,
                "is_cancelled": False,
                "holder": None,
                "reserved_usd": 0.0,
                "ended_at": None,
                "exit_code": None,
                "outcome": None,
                "reason": None,
                "result": None,
            }
            waiting = sa.case((jobs.c.after == "[]", JobState.QUEUED.value), else_=JobState.WAITING.value)
            found = list(c.execute(sa.select(jobs.c.id).where(*again)).scalars())
            for at in range(0, len(found), _MOST_PARAMETERS):
                some = found[at : at + _MOST_PARAMETERS]
                theirs = (undelivered.c.set_name == set_name, undelivered.c.job.in_(some))
                c.execute(undelivered.update().where(*theirs).values(is_retried=True, tries=0))
                if discards:
                    c.execute(undelivered.update().where(*theirs).values(is_over=True))
                    saved = (checkpoints.c.set_name == set_name, checkpoints.c.job.in_(some))
                    c.execute(checkpoints.delete().where(*saved))
                these = self._chosen(set_name, some)
                c.execute(jobs.update().where(*these).values(**values, state=waiting))
            c.execute(
                jobs.update()
                .where(jobs.c.set_name == set_name, jobs.c.state == JobState.BLOCKED.value)
                .values(**{**values, "attempt": jobs.c.attempt}, state=JobState.WAITING.value)
            )
        return len(found)

    def exists(self) -> bool:
        """Whether the store has the fleet's tables. Makes nothing."""
        schema = SCHEMA if self._database.is_postgres else None
        with reading(self._engine) as c:
            return sa.inspect(c).has_table(jobs.name, schema=schema)

    def job_ids(self, set_name: str) -> list[str]:
        query = sa.select(jobs.c.id).where(jobs.c.set_name == set_name).order_by(jobs.c.position)
        with reading(self._engine) as c:
            return list(c.execute(query).scalars())

    def set_rows(self) -> list[SetRow]:
        with reading(self._engine) as c:
            found = c.execute(sa.select(sets).order_by(sets.c.created_at)).all()
            counted = c.execute(
                sa.select(
                    jobs.c.set_name,
                    jobs.c.state,
                    sa.func.count(),
                    sa.func.sum(jobs.c.cost_usd),
                    sa.func.count(sa.case((jobs.c.exit_code != 0, 1))),
                ).group_by(jobs.c.set_name, jobs.c.state)
            ).all()
        return [
            SetRow(
                name=row.name,
                limits=limits_from(row.limits),
                created_at=row.created_at,
                counts={JobState(state): count for name, state, count, *_ in counted if name == row.name},
                cost_usd=plain(sum(cost for name, _, _, cost, _ in counted if name == row.name)),
                failed=sum(
                    failed
                    for name, state, _, _, failed in counted
                    if name == row.name and state == JobState.DONE.value
                ),
            )
            for row in found
        ]

    def job_rows(self, set_name: str | None = None) -> list[JobRow]:
        query = sa.select(jobs).order_by(jobs.c.set_name, jobs.c.position)
        if set_name is not None:
            query = query.where(jobs.c.set_name == set_name)
        with reading(self._engine) as c:
            kept = self._kept(c, undelivered.c.set_name == set_name if set_name is not None else sa.true())
            return [job_row(row, kept.get((row.set_name, row.id))) for row in c.execute(query)]

    def job_row(self, set_name: str, job: str) -> JobRow | None:
        with reading(self._engine) as c:
            row = c.execute(sa.select(jobs).where(*of_job(set_name, job))).one_or_none()
            return None if row is None else job_row(row, self._kept_of(c, set_name, job))

    def _kept_of(self, c: sa.Connection, set_name: str, job: str) -> Kept | None:
        of_this = (undelivered.c.set_name == set_name, undelivered.c.job == job)
        return self._kept(c, *of_this).get((set_name, job))

    def _kept(self, c: sa.Connection, *which: Any) -> dict[tuple[str, str], Kept]:
        """The work that machines keep, by set and job. An older ralph has made no table for it, and a command that reads makes none."""
        schema = SCHEMA if self._database.is_postgres else None
        self._has_kept = self._has_kept or sa.inspect(c).has_table(undelivered.name, schema=schema)
        if not self._has_kept:
            return {}
        rows = c.execute(sa.select(undelivered).where(*which, undelivered.c.is_over.is_(False)))
        return {(row.set_name, row.job): kept_row(row) for row in rows}

    def attempt_rows(self, set_name: str, job: str | None = None) -> list[AttemptRow]:
        query = sa.select(attempts).where(attempts.c.set_name == set_name)
        if job is not None:
            query = query.where(attempts.c.job == job)
        with reading(self._engine) as c:
            rows = c.execute(query.order_by(attempts.c.job, attempts.c.generation))
            return [AttemptRow(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name

    def log_lines(self, set_name: str, job: str, after_number: int = 0) -> list[LogLine]:
        query = (
            sa.select(logs.c.number, logs.c.generation, logs.c.at, logs.c.text)
            .where(logs.c.set_name == set_name, logs.c.job == job, logs.c.number > after_number)
            .order_by(logs.c.number)
        )
        with reading(self._engine) as c:
            return [LogLine(*row) for row in c.execute(query)]

    def executor_rows(self) -> list[tuple[str, str, str, float]]:
        """Id, machine, set, and how many seconds ago it was seen, of each executor."""
        with reading(self._engine) as c:
            now = self._now(c)
            rows = c.execute(sa.select(executors).order_by(executors.c.id)).all()
        return [(row.id, row.machine, row.set_name, now - row.seen_at) for row in rows]

    def _now(self, c: sa.Connection) -> float:
        if not self._database.is_postgres:
            return time.time()
        return float(c.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def _lock_set(self, c: sa.Connection, set_name: str) -> None:
        """Makes transactions of one set follow each other. SQLite has one writer anyway."""
        if self._database.is_postgres:
            c.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext(:name), 1)"), {"name": set_name})

    def _chosen(self, set_name: str, ids: Sequence[str] | None) -> list[Any]:
        some = [] if ids is None else [jobs.c.id.in_(list(ids))]
        return [jobs.c.set_name == set_name, *some]

    def _refuse_others(self, c: sa.Connection, set_name: str, new: Sequence[Job]) -> None:
        """Two sets that work on one branch would push over each other's work."""
        if not new:
            return
        open_ids: dict[tuple[str, str], str] = {}
        repositories = sorted({job.repository for job in new})
        for at in range(0, len(repositories), _MOST_PARAMETERS):
            some = repositories[at : at + _MOST_PARAMETERS]
            rows = c.execute(
                sa.select(jobs.c.set_name, jobs.c.id, jobs.c.repository).where(
                    jobs.c.set_name != set_name,
                    jobs.c.state.notin_(FINAL_STATES),
                    jobs.c.repository.in_(some),
                )
            )
            open_ids |= {(row.repository, row.id): row.set_name for row in rows}
        for job in new:
            other = open_ids.get((job.repository, job.id))
            if other is not None:
                raise UsageError(
                    f"the set {other} has an open job {job.id} on the same repository, and both would use "
                    f"refs/ralph/{job.id}: give this job another id, or wait for that set"
                )


def is_kept() -> Any:
    """The condition for a job of which a machine keeps work, so that only this machine may take it up."""
    this = (undelivered.c.set_name == jobs.c.set_name, undelivered.c.job == jobs.c.id)
    return sa.exists().where(*this, undelivered.c.is_over.is_(False)).correlate(jobs)


def _refuse_other_partition(set_name: str, known: bytes, limits: SetLimits) -> None:
    if (limits_from(known).per_host is None) != (limits.per_host is None):
        raise UsageError(
            f"the set {set_name} was made {'with' if limits.per_host is None else 'without'} --per-host, and that "
            "cannot change: submit another set (--set NAME)"
        )
