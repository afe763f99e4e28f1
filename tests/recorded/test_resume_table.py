"""A journal that is cut behind any record must lead to the same tools, records and requests as when the table was
made.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.recorded.raw_journals import recorded_journals
from tests.recorded.resume_table import TABLE, Cut, Resumer, cuts, resumer, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

JOURNALS = recorded_journals()
ROWS = sample()


@pytest.fixture(scope="module")
def made() -> Iterator[Resumer]:
    with resumer() as started:
        yield started


@pytest.mark.parametrize("name", sorted({row["journal"] for row in ROWS}))
def test_a_cut_journal_is_resumed_as_the_table_says(name, made) -> None:
    wrong = []
    for row in ROWS:
        if row["journal"] == name:
            cut = Cut(name, row["records"], row["last"], row["state"])
            came = made.row(cut, JOURNALS[name])
            differs = [key for key in {**row, **came} if row.get(key) != came.get(key)]
            wrong += [f"{cut}\n  {key}: {row.get(key)}\n  now: {came.get(key)}" for key in differs]
    assert not wrong, "\n".join(wrong)


def test_the_table_has_a_row_for_every_cut() -> None:
    keys = ("journal", "records", "last", "state")
    rows = [tuple(json.loads(line)[key] for key in keys) for line in TABLE.read_text().splitlines()]
    assert rows == [
        (cut.journal, cut.records, cut.last, cut.state)
        for name, journal in JOURNALS.items()
        for cut in cuts(name, journal)
    ]
