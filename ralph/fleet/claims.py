"""Who works on which job: the claims of workers, which workers live, and what becomes of the claims of those that are gone. A job's
state changes only by a `Move`.

dbos 3.4.0 decides what it can, and ralph the rest:

| what | decided by | why not by the engine |
| --- | --- | --- |
| which slot begins which due job, and the order | DBOS: one queue for each set, with priorities | |
| jobs at once, of a set and for a git host; starts in a time | DBOS: the limits of the queue | |
| that an attempt outlives its process | DBOS: `resume_workflow` runs it elsewhere | |
| when the next attempt may begin | `not_before`, by the store's clock | `delay_seconds` is added to the clock of the process that enqueues |
| whether there is one, and after which wait | `jobs.after_end` | it retries steps, in one process; the count of a resumed workflow begins anew |
| which executors are gone | `gone` of the locks, `take_over` | it recovers its own executor at the start; for others, only its hosted service does |
| whether a worker that was stopped may still write | the generation of a claim, in each write | it has no fence: a workflow of a process that wakes continues |
| keys that are rate limited, and the budget | `holds`, `reserved_usd` | it counts starts, and knows neither keys nor dollars |
| that a job waits for others | `release_waiting` | a workflow that waits takes a slot |
| that a running job ends when it is cancelled | `is_cancelled`, which its worker reads | its cancel acts at the next step; a step's result would be false on another machine, so there are none |
| that only one machine delivers what it keeps | `undelivered` | a queue has no machines |
| what it has lost itself | `reconcile` | not seen in practice, and would be a lost job |
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import re
import time
from contextlib import closing, contextmanager, suppress
from pathlib import PurePath
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict, replace

from ralph.fleet.database import (
    LONGEST_WAIT_S,
    SCHEMA,
    StoreError,
    WaitOptions,
    WaitStoppedError,
    connect,
    patiently,
)
from ralph.fleet.jobs import (
    LEAST_GRANT_USD,
    NOTHING_USD,
    Final,
    JobState,
    SetLimits,
    content_of,
    grant_usd,
    outcome_of,
)
from ralph.fleet.schema import (
    FINAL_STATES,
    JobRow,
    JobStore,
    KeptRow,
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
    of_job,
    sets,
    storable,
    undelivered,
)
from ralph.machine.files.opened_file import closed_after, is_locked, locked_file
from ralph.values.outcome import Outcome, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from ralph.fleet.database import Database
    from ralph.fleet.engine import Engine
    from ralph.fleet.jobs import Job

MOST_PARAMETERS = 10_000
"""Postgres takes 65,535 parameters in one statement."""
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


# --- Liveness: the lock that says that an executor lives
#
# An executor is one process that works. It takes its lock before the engine starts and holds it until it ends. Who has
# the lock of another executor may resume that executor's workflows (`take_over`).
#
# On Postgres the lock is an advisory lock of a session of its own, so it falls with the process, and also when the
# server finds its machine gone. A stopped process keeps its session. So each executor asks something on that session
# every few seconds, and a session that was silent for too long is ended by others. On SQLite the lock is that of a file.

PULSE_S = 5.0
SILENCE_S = 30.0
"""A session that asked nothing for so long belongs to a stopped process. It is six times the pulse."""
PAUSE_S = 30.0
"""After the store was away, each executor first takes its own lock again. For so long nobody takes over another."""
KEPT_DAYS = 30
"""The store remembers for so long who was taken over. No process is stopped for longer and then continues."""

_STATEMENT_S = 10
_CLOSE_S = 2.0
_END_MS = 5_000
_EXECUTOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class LockState(enum.Enum):
    """Whether this process still has its own lock, as the store has said last."""

    HELD = "held"
    UNKNOWN = "unknown"
    """The connection is lost, or this process was stopped for a while. The next answer of the store will tell."""
    LOST = "lost"
    """Somebody took over this executor. The process must end its work and deliver nothing. It stays so."""


def take_lock(
    database: Database, executor_id: str, *, tell: Callable[[str], None], **times_s: float
) -> ExecutorLock:
    """Takes the lock of this process. `executor_id` must be new for each process. `tell` gets lines for the user, from
    another thread. `times_s` are those of `PostgresLock`. Call it after a fork, in the process that works.

    Raises StoreError if the lock is taken. Raises psycopg.Error if the store is away, so call it with `patiently`.
    """
    if not _EXECUTOR.fullmatch(executor_id):
        raise StoreError(f"{executor_id!r} is not the id of an executor")
    if not database.is_postgres:
        return FileLock((database.file or database.folder).parent / "executors", executor_id)
    return PostgresLock(database, executor_id, tell, **times_s)


def key_of(executor_id: str) -> int:
    """The key of an executor's advisory lock: 64 bits with a sign."""
    digest = hashlib.sha256(b"ralph-fleet " + executor_id.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


# Advisory locks belong to a database. A key of 64 bits is shown in two halves (pg_locks).
_HOLDERS = """
    FROM pg_locks AS locks JOIN pg_stat_activity AS sessions ON sessions.pid = locks.pid
    WHERE locks.locktype = 'advisory' AND locks.objsubid = 1 AND locks.granted
    AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (locks.classid::bigint << 32 | locks.objid::bigint) = ANY(%(keys)s)
"""
# A session of another user shows no time. It lives.
_IS_SILENT = (
    "coalesce(clock_timestamp() - sessions.state_change > make_interval(secs => %(silence_s)s), false)"
)
_LIVING = f"SELECT (locks.classid::bigint << 32 | locks.objid::bigint) {_HOLDERS} AND NOT {_IS_SILENT}"
_END_SILENT = f"SELECT pg_terminate_backend(locks.pid, {_END_MS}) {_HOLDERS} AND {_IS_SILENT}"
_END_FORMER = (
    "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE (pid, backend_start) = (%s, %s)"
)
_WHO = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_UPTIME_S = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float"
_TABLE = f"{SCHEMA}.executors_taken_over"
_MAKE_TABLE = (
    "SELECT pg_advisory_xact_lock(7208520)",  # two that make a schema at once fail
    f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
    f"CREATE TABLE IF NOT EXISTS {_TABLE} (executor text PRIMARY KEY, at timestamptz DEFAULT clock_timestamp())",
)
_REMEMBER = f"INSERT INTO {_TABLE} (executor) VALUES (%s) ON CONFLICT DO NOTHING"  # noqa: S608 - a constant
_FORGET = f"DELETE FROM {_TABLE} WHERE at < clock_timestamp() - make_interval(days => {KEPT_DAYS})"  # noqa: S608 - a constant
_IS_REMEMBERED = f"SELECT EXISTS (SELECT FROM {_TABLE} WHERE executor = %s)"  # noqa: S608 - a constant


class PostgresLock:
    """The lock as an advisory lock of a session. A thread keeps the session alive, and takes the lock again after the
    connection was lost.

    A survivor remembers in a table whom it took over. Otherwise a process that was stopped would find its lock free
    again, and would continue beside the one that resumed its work.
    """

    def __init__(
        self,
        database: Database,
        executor_id: str,
        tell: Callable[[str], None],
        *,
        pulse_s: float = PULSE_S,
        silence_s: float = SILENCE_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        self.executor_id = executor_id
        self.lost = Event()
        """Is set when somebody took over this executor."""
        self._database = database
        self._tell = tell
        self._pulse_s, self._silence_s, self._pause_s = pulse_s, silence_s, pause_s
        self._mutex = RLock()
        self._stop, self._wake = Event(), Event()
        self._state = LockState.UNKNOWN
        self._former: tuple[Any, ...] | None = None
        connection = self._taken()
        if connection is None:
            raise StoreError(f"the lock of {executor_id} is taken: another process has this id")
        self._connection = connection
        uptime_s = float(_value(connection, _UPTIME_S))
        self._may_reap_at_s = _now_s() + max(0.0, pause_s - uptime_s)
        self._state = LockState.HELD
        self._thread = Thread(target=self._keep, name="ralph-fleet-lock", daemon=True)
        self._thread.start()

    def confirm(self) -> LockState:
        """Asks the store now. Call it before something that only the owner may do."""
        with self._mutex:
            if self._state is LockState.HELD:
                self._pulse()
            return self._state

    def may_take_over(self) -> bool:
        """Whether this process has its own lock, and the store has been there for a while."""
        return self._state is LockState.HELD and _now_s() >= self._may_reap_at_s

    def gone(self, executor_ids: Iterable[str]) -> list[str]:
        """Those of these executors that seem to be gone. An empty list while takeovers are suspended (just after a
        start or an outage of the store). Raises psycopg.Error and OSError.
        """
        asked = {key_of(one): one for one in executor_ids if one != self.executor_id}
        with self._mutex:
            if not asked or not self.may_take_over():
                return []
            about = {"keys": list(asked), "silence_s": self._silence_s}
            living = {key for (key,) in self._connection.execute(_LIVING.encode(), about)}
        return [one for key, one in asked.items() if key not in living]

    @contextmanager
    def try_take_over(self, executor_id: str) -> Iterator[bool]:
        """Holds the lock of an executor that is gone, during the `with` block. The value is False if that executor
        lives, if somebody else was faster, or while nobody may be taken over.

        Look for its workflows inside the block, because somebody may have resumed them just before. The block must
        be done within `SILENCE_S`. Raises psycopg.Error and OSError.
        """
        self.confirm()  # a process that was stopped itself learns here that it may not
        if executor_id == self.executor_id or not self.may_take_over():
            yield False
            return
        key = key_of(executor_id)
        # A session of its own: if this process ends in the middle, the lock is free again.
        with closing(connect(self._database, statement_timeout_s=_STATEMENT_S)) as session:
            session.execute(_END_SILENT.encode(), {"keys": [key], "silence_s": self._silence_s})
            if not _value(session, "SELECT pg_try_advisory_lock(%s)", key):
                yield False
                return
            session.execute(_REMEMBER.encode(), [executor_id])
            session.execute(_FORGET.encode())
            yield True

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(_CLOSE_S)  # it may be asking a server that is away

    def _keep(self) -> None:
        try:
            while not self._stop.is_set():
                with self._mutex:
                    if self._state is LockState.HELD:
                        self._pulse()
                if self._state is not LockState.HELD and not self._regained():
                    return
                self._wake.wait(self._pulse_s)
                self._wake.clear()
        finally:
            with self._mutex:
                self._connection.close()

    def _pulse(self) -> None:
        """Asks something on the session. An answer proves that the session lives, and with it the lock."""
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            self._state = LockState.UNKNOWN
            self._connection.close()
            self._wake.set()  # the thread takes the lock again

    def _regained(self) -> bool:
        """Waits for the store and takes the lock again. Returns whether it has it."""
        told = ""
        while True:
            try:
                connection = patiently(
                    self._taken, waiting=WaitOptions(self._database, self._tell, self._stop)
                )
            except WaitStoppedError:
                return False
            except (StoreError, psycopg.Error) as error:
                # The work continues meanwhile: whoever has the store may put it right.
                line = self._database.without_password(str(error))
                if line != told:
                    self._tell(line)
                    told = line
                if self._stop.wait(LONGEST_WAIT_S):
                    return False
                continue
            with self._mutex:
                if connection is None:
                    self._state = LockState.LOST
                    self.lost.set()
                    return False
                self._connection = connection
                self._may_reap_at_s = _now_s() + self._pause_s
                self._state = LockState.HELD
                return True

    def _taken(self) -> psycopg.Connection[Any] | None:
        """A new session that has the lock. None if another process has the lock, or has had it."""
        connection = connect(self._database, statement_timeout_s=_STATEMENT_S)
        try:
            if _value(connection, "SELECT to_regclass(%s) IS NULL", _TABLE):
                with connection.transaction():
                    for statement in _MAKE_TABLE:
                        connection.execute(statement.encode())
            if self._former is not None:
                # The server may not know yet that the connection is broken.
                connection.execute(_END_FORMER, [_END_MS, *self._former])
            is_taken = bool(_value(connection, "SELECT pg_try_advisory_lock(%s)", key_of(self.executor_id)))
            # In this order: whoever takes over has the lock first, and then remembers.
            if is_taken and not _value(connection, _IS_REMEMBERED, self.executor_id):
                self._former = connection.execute(_WHO).fetchone()
                return connection
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None


def _value(connection: psycopg.Connection[Any], statement: str, *parameters: object) -> Any:
    [(value,)] = connection.execute(statement.encode(), parameters).fetchall()
    return value


def _now_s() -> float:
    """Seconds that pass also while the process is stopped or the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class FileLock:
    """The lock as that of a file in the fleet's folder. It falls with the process. A stopped process keeps it: nobody
    else has this machine's store, and nobody takes over before the process has ended.
    """

    def __init__(self, folder: Path, executor_id: str) -> None:
        self.executor_id = executor_id
        self.lost = Event()
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        for left in folder.glob("*.lock"):  # of killed processes
            with self.try_take_over(left.stem):
                pass
        descriptor = locked_file(self._path(executor_id))
        if descriptor is None:
            raise StoreError(f"the lock of {executor_id} is taken: another process has this id")
        self._descriptor = descriptor

    def confirm(self) -> LockState:
        return LockState.HELD

    def gone(self, executor_ids: Iterable[str]) -> list[str]:
        return [one for one in executor_ids if one != self.executor_id and not is_locked(self._path(one))]

    @contextmanager
    def try_take_over(self, executor_id: str) -> Iterator[bool]:
        descriptor = None if executor_id == self.executor_id else locked_file(self._path(executor_id))
        if descriptor is None:
            yield False
            return
        with closed_after(descriptor):
            yield True
            self._path(executor_id).unlink(missing_ok=True)  # no process has this id again

    def close(self) -> None:
        with suppress(FileNotFoundError):
            self._path(self.executor_id).unlink()
        os.close(self._descriptor)

    def _path(self, executor_id: str) -> Path:
        if not _EXECUTOR.fullmatch(executor_id):
            raise StoreError(f"{executor_id!r} is not the id of an executor")
        return self._folder / f"{executor_id}.lock"


ExecutorLock = PostgresLock | FileLock


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


class Claims(JobStore):
    """The store as a worker sees it, and the changes of users."""

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
