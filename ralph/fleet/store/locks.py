"""The lock that says that an executor lives, and the taking over of executors that are gone.

An executor is one process that works. It takes its lock before the engine starts and holds it until it ends. Who has
the lock of another executor may resume that executor's workflows.

On Postgres the lock is an advisory lock of a session of its own, so it falls with the process, and also when the
server finds its machine gone. A stopped process keeps its session. So each executor asks something on that session
every few seconds, and a session that was silent for too long is ended by others. On SQLite the lock is that of a file.
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
import time
from contextlib import closing, contextmanager, suppress
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

import psycopg

from ralph.fleet.store.database import (
    LONGEST_WAIT_S,
    SCHEMA,
    StoreError,
    WaitOptions,
    WaitStoppedError,
    connect,
    patiently,
)
from ralph.machine.files.opened_file import closed_after, is_locked, locked_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ralph.fleet.store.database import Database

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
