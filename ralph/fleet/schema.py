"""The tables of the fleet's own facts: sets, jobs, attempts, checkpoints, spending, logs and holds. The engine's tables
are not here, and nothing here reads them. Times are seconds since 1970 by the clock of the store.
"""

from __future__ import annotations

import sqlalchemy as sa

from ralph.fleet.database import SCHEMA, Database

metadata = sa.MetaData()

_IS_DUE = "state = 'queued' AND NOT is_queued"

sets = sa.Table(
    "sets",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("limits", sa.LargeBinary, nullable=False),  # SetLimits as JSON
    sa.Column("created_at", sa.Float, nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("set_name", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),  # in the order of the jobs file
    sa.Column("content", sa.LargeBinary, nullable=False),  # `content_of` the job
    sa.Column("repository", sa.Text, nullable=False),
    sa.Column("after", sa.Text, nullable=False),  # the ids that `after` names, in JSON
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),  # of the workflow that is or comes next; the first is 1
    sa.Column("tries", sa.Integer, nullable=False),  # takeups that count towards max_attempts
    sa.Column("generation", sa.Integer, nullable=False),  # all takeups, ever
    sa.Column("not_before", sa.Float, nullable=False),  # the next attempt must not start earlier
    sa.Column("is_queued", sa.Boolean, nullable=False),  # the engine has the workflow of `attempt`
    sa.Column(
        "claimed_until", sa.Float, nullable=False
    ),  # until then one worker alone gives it to the engine
    sa.Column("holder", sa.Text),  # the executor that works on it
    sa.Column("is_cancelled", sa.Boolean, nullable=False),
    sa.Column("exit_code", sa.Integer),
    sa.Column("outcome", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("result", sa.Text),  # the last answer of the agent
    sa.Column("base", sa.Text),  # the commit at which the job began
    sa.Column("commit", sa.Text),  # what was pushed
    sa.Column("planned", sa.Text),  # what is about to be pushed
    sa.Column("turns", sa.Integer, nullable=False),
    sa.Column("cost_usd", sa.Float, nullable=False),  # spent by all attempts, as far as they were told
    sa.Column("reserved_usd", sa.Float, nullable=False),  # what the running attempt may spend at most
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Index("jobs_by_state", "set_name", "state"),
    sa.Index(
        *("jobs_due", "set_name", "position"),
        postgresql_where=sa.text(_IS_DUE),
        sqlite_where=sa.text(_IS_DUE),
    ),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("set_name", sa.Text, primary_key=True),
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("executor", sa.Text, nullable=False),
    sa.Column("machine", sa.Text, nullable=False),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float),
    sa.Column("exit_code", sa.Integer),
    sa.Column("reason", sa.Text),
    sa.Column("turns", sa.Integer),
    sa.Column("cost_usd", sa.Float),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("set_name", sa.Text, primary_key=True),
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("ref", sa.Text),  # None: no file has changed, so there is no commit
    sa.Column("commit", sa.Text),
    sa.Column("state", sa.LargeBinary, nullable=False),  # `pack_state`
    sa.Column("made_at", sa.Float, nullable=False),
)

logs = sa.Table(
    "logs",
    metadata,
    sa.Column(
        "number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
    ),
    sa.Column("set_name", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Index("logs_of_job", "set_name", "job", "number"),
)

# Work that no git host has taken. Only the machine that keeps it takes up the job, to deliver it.
undelivered = sa.Table(
    "undelivered",
    metadata,
    sa.Column("set_name", sa.Text, primary_key=True),
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True),  # of the takeup that left it
    sa.Column("place", sa.Text, nullable=False),  # the id of the state directory
    sa.Column("machine", sa.Text, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),  # to deliver it
    sa.Column("is_retried", sa.Boolean, nullable=False),  # by the user: what did not end with 0 goes on
    sa.Column("is_over", sa.Boolean, nullable=False),  # delivered or discarded: the machine removes it
)

holds = sa.Table(
    "holds",
    metadata,
    sa.Column("credential", sa.Text, primary_key=True),  # a fingerprint, never the key itself
    sa.Column("until", sa.Float, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)

executors = sa.Table(
    "executors",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("machine", sa.Text, nullable=False),
    sa.Column("set_name", sa.Text, nullable=False),
    sa.Column("seen_at", sa.Float, nullable=False),
)


def translated(engine: sa.Engine, database: Database) -> sa.Engine:
    """The engine that finds these tables in the fleet's schema. SQLite has no schemas. There the tables lie beside those
    of the engine of workflows, which has none of these names.
    """
    if database.is_postgres:
        return engine.execution_options(schema_translate_map={None: SCHEMA})
    return engine
