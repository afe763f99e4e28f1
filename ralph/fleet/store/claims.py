"""Who works on which job: the claims of workers, which workers live, and what becomes of the claims of those that are gone.

dbos 3.4.0 decides what it can, and ralph the rest:

| what | decided by | why not by the engine |
| --- | --- | --- |
| which slot begins which due job, and the order | DBOS: one queue for each set, with priorities | |
| jobs at once, of a set and for a git host; starts in a time | DBOS: the limits of the queue | |
| that an attempt outlives its process | DBOS: `resume_workflow` runs it elsewhere | |
| when the next attempt may begin | `not_before`, by the store's clock | `delay_seconds` is added to the clock of the process that enqueues |
| whether there is one, and after which wait | `decisions.after_end` | it retries steps, in one process; the count of a resumed workflow begins anew |
| which executors are gone | `locks`, `take_over` | it recovers its own executor at the start; for others, only its hosted service does |
| whether a worker that was stopped may still write | the generation of a claim, in each write | it has no fence: a workflow of a process that wakes continues |
| keys that are rate limited, and the budget | `holds`, `reserved_usd` | it counts starts, and knows neither keys nor dollars |
| that a job waits for others | `release_waiting` | a workflow that waits takes a slot |
| that a running job ends when it is cancelled | `is_cancelled`, which its worker reads | its cancel acts at the next step; a step's result would be false on another machine, so there are none |
| that only one machine delivers what it keeps | `undelivered` | a queue has no machines |
| what it has lost itself | `reconcile` | not seen in practice, and would be a lost job |
"""

from __future__ import annotations

import enum
import json
import time
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict, replace

from ralph.fleet.decisions import LEAST_GRANT_USD, NOTHING_USD, Final, JobState, grant_usd, outcome_of
from ralph.fleet.jobs import SetLimits, content_of
from ralph.fleet.store.database import SCHEMA, make_engine, reading
from ralph.fleet.store.schema import (
    FINAL_STATES,
    AttemptRow,
    JobRow,
    KeptRow,
    SetRow,
    StoredCheckpoint,
    attempts,
    checkpoints,
    executors,
    holds,
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
    storable,
    undelivered,
)
from ralph.values.outcome import Outcome, UsageError
from ralph.values.usage import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ralph.fleet.engine import Engine
    from ralph.fleet.jobs import Job
    from ralph.fleet.store.database import Database
    from ralph.fleet.store.locks import ExecutorLock

MOST_PARAMETERS = 10_000
"""Postgres takes 65,535 parameters in one statement."""
_LOCK_KEY = 0x72616C7068  # "ralph": taken while the tables are made
MOST_COUNTED = 1000
MOST_LOG_BYTES = 4 * 1024 * 1024
"""The log of one claim is not longer than this. The rest is in the session's journal."""
MOST_CLAIMED = 50
"""A worker gives so many jobs to the engine at a time, about a fifth of a second."""
CLAIM_S = 30.0
"""If a worker dies while it gives jobs to the engine, another one does so after this time."""
SEEN_WITHIN_S = 30.0
FORGOTTEN_S = 600.0
"""An executor that was not seen for so long is not listed any more."""
_RESERVED_S = 15.0
"""A job waits so long before it looks again whether running jobs have given back what they had reserved."""
_CANCELLED_EXIT = 143
"""A cancelled job ends as a process that got a SIGTERM."""
_CANCELLED = "cancelled"

# --- The states of a job

_UNENDED = (JobState.QUEUED, JobState.RUNNING)


class Move(enum.Enum):
    """A change of a job's state: from which states, and to which one. Nothing else changes it after `submit`."""

    RELEASE = (JobState.WAITING,), JobState.QUEUED
    """All that `after` names have ended with 0."""
    BLOCK = (JobState.WAITING,), JobState.BLOCKED
    CLAIM = _UNENDED, JobState.RUNNING
    """A job that runs is claimed from a worker that is gone."""
    PLAN = _UNENDED, JobState.QUEUED
    """For its next attempt."""
    END = _UNENDED, JobState.DONE
    KEEP = _UNENDED, JobState.UNDELIVERED
    """It ends, and a machine keeps its work."""
    CANCEL = (JobState.WAITING, *_UNENDED), JobState.CANCELLED
    RETRY = tuple(JobState), JobState.QUEUED
    """Ended jobs, and with `--discard` those that wait for the machine that keeps their work."""
    WAIT_AGAIN = tuple(JobState), JobState.WAITING
    """As RETRY, for jobs with `after`, and for those that were blocked."""


def moved(move: Move, set_name: str, *which: Any, **columns: Any) -> sa.Update:
    """The statement that makes this move of jobs of a set, if they are in one of its states."""
    sources, target = move.value
    may_move = (jobs.c.set_name == set_name, *which, jobs.c.state.in_([state.value for state in sources]))
    return jobs.update().where(*may_move).values(**columns, state=target.value)


def _ended(now: float, exit_code: int, reason: str) -> dict[str, Any]:
    outcome = outcome_of(exit_code).value
    end = {"exit_code": exit_code, "outcome": outcome, "reason": reason, "ended_at": now}
    return {**end, "holder": None, "reserved_usd": 0.0}


def _cancelled(reason: str) -> str:
    """The reason of a cancelled job, with why its claim ended, which may say where its work is."""
    if reason.startswith(_CANCELLED):
        return reason
    return f"{_CANCELLED}; {reason}" if reason else _CANCELLED


def _planned(attempt: int, not_before: float, reason: str | None) -> dict[str, Any]:
    free = {"is_queued": False, "claimed_until": 0.0, "holder": None, "reserved_usd": 0.0}
    return {**free, "attempt": attempt + 1, "not_before": not_before, "reason": reason}


# --- The values of claims


class LostError(Exception):
    """Another worker has the job."""


class OpenSet(Struct, frozen=True, kw_only=True):
    """A set with jobs that have not ended. Counts are exact up to `MOST_COUNTED`."""

    name: str
    open_jobs: int
    due_jobs: int
    running_jobs: int
    concurrency: int | None
    workers: int
    """Slots of all machines that work for the set."""

    @property
    def useful_slots(self) -> int:
        """The number of slots, of all machines, that have something to do."""
        return min(self.due_jobs + self.running_jobs, self.concurrency or MOST_COUNTED)


class Claim(Struct, frozen=True, kw_only=True):
    """A job that this executor works on from now on."""

    row: JobRow
    """The job as it was when the claim began, with the generation of the claim, and with this try among its tries."""
    most_tries: int
    granted_usd: float | None
    """The part of the set's budget that may be spent until the worker asks again. None if the set has no budget."""
    ending: Final | None = None
    """The job's process must not start again, and this is why. The work so far is delivered."""
    kept: KeptRow | None = None
    """The work that this machine keeps of the job. The claim delivers it and does nothing else."""

    @property
    def name(self) -> str:
        return f"{self.row.set_name}/{self.row.id}"

    @property
    def own_commits(self) -> set[str | None]:
        """Commits that earlier claims of the job have pushed, or were about to push."""
        return {self.row.commit, self.row.planned} - {None}


class SubmitResult(Struct, frozen=True):
    new: int
    known: int
    """Jobs that the set had already, with the same content."""
    has_new_limits: bool


class Adoption(enum.Enum):
    """The state, in the store, of the work that a killed or lost claim left."""

    OURS = "ours"
    """This machine keeps it, and nobody has claimed the job since."""
    TAKEN_OVER = "taken over"
    """Another worker has claimed the job since."""
    TOLD = "told"
    """That claim has told its end, and kept nothing."""
    UNKNOWN = "unknown"
    """It is of no claim of this store."""


# --- The store of workers


class Claims:
    """The store as one process sees it. Make it after a fork. Threads may share it.

    All methods raise the library's errors if the store is away, so call them with `database.patiently`. Each may be called
    again if nobody knows whether it has succeeded.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = make_engine(database)
        if database.is_postgres:  # SQLite has no schemas: there the tables lie beside those of dbos
            self._engine = self._engine.execution_options(schema_translate_map={None: SCHEMA})

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

    def create(self) -> None:
        """Makes the tables that are missing. Several processes may do so at once."""
        with self._engine.begin() as c:
            if self._database.is_postgres:
                c.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
                c.execute(sa.schema.CreateSchema(SCHEMA, if_not_exists=True))
            metadata.create_all(c)

    def exists(self) -> bool:
        """Whether the store has the fleet's tables. Makes nothing."""
        schema = SCHEMA if self._database.is_postgres else None
        with self.reading() as c:
            return sa.inspect(c).has_table(jobs.name, schema=schema)

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
        """The work of jobs that is still kept on a machine, by set and job."""
        rows = c.execute(sa.select(undelivered).where(*which, undelivered.c.is_over.is_(False)))
        return {(row.set_name, row.job): kept_row(row) for row in rows}

    def attempt_rows(self, set_name: str, job: str | None = None) -> list[AttemptRow]:
        ours = (attempts.c.set_name == set_name,) if job is None else of_job(set_name, job, attempts)
        query = sa.select(attempts).where(*ours).order_by(attempts.c.job, attempts.c.generation)
        with self.reading() as c:
            return [AttemptRow(**row._mapping) for row in c.execute(query)]  # noqa: SLF001 - SQLAlchemy's public name

    def log_lines(self, set_name: str, job: str, after_number: int = 0) -> list[tuple[int, str]]:
        """The pieces of a job's log with a number above `after_number`: the number and the text of each."""
        query = sa.select(logs.c.number, logs.c.text).order_by(logs.c.number)
        query = query.where(*of_job(set_name, job, logs), logs.c.number > after_number)
        with self.reading() as c:
            return [(row.number, row.text) for row in c.execute(query)]

    def checkpoint(self, set_name: str, job: str) -> StoredCheckpoint | None:
        query = sa.select(checkpoints).where(*of_job(set_name, job, checkpoints))
        with self.reading() as c:
            row = c.execute(query).one_or_none()
        return None if row is None else StoredCheckpoint(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name

    def executor_rows(self) -> list[tuple[str, str, str, float]]:
        """Id, machine, set, and how many seconds ago it was seen, of each executor."""
        with self.reading() as c:
            now = self.now(c)
            rows = c.execute(sa.select(executors).order_by(executors.c.id)).all()
        return [(row.id, row.machine, row.set_name, now - row.seen_at) for row in rows]

    # --- changes by users

    def cancel(self, set_name: str, ids: Sequence[str] | None) -> int:
        """Cancels these jobs, or all of the set. Returns how many had not begun. The workers of the others stop them."""
        some = [] if ids is None else [jobs.c.id.in_(list(ids))]
        runs = jobs.c.state == JobState.RUNNING.value
        with self.writing() as c:
            end = _ended(self.now(c), _CANCELLED_EXIT, _CANCELLED)
            idle = c.execute(moved(Move.CANCEL, set_name, *some, ~runs, **end, is_cancelled=True)).rowcount
            c.execute(jobs.update().where(jobs.c.set_name == set_name, *some, runs).values(is_cancelled=True))
            return idle

    def retry(self, set_name: str, ids: Sequence[str] | None, *, discards: bool = False) -> int:
        """Lets jobs that have ended begin another attempt: those named, or all of the set that did not end with 0.
        Returns their number. Blocked jobs wait again. What a machine keeps of a job is delivered first. If `discards` is
        True, these jobs begin anew, also those that wait for that machine.
        """
        named = [jobs.c.exit_code != 0] if ids is None else []
        ended = sa.and_(jobs.c.state.in_(FINAL_STATES), *named)
        again = sa.or_(ended, is_kept()) if discards else ended
        some = [] if ids is None else [jobs.c.id.in_(list(ids))]
        lacks = dict.fromkeys(("ended_at", "exit_code", "outcome", "result"))
        anew = {**_planned(0, 0.0, None), **lacks, "tries": 0, "is_cancelled": False}
        anew |= {"attempt": jobs.c.attempt + 1, "generation": jobs.c.generation + 1}
        with self.writing() as c:
            chosen = sa.select(jobs.c.id).where(jobs.c.set_name == set_name, *some, again)
            found = list(c.execute(chosen).scalars())
            for at in range(0, len(found), MOST_PARAMETERS):
                these = found[at : at + MOST_PARAMETERS]
                theirs = (undelivered.c.set_name == set_name, undelivered.c.job.in_(these))
                c.execute(undelivered.update().where(*theirs).values(is_retried=True, tries=0))
                if discards:
                    c.execute(undelivered.update().where(*theirs).values(is_over=True))
                    saved = (checkpoints.c.set_name == set_name, checkpoints.c.job.in_(these))
                    c.execute(checkpoints.delete().where(*saved))
                waits = (jobs.c.id.in_(these), jobs.c.after != "[]")
                c.execute(moved(Move.WAIT_AGAIN, set_name, *waits, **anew))
                c.execute(moved(Move.RETRY, set_name, jobs.c.id.in_(these), jobs.c.after == "[]", **anew))
            blocked = jobs.c.state == JobState.BLOCKED.value
            c.execute(moved(Move.WAIT_AGAIN, set_name, blocked, **{**anew, "attempt": jobs.c.attempt}))
        return len(found)

    def release_waiting(self, set_name: str) -> None:
        """Jobs that wait for others become queued if those have ended with 0, and blocked if one has not."""
        of_set = jobs.c.set_name == set_name
        with self.reading() as c:
            waits = jobs.c.state == JobState.WAITING.value
            waiting = c.execute(sa.select(jobs.c.id, jobs.c.after).where(of_set, waits)).all()
            if not waiting:
                return
            ended = sa.select(jobs.c.id, jobs.c.exit_code).where(of_set, jobs.c.state.in_(FINAL_STATES))
            codes = {row.id: row.exit_code for row in c.execute(ended)}
        statements = []
        for row in waiting:
            before = json.loads(row.after)
            if (failed := next((name for name in before if codes.get(name)), None)) is not None:
                statements.append((row.id, failed))
            elif all(codes.get(name) == 0 for name in before):
                statements.append((row.id, None))
        if not statements:
            return
        with self.writing() as c:
            now = self.now(c)
            for job, failed in statements:
                # Another worker may have released the job meanwhile, so that it has even ended: then it does not move.
                if failed is None:
                    c.execute(moved(Move.RELEASE, set_name, jobs.c.id == job))
                else:
                    reason = f"{failed}, which must come before, ended with exit {codes[failed]}"
                    end = _ended(now, codes[failed], reason)
                    c.execute(moved(Move.BLOCK, set_name, jobs.c.id == job, **end))

    # --- what a worker looks at

    def open_sets(self) -> list[OpenSet]:
        """The sets with jobs that have not ended."""
        with self.reading() as c:
            now = self.now(c)
            seen = sa.select(executors.c.set_name, sa.func.count())
            seen = seen.where(executors.c.seen_at > now - SEEN_WITHIN_S).group_by(executors.c.set_name)
            found_workers = c.execute(seen).all()
            workers: dict[str, int] = dict(found_workers)
            states = {state: jobs.c.state == state.value for state in JobState}
            found = [
                OpenSet(
                    name=row.name,
                    open_jobs=_count(c, row.name, jobs.c.state.notin_(FINAL_STATES)),
                    due_jobs=_count(
                        c, row.name, states[JobState.QUEUED], jobs.c.not_before <= now, ~is_kept()
                    ),
                    running_jobs=_count(c, row.name, states[JobState.RUNNING], ~is_kept()),
                    concurrency=limits_from(row.limits).concurrency,
                    workers=workers.get(row.name, 0),
                )
                for row in c.execute(sa.select(sets).order_by(sets.c.created_at)).all()
            ]
        return [one for one in found if one.open_jobs]

    def exit_codes(self) -> set[int]:
        query = sa.select(jobs.c.exit_code).where(jobs.c.exit_code.is_not(None)).distinct()
        with self.reading() as c:
            return set(c.execute(query).scalars())

    def limits(self, set_name: str) -> SetLimits:
        with self.reading() as c:
            return _limits(c, set_name)

    def due_jobs(self, set_name: str) -> list[JobRow]:
        """Chooses jobs that the engine must get, for `CLAIM_S`. Looks first without a lock, because mostly there is nothing."""
        now: Any = sa.bindparam("now")
        due = (
            *(jobs.c.set_name == set_name, jobs.c.state == JobState.QUEUED.value, jobs.c.not_before <= now),
            *(jobs.c.is_queued.is_(False), jobs.c.claimed_until < now, ~is_kept()),
        )
        with self.reading() as c:
            if not c.execute(sa.select(sa.exists().where(*due)), {"now": self.now(c)}).scalar():
                return []
        wanted = sa.select(jobs).where(*due)
        wanted = wanted.order_by(jobs.c.position).limit(MOST_CLAIMED).with_for_update(skip_locked=True)
        with self.writing() as c:
            at = self.now(c)
            rows = [job_row(row) for row in c.execute(wanted, {"now": at})]
            chosen = (jobs.c.set_name == set_name, jobs.c.id.in_([row.id for row in rows]))
            c.execute(jobs.update().where(*chosen).values(claimed_until=at + CLAIM_S))
        return rows

    def mark_queued(self, set_name: str, due: Iterable[JobRow]) -> None:
        """Records that the engine has the workflows of these attempts. One statement, because a claim of one of them
        waits meanwhile, and all other claims of the set wait for that one.
        """
        current = sa.tuple_(jobs.c.id, jobs.c.attempt).in_([(job.id, job.attempt) for job in due])
        queued = jobs.update().where(jobs.c.set_name == set_name, current)
        with self.writing() as c:
            c.execute(queued.values(is_queued=True, claimed_until=0.0))

    # --- claims

    def claim(
        self, set_name: str, job: str, attempt: int, *, executor: str, machine: str, credential: str
    ) -> Claim | str | None:
        """Begins or continues an attempt. None if the workflow is not the job's current one, or the job has ended. A text if it
        cannot begin now: this is why, and its next attempt has been planned. `credential` is the fingerprint of the key that this worker would use.
        """
        with self.writing(set_name) as c:
            now = self.now(c)
            row = _locked_row(c, set_name, job)
            if row is None or JobState(row.state) not in _UNENDED or row.attempt != attempt:
                return None
            limits = _limits(c, set_name)
            if row.state == JobState.RUNNING.value and row.holder == executor:
                # The answer of the first call was lost, or the engine lost the workflow in an outage.
                granted = None if limits.max_budget_usd is None else row.reserved_usd
                return Claim(row=job_row(row), most_tries=limits.max_attempts, granted_usd=granted)
            kept = self._kept_of(c, set_name, job)
            if kept is not None:  # a worker was killed while it kept the work
                reason = f"its work is on {kept.machine}: {kept.path}"
                is_delivering = row.generation > kept.generation
                return reason if is_delivering else _put_off(c, row, now, reason)
            if _is_over(c, row, now):
                return None
            granted = _granted(c, set_name, job, limits)
            obstacle = _obstacle(c, row, limits, granted=granted, credential=credential, now=now)
            if isinstance(obstacle, str):
                return obstacle
            if obstacle is not None and (row.started_at is None or row.tries > limits.max_attempts):
                # Nothing is there to deliver, or delivering has cost a worker too.
                end = _ended(now, obstacle.exit_code, obstacle.reason)
                c.execute(moved(Move.END, set_name, jobs.c.id == job, **end, generation=row.generation + 1))
                return None
            begun = _begin(c, row, now, executor, machine, tries=row.tries + 1, reserved_usd=granted or 0.0)
        return Claim(row=begun, most_tries=limits.max_attempts, granted_usd=granted, ending=obstacle)

    def claim_kept(self, kept: KeptRow, seen: JobRow, *, executor: str, machine: str) -> Claim | None:
        """Begins to deliver what this machine keeps. `seen` is the job as `kept_at` returned it. None if it has changed."""
        with self.writing() as c:
            now = self.now(c)
            row = _locked_row(c, kept.set_name, kept.job)
            if row is None or (row.state, row.generation) != (seen.state.value, seen.generation):
                return None
            if _is_over(c, row, now):
                return None
            begun = _begin(c, row, now, executor, machine, tries=row.tries)
            limits = _limits(c, kept.set_name)
        return Claim(row=begun, most_tries=limits.max_attempts, granted_usd=None, kept=kept)

    def begin_again(self, set_name: str, job: str, attempt: int, generation: int, reason: str) -> None:
        """Plans the next attempt of a job that nobody claims, or whose workflow the engine has lost."""
        with self.writing() as c:
            row = _locked_row(c, set_name, job)
            is_open = row is not None and JobState(row.state) in _UNENDED
            if is_open and (row.attempt, row.generation) == (attempt, generation):
                _close_lost_attempts(c, row, self.now(c))
                _put_off(c, row, 0.0, reason)

    def hold(self, credential: str, for_s: float, reason: str) -> None:
        """No job begins with this key for `for_s` seconds."""
        with self.writing(f"hold {credential}") as c:
            until, this = self.now(c) + for_s, holds.c.credential == credential
            known = c.execute(sa.select(holds.c.until).where(this)).scalar()
            if known is None:
                c.execute(holds.insert().values(credential=credential, until=until, reason=storable(reason)))
            elif until > known:
                c.execute(holds.update().where(this).values(until=until, reason=reason))

    # --- what this machine keeps

    def kept_at(self, place: str) -> list[tuple[KeptRow, JobRow, bool]]:
        """The work that the state directory `place` keeps, its job, and whether that job's time has come."""
        here = undelivered.c.place == place
        ids = sa.select(undelivered.c.set_name, undelivered.c.job).where(here)
        with self.reading() as c:
            now = self.now(c)
            kept = [kept_row(row) for row in c.execute(sa.select(undelivered).where(here))]
            rows = c.execute(sa.select(jobs).where(sa.tuple_(jobs.c.set_name, jobs.c.id).in_(ids)))
            found = {(row.set_name, row.id): job_row(row) for row in rows}
        known = [(one, found.get((one.set_name, one.job))) for one in kept]
        return [(one, row, row.not_before <= now) for one, row in known if row is not None]

    def adopt(self, kept: KeptRow, executor: str) -> Adoption:
        """Records what a lost claim of this executor left: as the job's, if nobody has claimed it since, else with that claim."""
        left = (
            *of_job(kept.set_name, kept.job, attempts),
            *(attempts.c.generation == kept.generation, attempts.c.executor == executor),
        )
        with self.writing() as c:
            row = _locked_row(c, kept.set_name, kept.job)
            here = (*_is_kept_as(kept), undelivered.c.place == kept.place)
            known = c.execute(sa.select(undelivered.c.path).where(*here)).scalar() or ""
            if f"{kept.generation}.{executor}" in PurePath(known).parts:
                return Adoption.OURS
            if row is not None and (row.generation, row.holder) == (kept.generation, executor):
                _record_kept(c, kept)
                return Adoption.OURS
            attempt = c.execute(sa.select(attempts.c.exit_code).where(*left)).one_or_none()
            if attempt is None or attempt.exit_code is not None:
                return Adoption.UNKNOWN if attempt is None else Adoption.TOLD
            reason = f"its worker was lost; what it had made is kept on {kept.machine}: {kept.path}"
            c.execute(attempts.update().where(*left).values(reason=storable(reason)))
            return Adoption.TAKEN_OVER

    def forget(self, kept: KeptRow) -> None:
        """The machine has nothing of this any more."""
        with self.writing() as c:
            c.execute(undelivered.delete().where(*_is_kept_as(kept)))

    # --- which workers live

    def seen(self, executor: str, machine: str, set_name: str) -> None:
        """Records that an executor works for a set."""
        with self.writing() as c:
            now, this = self.now(c), executors.c.id == executor
            c.execute(executors.delete().where(executors.c.seen_at < now - FORGOTTEN_S))
            if not c.execute(executors.update().where(this).values(seen_at=now)).rowcount:
                row = {"id": executor, "machine": machine, "set_name": set_name, "seen_at": now}
                c.execute(executors.insert().values(row))

    def executor_gone(self, executor: str) -> None:
        with self.writing() as c:
            c.execute(executors.delete().where(executors.c.id == executor))

    def unended(self, set_name: str) -> list[tuple[str, int, int]]:
        """Id, attempt and generation of the jobs whose workflow the engine should have, queued or running."""
        runs, waits = jobs.c.state == JobState.RUNNING.value, jobs.c.state == JobState.QUEUED.value
        query = sa.select(jobs.c.id, jobs.c.attempt, jobs.c.generation).where(jobs.c.set_name == set_name)
        query = query.where(~is_kept()).order_by(jobs.c.position).limit(MOST_COUNTED)
        with self.reading() as c:
            is_old = jobs.c.not_before < self.now(c) - CLAIM_S
            begun = sa.or_(runs, sa.and_(waits, jobs.c.is_queued.is_(True), is_old))
            return [(row.id, row.attempt, row.generation) for row in c.execute(query.where(begun))]


class ClaimWriter:
    """The writes of the worker that holds a claim. If another worker has the job since, each raises LostError and changes
    nothing. Each may be called again.
    """

    def __init__(self, claims: Claims, claim: Claim) -> None:
        self._claims = claims
        self.claim = claim
        self._set, self._job, self._generation = claim.row.set_name, claim.row.id, claim.row.generation
        self._of_job = of_job(self._set, self._job)
        self._key = {"set_name": self._set, "job": self._job, "generation": self._generation}

    @contextmanager
    def _held(self) -> Iterator[tuple[sa.Connection, Any]]:
        """A transaction, and the job's row, which nobody else changes in it."""
        with self._claims.writing() as c:
            row = _locked_row(c, self._set, self._job)
            if row is None or row.generation != self._generation:
                raise LostError
            yield c, row

    def record(self, **columns: str) -> None:
        """Records commits: `base`, at which the job began; `planned`, which is about to be pushed, so that the next worker
        knows it as the job's own; `commit`, which is at the job's branch.
        """
        with self._held() as (c, _):
            c.execute(jobs.update().where(*self._of_job).values(**columns))

    def is_cancelled(self) -> bool:
        """Whether a user has cancelled the job. Waits for no writer."""
        with self._claims.reading() as c:
            asked = sa.select(jobs.c.generation, jobs.c.is_cancelled).where(*self._of_job)
            found = c.execute(asked).one_or_none()
        if found is None or found.generation != self._generation:
            raise LostError
        return bool(found.is_cancelled)

    def spend(self, cost_usd: float, turns: int) -> None:
        """Records what the whole job has spent until now. The reservation shrinks by what is new."""
        with self._held() as (c, row):
            more = max(cost_usd - row.cost_usd, 0.0)
            values = {"cost_usd": row.cost_usd + more, "turns": max(turns, row.turns)}
            values["reserved_usd"] = max(row.reserved_usd - more, 0.0)
            c.execute(jobs.update().where(*self._of_job).values(**values))

    def ask_more(self, least_usd: float) -> tuple[float | None, bool]:
        """The amount that may be spent from now on, after the grant did not suffice, and whether running jobs have
        reserved more, which may come back. The amount is None if the set has no budget.
        """
        with self._claims.writing(self._set) as c:
            granted = _granted(c, self._set, self._job, _limits(c, self._set), least_usd)
            current = (*self._of_job, jobs.c.generation == self._generation)
            c.execute(jobs.update().where(*current).values(reserved_usd=granted or 0.0))
            return granted, _reserved_by_others(c, self._set, self._job) >= NOTHING_USD

    def checkpoint(self) -> StoredCheckpoint | None:
        """The job's last checkpoint, of whichever claim."""
        return self._claims.checkpoint(self._set, self._job)

    def save_checkpoint(self, ref: str | None, commit: str | None, state: bytes) -> None:
        """Replaces the job's checkpoint."""
        with self._held() as (c, _):
            self._remove_checkpoint(c)
            saved = {"ref": ref, "commit": commit, "state": state, "made_at": self._claims.now(c)}
            c.execute(checkpoints.insert().values(**self._key, **saved))

    def _remove_checkpoint(self, c: sa.Connection) -> None:
        c.execute(checkpoints.delete().where(*of_job(self._set, self._job, checkpoints)))

    def add_log(self, text: str) -> None:
        with self._claims.writing() as c:
            c.execute(logs.insert().values(**self._key, at=self._claims.now(c), text=storable(text)))

    def keep(self, kept: KeptRow) -> None:
        """Records what this machine keeps of the job, so that no other one claims it."""
        with self._held() as (c, _):
            _record_kept(c, kept)

    def end(
        self,
        exit_code: int,
        reason: str,
        *,
        result: str = "",
        commit: str | None = None,
        keeps_checkpoint: bool = False,
        is_delivered: bool = True,
    ) -> None:
        """Ends the job. With `keeps_checkpoint`, `retry` resumes it. Without `is_delivered`, a machine keeps its work."""
        reason, move = storable(reason), Move.END if is_delivered else Move.KEEP
        with self._held() as (c, row):
            now = self._claims.now(c)
            end = _ended(now, exit_code, reason)
            if row.is_cancelled:
                move, end = Move.CANCEL, _ended(now, _CANCELLED_EXIT, _cancelled(reason))
            end |= {"result": storable(result), "commit": commit or row.commit}
            c.execute(moved(move, self._set, jobs.c.id == self._job, **end))
            self._end_attempt(c, row, exit_code, reason, is_delivered=is_delivered)
            if not keeps_checkpoint:
                self._remove_checkpoint(c)

    def plan_next(
        self, exit_code: int, delay_s: float, reason: str, *, is_try: bool = True, is_delivered: bool = True
    ) -> None:
        """Ends this attempt and plans the next. `is_try` is False if the attempt does not count, because the worker was
        told to stop. `is_delivered` is as in `end`.
        """
        reason, this = storable(reason), jobs.c.id == self._job
        with self._held() as (c, row):
            if row.attempt != self.claim.row.attempt:  # it was planned before
                return
            now = self._claims.now(c)
            self._end_attempt(c, row, exit_code, reason, is_delivered=is_delivered)
            if row.is_cancelled:
                end = _ended(now, _CANCELLED_EXIT, _cancelled(reason))
                c.execute(moved(Move.CANCEL, self._set, this, **end))
            else:
                again = _planned(row.attempt, now + delay_s, reason)
                tries = row.tries if is_try else row.tries - 1
                c.execute(moved(Move.PLAN, self._set, this, **again, tries=tries))

    def _end_attempt(
        self, c: sa.Connection, row: Any, exit_code: int, reason: str, *, is_delivered: bool
    ) -> None:
        this = (*of_job(self._set, self._job, attempts), attempts.c.generation == self._generation)
        end = {"ended_at": self._claims.now(c), "exit_code": exit_code, "reason": reason}
        end |= {"turns": row.turns, "cost_usd": row.cost_usd}
        c.execute(attempts.update().where(*this).values(**end))
        if is_delivered and self.claim.kept is not None:
            c.execute(undelivered.update().where(*_is_kept_as(self.claim.kept)).values(is_over=True))


# --- Executors that are gone


def take_over(
    claims: Claims,
    lock: ExecutorLock,
    engine: Engine,
    clean_up: Callable[[str], None],
    tell: Callable[[str], None],
) -> list[str]:
    """Puts the workflows of executors that are gone back into the queue. `clean_up` is called for each of these executors.
    Returns the workflows of this executor.
    """
    pending = engine.pending()
    own = pending.pop(lock.executor_id, [])
    for executor in lock.gone(pending):
        with lock.try_take_over(executor) as is_held:
            if is_held:
                clean_up(executor)
                theirs = engine.pending().get(executor, [])
                engine.resume(theirs)
                claims.executor_gone(executor)
                for workflow in theirs:
                    tell(f"{workflow.rpartition('/')[0]}: taken over from {executor}, which is gone")
    return own


def reconcile(claims: Claims, engine: Engine, set_name: str, tell: Callable[[str], None]) -> None:
    """Plans the next attempt of jobs whose workflow the engine does not have any more."""
    unended = claims.unended(set_name)
    of_workflow = {f"{set_name}/{job}/{attempt}": (job, attempt, number) for job, attempt, number in unended}
    for workflow in of_workflow.keys() - engine.live(list(of_workflow)):
        claims.begin_again(set_name, *of_workflow[workflow], "the engine had lost it")
        tell(f"{workflow.rpartition('/')[0]}: the engine had lost it; it begins again")


# --- Inside a transaction


def is_kept() -> Any:
    """The condition for a job of which a machine keeps work, so that only this machine may claim it."""
    this = (undelivered.c.set_name == jobs.c.set_name, undelivered.c.job == jobs.c.id)
    return sa.exists().where(*this, undelivered.c.is_over.is_(False)).correlate(jobs)


def _is_kept_as(kept: KeptRow) -> tuple[Any, ...]:
    return (*of_job(kept.set_name, kept.job, undelivered), undelivered.c.generation == kept.generation)


def _record_kept(c: sa.Connection, kept: KeptRow) -> None:
    c.execute(undelivered.delete().where(*_is_kept_as(kept)))
    c.execute(undelivered.insert().values(**asdict(kept)))


def _locked_row(c: sa.Connection, set_name: str, job: str) -> Any:
    return c.execute(sa.select(jobs).where(*of_job(set_name, job)).with_for_update()).one_or_none()


def _count(c: sa.Connection, set_name: str, *conditions: Any) -> int:
    some = sa.select(sa.literal(1)).where(jobs.c.set_name == set_name, *conditions).limit(MOST_COUNTED)
    return int(c.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one())


def _limits(c: sa.Connection, set_name: str) -> SetLimits:
    return limits_from(c.execute(sa.select(sets.c.limits).where(sets.c.name == set_name)).scalar_one())


def _granted(
    c: sa.Connection, set_name: str, job: str, limits: SetLimits, least_usd: float = LEAST_GRANT_USD
) -> float | None:
    """The part of the set's budget that this job may spend. None if the set has none."""
    if limits.max_budget_usd is None:
        return None
    total = sa.select(sa.func.sum(jobs.c.cost_usd)).where(jobs.c.set_name == set_name)
    spent = c.execute(total).scalar_one()
    left = limits.max_budget_usd - spent - _reserved_by_others(c, set_name, job)
    return grant_usd(left, least_usd)


def _reserved_by_others(c: sa.Connection, set_name: str, job: str) -> float:
    query = sa.select(sa.func.coalesce(sa.func.sum(jobs.c.reserved_usd), 0.0))
    return float(c.execute(query.where(jobs.c.set_name == set_name, jobs.c.id != job)).scalar_one())


def _put_off(c: sa.Connection, row: Any, at: float, reason: str) -> str:
    # A worker that lost the job may still be alive. The new generation shuts it out.
    again = {**_planned(row.attempt, at, reason), "generation": row.generation + 1}
    c.execute(moved(Move.PLAN, row.set_name, jobs.c.id == row.id, **again))
    return reason


def _is_over(c: sa.Connection, row: Any, now: float) -> bool:
    """Closes the attempts of lost workers, and ends the job if it was cancelled while one of them worked."""
    _close_lost_attempts(c, row, now)
    if row.is_cancelled:
        end = {**_ended(now, _CANCELLED_EXIT, _CANCELLED), "generation": row.generation + 1}
        c.execute(moved(Move.CANCEL, row.set_name, jobs.c.id == row.id, **end))
    return bool(row.is_cancelled)


def _close_lost_attempts(c: sa.Connection, row: Any, now: float) -> None:
    """Records that the workers of earlier claims are gone, if those claims have no end."""
    lost = (*of_job(row.set_name, row.id, attempts), attempts.c.ended_at.is_(None))
    c.execute(attempts.update().where(*lost).values(ended_at=now, reason="its worker was lost"))


def _obstacle(
    c: sa.Connection, row: Any, limits: SetLimits, *, granted: float | None, credential: str, now: float
) -> str | Final | None:
    """Why the job's process must not start: not now, or never again. None if it may start."""
    if row.state == JobState.RUNNING.value and row.tries >= limits.max_attempts:
        reason = f"gave up after {limits.max_attempts} attempts: the worker of the last one was lost"
        return Final(Outcome.API_UNAVAILABLE.exit_code(), reason)
    if row.not_before > now:
        return _put_off(c, row, row.not_before, "it is not due yet")
    limited = (holds.c.credential == credential, holds.c.until > now)
    held = c.execute(sa.select(holds.c.until, holds.c.reason).where(*limited)).one_or_none()
    if held is not None:
        return _put_off(c, row, held.until, held.reason)
    if granted is None or granted > 0:
        return None
    if _reserved_by_others(c, row.set_name, row.id) >= NOTHING_USD:
        reason = "the rest of the set's budget is reserved by running jobs"
        return _put_off(c, row, now + _RESERVED_S, reason)
    reason = f"the set's budget of ${limits.max_budget_usd:g} is spent"
    return Final(Outcome.LIMIT_REACHED.exit_code(), reason)


def _begin(
    c: sa.Connection,
    row: Any,
    now: float,
    executor: str,
    machine: str,
    *,
    tries: int,
    reserved_usd: float = 0.0,
) -> JobRow:
    """Returns the job as it is now."""
    values = {"generation": row.generation + 1, "tries": tries, "reserved_usd": reserved_usd}
    values |= {"holder": executor, "is_queued": True, "reason": None, "started_at": row.started_at or now}
    c.execute(moved(Move.CLAIM, row.set_name, jobs.c.id == row.id, **values))
    key = {"set_name": row.set_name, "job": row.id, "generation": row.generation + 1}
    who = {"attempt": row.attempt, "executor": executor, "machine": machine, "started_at": now}
    c.execute(attempts.insert().values(**key, **who))
    return replace(job_row(row), state=JobState.RUNNING, **values)


# --- Submitting


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
