"""The tables of the fleet's own facts, and the values that their rows become. The engine's tables are not here, and nothing
here reads them. Times are seconds since 1970 by the clock of the store.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from ralph.fleet.decisions import JobState
from ralph.fleet.jobs import Job, SetLimits, job_from
from ralph.fleet.store.database import SCHEMA, Database

if TYPE_CHECKING:
    from collections.abc import Mapping

FINAL_STATES = tuple(state.value for state in JobState if state.is_final)


class Kept(Struct, frozen=True, kw_only=True):
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
    """Tries to deliver it."""
    is_retried: bool = False
    """By the user: what did not end with 0 goes on."""
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
    kept: Kept | None = None

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
        if types[0] is not Kept:
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
undelivered = _table("undelivered", Kept, "set_name job generation")
checkpoints = _table(
    "checkpoints",
    {
        "set_name": str,
        "job": str,
        "generation": int,
        "ref": str | None,
        "commit": str | None,  # None: no file has changed
        "state": bytes,
        "made_at": float,  # `pack_state`
    },
    "set_name job",
)
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


def job_row(row: Any, kept: Kept | None = None) -> JobRow:
    return JobRow(**{**row._mapping, "state": JobState(row.state), "kept": kept})  # noqa: SLF001 - SQLAlchemy's public name


def kept_row(row: Any) -> Kept:
    return Kept(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name


def limits_from(text: bytes) -> SetLimits:
    return msgspec.json.decode(text, type=SetLimits)


def translated(engine: sa.Engine, database: Database) -> sa.Engine:
    """The engine that finds these tables in the fleet's schema. SQLite has no schemas. There the tables lie beside those
    of the engine of workflows, which has none of these names.
    """
    if database.is_postgres:
        return engine.execution_options(schema_translate_map={None: SCHEMA})
    return engine
