"""Runs a table of similar rows as one test, which tries every row and names those that fail.

Use `pytest.mark.parametrize` instead for rows that each test a promise of their own: there, each row is a result
with its own set-up.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_PARAM = type(pytest.param(None))
MOST_NAMED = 5
"""The most failing rows that are shown. Further ones are only counted."""


def every_row(
    names: str | Sequence[str], rows: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that is called like `pytest.mark.parametrize`. Raises the failure of the first failing row, with
    a note about the other ones.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [_named_cells(number, row, len(columns)) for number, row in enumerate(rows)]
    assert table, "a table without rows"

    def wrapped(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def tries_all(**fixtures: Any) -> None:
            failures = []
            for name, cells in table:
                row = dict(zip(columns, cells, strict=True))
                try:
                    test(**fixtures, **row)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # raised below, when all rows were tried
                    error.add_note(f"row {name}: {row!r:.2000}")
                    failures.append(error)
            if failures:
                for other in failures[1:MOST_NAMED]:
                    failures[0].add_note("also " + other.__notes__[0])
                failures[0].add_note(f"{len(failures)} of {len(table)} rows failed")
                raise failures[0]

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in columns]
        tries_all.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # what pytest reads
        return tries_all

    return wrapped


def _named_cells(number: int, row: Any, columns: int) -> tuple[object, tuple[Any, ...]]:
    name: object = number
    if isinstance(row, _PARAM):
        assert not row.marks, "a row with marks is a test of its own"
        name = row.id or number
        row = row.values if columns > 1 else row.values[0]
    return name, tuple(row) if columns > 1 else (row,)
