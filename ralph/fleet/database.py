"""The store of the fleet: where it is, how to connect to it, and how to wait for it while it is away.

The store is a SQLite file of the user, or a Postgres server that all machines reach over TCP. No message of this
module contains a password.
"""

from __future__ import annotations

import errno
import ipaddress
import math
import os
import random
import re
import sqlite3
import ssl
import stat
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import certifi
import psycopg
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from ralph.fleet.jobs import VARIABLE
from ralph.machine.connecting import choose_address
from ralph.machine.files.opened_file import opened
from ralph.machine.files.paths import is_within, leads_into, repository_top
from ralph.machine.own_programs import search_around
from ralph.sessions.places import chosen_place, state_directory, temporary_path, usual_place
from ralph.sessions.store import make_private
from ralph.values.credentials import Secret
from ralph.values.outcome import CannotError, Outcome
from ralph.values.ports import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from threading import Event

    from ralph.machine.waiter import StopEvent

T = TypeVar("T")

FOLDER = "fleet"
"""The folder of the fleet in ralph's state directory."""
FILE = "fleet.sqlite"
SCHEMA = "ralph_fleet"
"""The schema of the fleet's own tables in Postgres. That of the engine is `dbos`."""

OWN_POOL = 1
"""Connections that a process keeps for the fleet's own tables."""
OWN_OVERFLOW = 2
"""Further connections while threads of one process write at the same moment."""
ENGINE_POOL = 4
"""Most connections of the engine in one process: one for its queue, one for its listener, one for the workflow, and
one to spare. The engine's own default is 20, and a server has 100 by default."""
CONNECT_S = 10
STATEMENT_S = 30
"""A statement of the fleet's own tables that takes longer is ended: each of them changes few rows."""
_BUSY_S = 2
"""Longest wait for a writer of the fleet's own tables, which `patiently` asks again. In between, a process can be told to stop."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 5.0

# A peer that is silent is given up after idle + interval * count: 25 s, which is less than the 30 s of silence after
# which other workers end a session (locks.py).
_KEEPALIVES_IDLE_S = 10
_KEEPALIVES_INTERVAL_S = 5
_KEEPALIVES_COUNT = 3
_USER_TIMEOUT_MS = 25_000
_SERVER_SIDE = {
    "tcp_keepalives_idle": _KEEPALIVES_IDLE_S,
    "tcp_keepalives_interval": _KEEPALIVES_INTERVAL_S,
    "tcp_keepalives_count": _KEEPALIVES_COUNT,
    "tcp_user_timeout": _USER_TIMEOUT_MS,
}
_CLIENT_SIDE = {
    "application_name": "ralph-fleet",
    "connect_timeout": CONNECT_S,
    "keepalives": 1,
    "keepalives_idle": _KEEPALIVES_IDLE_S,
    "keepalives_interval": _KEEPALIVES_INTERVAL_S,
    "keepalives_count": _KEEPALIVES_COUNT,
    "tcp_user_timeout": _USER_TIMEOUT_MS,
}
_POSTGRES = {"postgresql", "postgres", "postgresql+psycopg"}
_ELSEWHERE = {"host", "hostaddr", "port", "user", "dbname", "service"}
"""Parameters that would replace a part of the URL, so that a message would name another server than the real one."""


class StoreError(CannotError):
    """The store cannot be used, and waiting would not help. The message says what to do."""


class WaitStoppedError(Exception):
    """The process was told to stop while it waited for the store."""


class Database(Struct, frozen=True, kw_only=True):
    """A store and how to connect to it. The `repr` and the text fields contain no password."""

    url: Secret[str]
    """The URL for SQLAlchemy and for the engine, without parameters."""
    connect_args: Secret[dict[str, Any]] = Secret({})
    """Arguments for each connection of the driver. Empty for SQLite."""
    is_postgres: bool
    safe_text: str
    """The URL for messages, without password and parameters."""
    place: str
    """HOST:PORT, or the path of the SQLite file."""
    file: Path | None = None
    """The SQLite file. None for Postgres."""
    folder: Path
    """The folder on this machine for locks and work: STATE/fleet."""

    @property
    def private_places(self) -> tuple[Path, ...]:
        """Ralph's state directory, and the files of a SQLite database."""
        places = [self.folder.parent]
        if self.file is not None:
            places += [self.file.with_name(f"{self.file.name}{end}") for end in ("", "-wal", "-shm")]
        return tuple(places)

    def without_password(self, text: str) -> str:
        """The text of a foreign error as one line, in which the password is replaced."""
        password = sa.make_url(self.url.plain).password
        line = " ".join(text.split())
        return line.replace(password, "***") if password else line


def database_of(named: str | None, environment: Mapping[str, str]) -> Database:
    """The store that `--db` or RALPH_FLEET_DB names, or else the user's SQLite file. Connects to nothing. Raises StoreError."""
    place = chosen_place(environment, None) or usual_place(environment) or temporary_path()
    folder = state_directory(place) / FOLDER
    text = named if named is not None else environment.get(VARIABLE)
    if not text:
        return _sqlite(folder / FILE, folder)
    source, outcome = ("--db", Outcome.USAGE) if named is not None else (VARIABLE, Outcome.CONFIG)
    try:
        url = sa.make_url(text)
        port = url.port
    except (sa.exc.ArgumentError, ValueError):
        raise StoreError(f"{source} is not a database URL; {_EXAMPLES}", outcome) from None
    try:
        if url.drivername == "sqlite":
            return _sqlite(_file_of(url), folder)
        if url.drivername in _POSTGRES:
            return _postgres(url, port, folder, environment)
    except ValueError as error:
        raise StoreError(f"{source}: {error}", outcome) from None
    raise StoreError(
        f"{source} names {url.drivername}, which is not a store of the fleet; {_EXAMPLES}", outcome
    )


_EXAMPLES = "write postgresql://USER@HOST:PORT/DATABASE or sqlite:////PATH"


def _file_of(url: sa.URL) -> Path:
    if not url.database or url.database == ":memory:" or url.host or url.query:
        raise ValueError("a SQLite store is a file: write sqlite:////PATH")
    return Path(url.database).absolute()


def _sqlite(file: Path, folder: Path) -> Database:
    url = f"sqlite:///{file}"
    return Database(
        url=Secret(url), is_postgres=False, safe_text=url, place=str(file), file=file, folder=folder
    )


def _postgres(url: sa.URL, port: int | None, folder: Path, environment: Mapping[str, str]) -> Database:
    query = {key: value if isinstance(value, str) else value[-1] for key, value in url.query.items()}
    host = url.host or ""
    if not host or host.startswith(("/", "@", "%2F", "%2f")) or query.get("host", "").startswith(("/", "@")):
        raise ValueError(
            "the URL names no TCP host, and the engine does not reconnect over a Unix socket after an outage: "
            "write postgresql://USER@127.0.0.1:PORT/DATABASE"
        )
    if misplaced := _ELSEWHERE & query.keys():
        raise ValueError(f"write {', '.join(sorted(misplaced))} before the ? of the URL: {_EXAMPLES}")
    if not url.database:
        raise ValueError(f"the URL names no database: {_EXAMPLES}")
    clean = sa.URL.create(
        "postgresql+psycopg",
        username=url.username,
        password=url.password or query.pop("password", None),
        host=host,
        port=port,
        database=url.database,
    )
    connect_args: dict[str, Any] = {**_CLIENT_SIDE, **query}
    server_side = " ".join(f"-c {key}={value}" for key, value in _SERVER_SIDE.items())
    connect_args["options"] = f"{server_side} {query.get('options', '')}".strip()
    if not all(map(_is_loopback, host.split(","))):
        connect_args.setdefault("sslmode", "verify-full")
        if connect_args["sslmode"] in {"verify-full", "verify-ca"} and "sslrootcert" not in query:
            connect_args |= _authorities(environment)
    elif address := choose_address(f"http://{host}:{port or environment.get('PGPORT', '5432')}"):
        connect_args.setdefault("hostaddr", address)
    return Database(
        url=Secret(clean.render_as_string(hide_password=False)),
        connect_args=Secret(connect_args),
        is_postgres=True,
        safe_text=clean.set(drivername="postgresql", password=None).render_as_string(),
        place=f"{host}:{port or environment.get('PGPORT', '5432')}",
        folder=folder,
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _authorities(environment: Mapping[str, str]) -> dict[str, str]:
    """The file with the certificates of the authorities to trust. The library finds a file of the user for itself.

    `sslrootcert=system` would not do: the library in psycopg's wheel then looks into /usr/lib/psycopg-openssl, which is
    nowhere.
    """
    if "PGSSLROOTCERT" in environment or Path("~/.postgresql/root.crt").expanduser().exists():
        return {}
    usual = environment.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if usual is None:
        usual = certifi.where()
    return {"sslrootcert": usual}


def refuse_others_file(database: Database) -> None:
    """Raises StoreError if another user could have made, or can replace, the SQLite file. Makes and changes nothing."""
    if database.file is None or not os.path.lexists(database.file):
        return
    _refuse_others_folder(database.file.parent, may_be_open=False)
    status = database.file.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise _not_ours(database.file)


def refuse_open_store(database: Database, environment: Mapping[str, str]) -> None:
    """Raises StoreError if commands of an agent could have written jobs, or the records of their work: where ralph is started, unless
    the home is there, in a checkout, or where all commands may write.
    """
    home = os.path.realpath(environment.get("HOME") or os.sep)
    here = home
    with suppress(FileNotFoundError):  # it is gone
        here = str(Path.cwd())
    for place in filter(None, (database.folder, database.file)):
        around = (here, str(repository_top(place.parent) or home))
        work = [one for one in around if not is_within(home, one)]
        if leads_into(str(place), search_around(environment, work).roots):
            raise StoreError(
                f"{place} is where commands of an agent may write, and the fleet runs what it says: keep it elsewhere "
                "(RALPH_STATE_DIR, --db)"
            )


def prepare(database: Database) -> None:
    """Makes the folder of the fleet and the SQLite file, so that other users can access neither. The engine and its
    library give the files beside the SQLite file the same permissions. Call it before the engine opens the store, with
    `patiently`. Raises StoreError, OSError and sqlite3.Error.
    """
    _own_folder(database.folder, is_named=False)
    if database.file is not None:
        _own_folder(database.file.parent, is_named=database.file.parent != database.folder)
        _own_file(database.file)
        with closing(sqlite3.connect(database.file, timeout=_BUSY_S)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")


def _own_folder(folder: Path, *, is_named: bool) -> None:
    """Makes a folder that is the user's alone. One that the user named keeps its permissions, but others may not write to it."""
    if not os.path.lexists(folder):
        try:
            make_private(folder)
        except JournalError as error:
            raise error.__cause__ or error from None
    _refuse_others_folder(folder, may_be_open=not is_named)
    if not is_named and folder.lstat().st_mode & 0o077:
        folder.chmod(0o700)


def _refuse_others_folder(folder: Path, *, may_be_open: bool) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{folder} is not a folder: the fleet follows no link there")
    if status.st_uid != os.geteuid():
        raise StoreError(f"{folder} belongs to another user")
    if not may_be_open and status.st_mode & 0o022:
        raise StoreError(f"other users may write to {folder}: chmod go-w it, or name another place")


def _own_file(file: Path) -> None:
    with opened(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise _not_ours(file)
        if status.st_mode & 0o077:
            os.fchmod(descriptor, 0o600)


def _not_ours(file: Path) -> StoreError:
    return StoreError(f"{file} is not a file of this user")


def make_engine(database: Database) -> sa.Engine:
    """Makes a pool of connections for the fleet's own tables. Call it in the process that uses it, after a fork."""
    if not database.is_postgres:
        # A file that was removed is not made anew: it would be a store without jobs.
        place = f"file:{quote(str(database.file))}?mode=rw"
        engine = sa.create_engine(
            "sqlite://",
            poolclass=sa.QueuePool,
            creator=lambda: sqlite3.connect(place, uri=True, timeout=_BUSY_S, check_same_thread=False),
        )
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return sa.create_engine(
        database.url.plain,
        connect_args=_with_timeout(database, STATEMENT_S),
        pool_size=OWN_POOL,
        max_overflow=OWN_OVERFLOW,
        pool_timeout=STATEMENT_S,
        pool_pre_ping=True,
    )


def reading(engine: sa.Engine) -> sa.Connection:
    """A connection that only reads. On SQLite it waits for no writer, and no writer waits for it."""
    return engine.connect().execution_options(**{_READS: True})


_READS = "ralph_reads"


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # SQLAlchemy's transactions begin in `_begin_sqlite`: the driver would begin one only at the first change.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads first and locks at its first change fails if another one has changed the file meanwhile.
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def connect(database: Database, *, statement_timeout_s: float = STATEMENT_S) -> psycopg.Connection[Any]:
    """Opens one connection to Postgres beside all pools. Each statement is a transaction. Raises psycopg.Error."""
    url = sa.make_url(database.url.plain)
    return psycopg.connect(
        autocommit=True,
        host=url.host,
        port=url.port,
        user=url.username,
        password=url.password,
        dbname=url.database,
        **_with_timeout(database, statement_timeout_s),
    )


def _with_timeout(database: Database, statement_timeout_s: float) -> dict[str, Any]:
    arguments = database.connect_args.plain
    timeout = f" -c statement_timeout={int(statement_timeout_s * 1000)}"
    return {**arguments, "options": arguments["options"] + timeout}


def dbos_settings(database: Database) -> dict[str, Any]:
    """The part of the engine's configuration that says where the store is and how to connect to it."""
    if not database.is_postgres:
        return {"system_database_url": database.url.plain}
    return {
        "system_database_url": database.url.plain,
        "sys_db_pool_size": ENGINE_POOL,
        "db_engine_kwargs": {
            "connect_args": dict(database.connect_args.plain),
            "pool_pre_ping": True,
            "max_overflow": 0,
        },
    }


def refuse_pooler(database: Database) -> None:
    """Raises StoreError if a transaction pooler is between this process and Postgres: advisory locks and settings
    of a session would belong to other clients. Raises psycopg.Error if the store is away.
    """
    if not database.is_postgres:
        return
    with closing(connect(database)) as first:
        before = _backend(first)
        if first.info.backend_pid == before:
            return  # a pooler invents this number
        with closing(connect(database)) as second, second.transaction():
            # The pooler lends the idle session of the first connection to the second.
            if before == _backend(second) or before != _backend(first):
                raise StoreError(
                    f"{database.place} is a transaction pooler, which does not keep session locks: "
                    "use the port of the Postgres server itself, or a pooler in session mode"
                )


def _backend(connection: psycopg.Connection[Any]) -> int:
    [(process_id,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
    return int(process_id)


class WaitOptions:
    """How `patiently` waits: whom it tells, in whole lines, and what stops it. Threads may share one: they tell once."""

    def __init__(
        self,
        database: Database,
        tell: Callable[[str], None],
        stop: Event | StopEvent,
        *,
        outlasts_full_disk: Callable[[], bool] = lambda: False,
        most_s: float | None = None,
    ) -> None:
        """`outlasts_full_disk` says whether to wait while the disk of the SQLite file is full. A user's command that does not wait
        for jobs does not. `most_s` is the longest wait. None waits without end.
        """
        self.database = database
        self.most_s = math.inf if most_s is None else most_s
        self.stop = stop
        self.outlasts_full_disk = outlasts_full_disk
        self._tell = tell
        self._waiters = 0
        self._lock = threading.Lock()

    def begin(self, reason: str) -> None:
        """One more thread waits. The first one tells why."""
        with self._lock:
            self._waiters += 1
            if self._waiters == 1:
                self._tell(f"waiting for the store at {self.database.place}: {reason}")

    def end(self, *, is_back: bool) -> None:
        """One thread less waits. The last one tells if the store is back."""
        with self._lock:
            self._waiters -= 1
            if self._waiters == 0 and is_back:
                self._tell(f"the store at {self.database.place} is back")


def patiently(call: Callable[[], T], *, waiting: WaitOptions) -> T:
    """Calls `call` again and again while the store is away, and returns its result. Tells once what it waits for, and
    once that the store is back. A connection can break after a commit, so `call` must be true to repeat.

    Raises StoreError if waiting would not help or has taken too long, and WaitStoppedError if the process was told to stop meanwhile. Any
    other error of `call` is raised as it is.
    """
    database, waits = waiting.database, _waits()
    is_waiting, began_s = False, time.monotonic()
    try:
        while True:
            try:
                result = call()
            except Exception as error:
                refusal = refusal_of(database, error)
                is_full = _is_full_disk(database, error)
                if refusal is not None and not (is_full and waiting.outlasts_full_disk()):
                    raise refusal from error
                reason = str(_driver_error(error)) if is_full else away_reason(error)
                if reason is None:
                    raise
                if not is_waiting:
                    waiting.begin(database.without_password(reason))
                    is_waiting = True
                if time.monotonic() - began_s >= waiting.most_s:
                    says = (
                        f"the store at {database.place} does not answer; gave up after {waiting.most_s:g} s"
                    )
                    raise StoreError(says, Outcome.API_UNAVAILABLE) from error
                if waiting.stop.wait(next(waits)):
                    raise WaitStoppedError from error
            else:
                if is_waiting:
                    is_waiting = False
                    waiting.end(is_back=True)
                return result
    finally:
        if is_waiting:
            waiting.end(is_back=False)


def _waits() -> Iterator[float]:
    """Half of each wait is random, so that a thousand workers do not come back in one moment."""
    wait_s = FIRST_WAIT_S
    while True:
        yield wait_s * (0.5 + 0.5 * random.random())  # noqa: S311 - no secret
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


# Errors of a statement have an SQLSTATE (appendix A of Postgres' manual). Those of a failed connection have only a text.
_AWAY_STATES = re.compile(
    r"08(?!P01)...|53...|57P01|57P02|57P03|57P05"  # connection, resources, shutdown, start
    r"|57014|25P03"  # statement_timeout, idle_in_transaction_session_timeout
    r"|25006"  # a server that became a standby
    r"|40001|40P01|55P03"  # another transaction was in the way
)
_REFUSED_STATES = {
    "08P01": "pooler",  # PgBouncer says so of whatever it does not carry
    "28000": "password",
    "28P01": "password",
    "3D000": "database",
    "57P04": "database",
    "42P01": "tables",
    "42501": "permission",
}
_REFUSED_TEXTS = {
    r"invalid connection option|bad value for|invalid port number|invalid \S+ value": "URL",
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|role \".*\" does not exist"
    r"|authentication method|is not permitted to log in": "password",
    r"database \".*\" does not exist": "database",
    r"permission denied": "permission",
    r"certificate|does not support SSL|sslmode|SSL error: .*verify": "TLS",
    r"unsupported startup parameter": "pooler",
}
_ADVICE = {
    "URL": ("the URL of the store at {place} is wrong: {reason}", Outcome.CONFIG),
    "password": (
        "the store at {place} refuses this user: {reason}; put the password into ~/.pgpass or RALPH_FLEET_DB",
        Outcome.AUTH,
    ),
    "database": ("the store at {place} has no such database: {reason}; create it first", Outcome.CONFIG),
    "permission": (
        "the store at {place} does not permit this: {reason}; grant it to the user of the URL",
        Outcome.AUTH,
    ),
    "TLS": (
        "the store at {place} cannot be trusted: {reason}; name its authority with ?sslrootcert=FILE, or lower sslmode",
        Outcome.CONFIG,
    ),
    "pooler": (
        "{place} is a pooler that refuses what the fleet needs: {reason}; name the port of the Postgres server itself",
        Outcome.CONFIG,
    ),
    "file": ("the store at {place} cannot be used: {reason}", Outcome.IO_ERROR),
    "tables": ("the store at {place} was removed or replaced: {reason}", Outcome.IO_ERROR),
    "disk": ("the store at {place} cannot be used: {reason}; see whether the disk is full", Outcome.IO_ERROR),
}
_SQLITE_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
"""Without room for its shared memory, SQLite says IOERR also where it only reads."""
_SQLITE_BROKEN = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_READONLY,
}


def away_reason(error: BaseException) -> str | None:
    """The reason why the store cannot be used just now. None if the error is another one."""
    if isinstance(error, PoolTimeoutError):
        return "all connections of this process are in use"
    cause = _driver_error(error)
    if isinstance(cause, sqlite3.OperationalError):
        return str(cause) if _sqlite_code(cause) in _SQLITE_BUSY else None
    if not isinstance(cause, psycopg.Error):
        return None
    if cause.sqlstate is not None:
        is_away = _AWAY_STATES.fullmatch(cause.sqlstate) is not None
    else:
        is_away = isinstance(cause, (psycopg.OperationalError, psycopg.InterfaceError))
    return str(cause) if is_away or getattr(error, "connection_invalidated", False) else None


def refusal_of(database: Database, error: BaseException) -> StoreError | None:
    """The error to raise if the store refuses for good. None if the error is another one."""
    cause = _driver_error(error)
    kind = None
    if _is_full_disk(database, error):
        kind = "disk"
    elif isinstance(cause, OSError):
        kind = "file"
    elif isinstance(cause, sqlite3.DatabaseError):
        is_missing = str(cause).startswith("no such table")
        kind = "file" if _sqlite_code(cause) in _SQLITE_BROKEN else "tables" if is_missing else None
    elif isinstance(cause, psycopg.Error) and cause.sqlstate is not None:
        kind = _REFUSED_STATES.get(cause.sqlstate)
    elif isinstance(cause, (psycopg.OperationalError, psycopg.ProgrammingError)):
        text = str(cause)
        kind = next((kind for pattern, kind in _REFUSED_TEXTS.items() if re.search(pattern, text)), None)
    if kind is None:
        return None
    advice, outcome = _ADVICE[kind]
    reason = database.without_password(str(cause))
    return StoreError(advice.format(place=database.place, reason=reason), outcome)


def _is_full_disk(database: Database, error: BaseException) -> bool:
    cause = _driver_error(error)
    if isinstance(cause, OSError):
        return cause.errno in {errno.ENOSPC, errno.EDQUOT}
    if not isinstance(cause, sqlite3.Error):
        return False
    code = _sqlite_code(cause)
    if code == sqlite3.SQLITE_IOERR and database.file is not None:
        return database.file.is_file()  # or it was replaced by a pipe
    return code in _SQLITE_FULL or (code == sqlite3.SQLITE_CANTOPEN and not _has_room(database))


def _has_room(database: Database) -> bool:
    """Whether the disk of the SQLite file has a block and a file left. Without, SQLite cannot open the files beside its own."""
    with suppress(OSError):
        disk = os.statvfs((database.file or database.folder).parent)
        return disk.f_bavail > 0 and (disk.f_favail > 0 or disk.f_files == 0)
    return True


def _driver_error(error: BaseException) -> BaseException | None:
    return error.orig if isinstance(error, DBAPIError) else error


def _sqlite_code(error: sqlite3.Error) -> int | None:
    """The primary result code of SQLite, which is the low byte of the extended one."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
