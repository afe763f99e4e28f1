"""The tables of the fleet's own facts, the values that their rows become and the reading of them, and the guard of the engine's
tables. Times are seconds since 1970 by the clock of the store.
"""

from __future__ import annotations

import pickle
import re
import sys
import time
from contextlib import closing, contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.exc import DBAPIError

from ralph.fleet.database import SCHEMA, Database, StoreError, make_engine, reading
from ralph.fleet.jobs import Job, JobState, SetLimits, job_from, why_no_name
from ralph.values.screen_text import in_one_line
from ralph.values.usage import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KEPT_PATH = re.compile(r"/[0-9]+\.[A-Za-z0-9_-]+(?:/work\.bundle)?\Z")
"""The end of a path that `undelivered.py` makes."""
_NOT_OURS = "ralph did not write this; find out who can write to the store, and delete the row"
FINAL_STATES = tuple(state.value for state in JobState if state.is_final)


class KeptRow(Struct, frozen=True, kw_only=True):
    """Work that no git host has taken, on the machine that keeps it. Only that machine claims the job, to deliver it."""

    set_name: str
    job: str
    generation: int
    """That of the claim that left it."""
    place: str
    """The id of the state directory."""
    machine: str
    path: str
    tries: int = 0
    is_retried: bool = False
    """By the user: jobs that did not end with 0 continue."""
    is_over: bool = False
    """Delivered or discarded: the machine removes it."""


class JobRow(Struct, frozen=True, kw_only=True):
    """One job as `ls`, `show` and the report see it."""

    set_name: str
    id: str
    position: int
    """In the order of the jobs file."""
    content: bytes
    """`content_of` the job."""
    repository: str
    after: str
    """The ids that `after` names, in JSON."""
    state: JobState
    attempt: int = 1
    """The number of the workflow that is or comes next."""
    tries: int = 0
    """Claims that count towards max_attempts."""
    generation: int = 0
    """All claims, ever."""
    not_before: float = 0.0
    """The next attempt must not start earlier."""
    is_queued: bool = False
    """The engine has the workflow of `attempt`."""
    claimed_until: float = 0.0
    """Until then one worker alone gives it to the engine."""
    holder: str | None = None
    """The executor that works on it."""
    is_cancelled: bool = False
    exit_code: int | None = None
    outcome: str | None = None
    reason: str | None = None
    result: str | None = None
    """The last answer of the agent."""
    base: str | None = None
    """The commit at which the job began."""
    commit: str | None = None
    """The commit that was pushed."""
    planned: str | None = None
    """The commit that is about to be pushed."""
    turns: int = 0
    cost_usd: float = 0.0
    """Spent by all attempts, as far as they were told."""
    reserved_usd: float = 0.0
    """The most that the running attempt may spend."""
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    kept: KeptRow | None = None

    @property
    def job(self) -> Job:
        """Raises UnknownFormatError."""
        return job_from(self.content)


class AttemptRow(Struct, frozen=True, kw_only=True):
    """One claim of a job by a worker."""

    set_name: str
    job: str
    generation: int
    attempt: int
    executor: str
    machine: str
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    reason: str | None = None
    turns: int | None = None
    cost_usd: float | None = None


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


class StoredCheckpoint(Struct, frozen=True, kw_only=True):
    set_name: str
    job: str
    generation: int
    ref: str | None
    commit: str | None
    """None if no file had changed."""
    state: bytes
    """As `pack_state` returned it."""
    made_at: float


_LOCK_KEY = 0x72616C7068  # "ralph": taken while the tables are made
metadata = sa.MetaData()
_TYPES = {
    str: sa.Text,
    int: sa.Integer,
    float: sa.Float,
    bool: sa.Boolean,
    bytes: sa.LargeBinary,
    JobState: sa.Text,
}
_IS_DUE = sa.text("state = 'queued' AND NOT is_queued")


def _table(name: str, kind: type[Struct] | Mapping[str, Any], keys: str, *more: Any) -> sa.Table:
    """A table with a column for each field of `kind`. `keys` are the columns of the primary key."""
    fields = {one.name: one.type for one in msgspec.structs.fields(kind)} if isinstance(kind, type) else kind
    columns: list[sa.Column[Any]] = []
    for column, annotation in fields.items():
        types = [one for one in get_args(annotation) or (annotation,) if one is not NoneType]
        if types[0] is not KeptRow:
            can_lack = NoneType in get_args(annotation)
            is_key = column in keys.split()
            columns.append(sa.Column(column, _TYPES[types[0]], primary_key=is_key, nullable=can_lack))
    return sa.Table(name, metadata, *columns, *more)


sets = _table("sets", {"name": str, "limits": bytes, "created_at": float}, "name")  # SetLimits as JSON
jobs = _table(
    *("jobs", JobRow, "set_name id"),
    sa.Index("jobs_by_state", "set_name", "state"),
    sa.Index("jobs_due", "set_name", "position", postgresql_where=_IS_DUE, sqlite_where=_IS_DUE),
)
attempts = _table("attempts", AttemptRow, "set_name job generation")
undelivered = _table("undelivered", KeptRow, "set_name job generation")
checkpoints = _table("checkpoints", StoredCheckpoint, "set_name job")
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
logs = sa.Table(
    *("logs", metadata),
    sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("set_name", "job", "text")),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Index("logs_of_job", "set_name", "job", "number"),
)
# A credential is a fingerprint, never the key itself.
holds = _table("holds", {"credential": str, "until": float, "reason": str}, "credential")
executors = _table("executors", {"id": str, "machine": str, "set_name": str, "seen_at": float}, "id")


def storable(text: str) -> str:
    """The text without NUL and halves of surrogate pairs, which Postgres does not take."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def of_job(set_name: str, job: str, table: sa.Table = jobs) -> tuple[Any, ...]:
    """The conditions that choose the rows of one job."""
    return (table.c.set_name == set_name, (jobs.c.id if table is jobs else table.c.job) == job)


def job_row(row: Any, kept: KeptRow | None = None) -> JobRow:
    """Raises StoreError for names that would lead to another directory than the job's."""
    refuse_names(row.set_name, row.id)
    return JobRow(**{**row._mapping, "state": state_from(row.state), "kept": kept})  # noqa: SLF001 - SQLAlchemy's public name


def kept_row(row: Any) -> KeptRow:
    """Raises StoreError as `job_row` does."""
    refuse_names(row.set_name, row.job)
    if not _KEPT_PATH.search(row.path):
        raise StoreError(f"the store says that {_short(row.path)} has undelivered work: {_NOT_OURS}")
    return KeptRow(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name


def refuse_names(*names: str) -> None:
    """Raises StoreError for what `submit` takes as the name of no set and no job."""
    for name in names:
        if (why := why_no_name(name)) is not None:
            raise StoreError(f"the store has the name {_short(name)}, which {why}: {_NOT_OURS}")


def state_from(text: str) -> JobState:
    """Raises StoreError."""
    try:
        return JobState(text)
    except ValueError as error:
        raise StoreError(f"the state of a job in the store: {_short(error)}: {_NOT_OURS}") from None


def limits_from(text: bytes) -> SetLimits:
    """Raises StoreError."""
    try:
        return msgspec.json.decode(text, type=SetLimits)
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"the limits of a set in the store cannot be read ({_short(error)}): {_NOT_OURS}"
        ) from None


class JobStore:
    """The rows of the store as one process sees it. Make it after a fork. Threads may share it.

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


# --- The engine's tables
# Keeps values of the engine's tables that could run code out of a worker. ralph asks the engine for its portable JSON
# form. But the engine reads each row in the form that a column of the row names, and one of its forms is Python's
# pickle. Whoever may write to the store could set it.
#
# So rows in another form are refused before the engine may read them, and the database refuses to store them where it
# can. A row that comes in between runs nothing either: the process of a slot unpickles no class and no function.

_SCHEMA = "dbos"
"""The engine's schema in Postgres."""
_FORM = "serialization"
"""The column that names the form of a row's values. Without a value, the form is that of the worker's settings, the
portable one."""
_ONLY = f"{_FORM} IS NULL OR {_FORM} = 'portable_json'"
_NAME = "ralph_portable"
_LOCK_MS = 2000
"""Other slots continue their work if the constraint cannot be made within this time; a later slot makes it."""
_MOST_NAMED = 3
_LONGEST_NAME = 80


class PortableRows:
    """The engine's tables in one store. Call `close` afterwards."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = make_engine(database)
        self._known: list[tuple[str, list[str]]] = []
        """The tables, when the engine has made them all."""

    def refuse_others(self) -> None:
        """Raises StoreError if a row of the engine's tables is in another form than the portable one."""
        named = []
        with reading(self._engine) as connection:
            for table, columns in self._known or self._tables(connection):
                key = next((name for name in columns if name.endswith("_uuid")), columns[0])
                found = connection.execute(
                    sa.text(f'SELECT "{key}", {_FORM} FROM {table} WHERE NOT ({_ONLY}) LIMIT {_MOST_NAMED}')  # noqa: S608 - names of tables
                )
                named += [f"{table}: {_short(one)} ({_short(form)})" for one, form in found]
        if named:
            raise StoreError(
                f"the store at {self._database.place} has rows that ralph did not write and does not read, because their "
                f"form can run code: {', '.join(named[:_MOST_NAMED])}; find out who can write to the store, and delete them"
            )

    def keep_others_out(self) -> None:
        """Makes the database refuse rows in another form, if the user may change the engine's tables."""
        try:
            with self._engine.begin() as connection:
                if self._database.is_postgres:
                    connection.execute(sa.text(f"SET LOCAL lock_timeout = {_LOCK_MS}"))
                tables = list(self._tables(connection))
                for table, _ in tables:
                    for statement in self._statements(table):
                        connection.execute(sa.text(statement))
                self._known = tables
        except DBAPIError as error:
            # Another slot makes it now, or the table belongs to another user. `refuse_others` looks all the same.
            if not self._database.is_postgres or getattr(error.orig, "sqlstate", None) not in _CANNOT_CHANGE:
                raise

    def close(self) -> None:
        self._engine.dispose()

    def _tables(self, connection: sa.Connection) -> Iterator[tuple[str, list[str]]]:
        """The tables whose rows name a form, quoted, each with the names of its columns."""
        inspector = sa.inspect(connection)
        schema = _SCHEMA if self._database.is_postgres else None
        if schema is not None and not inspector.has_schema(schema):
            return
        for name in (*inspector.get_table_names(schema), *inspector.get_view_names(schema)):
            columns = [str(column["name"]) for column in inspector.get_columns(name, schema)]
            if _FORM in columns:
                yield (f'{schema}."{name}"' if schema is not None else f'"{name}"'), columns

    def _statements(self, table: str) -> Iterator[str]:
        if self._database.is_postgres:
            yield (
                f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_constraint WHERE conname = '{_NAME}' AND conrelid = "
                f"'{table}'::regclass) THEN ALTER TABLE {table} ADD CONSTRAINT {_NAME} CHECK ({_ONLY}); END IF; END $$"
            )
            return
        new = _ONLY.replace(_FORM, f"NEW.{_FORM}")
        for when in ("INSERT", "UPDATE"):
            name = f"{_NAME}_{table.strip(chr(34))}_{when.lower()}"
            yield (
                f'CREATE TRIGGER IF NOT EXISTS "{name}" BEFORE {when} ON {table} WHEN NOT ({new}) '
                "BEGIN SELECT RAISE(ABORT, 'ralph reads rows in the portable form only'); END"
            )


_CANNOT_CHANGE = {
    "42501",  # insufficient_privilege
    "42710",  # duplicate_object
    "42809",  # wrong_object_type: a view
    "55P03",  # lock_not_available
    "40P01",  # deadlock_detected
}


def refuse_other_forms(database: Database) -> None:
    """Raises StoreError as `PortableRows.refuse_others` does. Leaves no connection open."""
    with closing(PortableRows(database)) as rows:
        rows.refuse_others()


def refuse_pickles() -> None:
    """From now on, nothing in this process unpickles a class or a function. Without these, a pickle runs no code. Python
    itself asks before it looks one up, whichever library unpickles. This cannot be undone.
    """

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event == "pickle.find_class":
            raise pickle.UnpicklingError(f"a worker unpickles nothing, and so not {arguments!r}")

    sys.addaudithook(refuse)


def _short(text: object) -> str:
    line = in_one_line(str(text))
    return line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"
