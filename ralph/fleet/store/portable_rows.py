"""Keeps values of the engine's tables that could run code out of a worker. ralph asks the engine for its portable JSON
form. But the engine reads each row in the form that a column of the row names, and one of its forms is Python's pickle.
Whoever may write to the store could set it.

So rows in another form are refused before the engine may read them, and the database refuses to store them where it
can. A row that comes in between runs nothing either: the process of a slot unpickles no class and no function.
"""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ralph.fleet.store.database import StoreError, make_engine, reading
from ralph.values.screen_text import in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.fleet.store.database import Database

_SCHEMA = "dbos"
"""The engine's schema in Postgres."""
_FORM = "serialization"
"""The column that names the form of a row's values. Without a value, the form is that of the worker's settings, the
portable one."""
_ONLY = f"{_FORM} IS NULL OR {_FORM} = 'portable_json'"
_NAME = "ralph_portable"
_LOCK_MS = 2000
"""Other slots go on with their work if the constraint cannot be made within this time; a later slot makes it."""
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
    rows = PortableRows(database)
    try:
        rows.refuse_others()
    finally:
        rows.close()


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
