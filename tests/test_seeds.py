"""Checks the page about the requirements from which ralph grew: each row must name the tests that hold it, or say
why ralph differs.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from benchmarks.mutants.seeds import PAGE, TEST, seed_rows
from tests.rows import every_row

TESTS = Path(__file__).parent
ROWS = seed_rows()


@cache
def names_in(path: Path) -> set[str]:
    """The names of the tests that pytest finds in a file."""
    return set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))


def test_every_row_has_an_id_of_its_own_and_they_are_in_order() -> None:
    numbers: dict[str, list[int]] = {}
    for identity, *_ in ROWS:
        numbers.setdefault(identity[0], []).append(int(identity[1:]))
    assert list(numbers) == ["F", "D", "A", "P", "Q"]
    for found in numbers.values():
        assert found == list(range(1, len(found) + 1))


@every_row("row", ROWS)
def test_a_row_is_kept_by_tests_or_says_why_it_differs(row: tuple[str, str, str]) -> None:
    _, requirement, kept = row
    assert requirement
    assert TEST.search(kept) or kept.startswith("Differs: ")
    assert TEST.sub("", kept).strip(" ,") == "" or kept.startswith("Differs: ")
    for test in TEST.findall(kept):
        path, _, name = test.partition("::")
        assert name in names_in(TESTS.parent / path), test


def test_the_page_counts_its_rows() -> None:
    differs = sum(kept.startswith("Differs: ") for *_, kept in ROWS)
    assert (
        f"{len(ROWS)} requirements, of which {differs} are kept differently by decision" in PAGE.read_text()
    )
