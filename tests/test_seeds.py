"""Checks the page about the requirements from which ralph grew: each row must name the tests that hold it, or say
why ralph differs.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.rows import every_row

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "specs" / "seeds.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    for line in PAGE.read_text().splitlines()
    if re.match(r"\| [A-Z]\d+ \|", line)
]


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
def test_a_row_is_kept_by_tests_or_says_why_it_differs(row: list[str]) -> None:
    _, requirement, kept = row
    assert requirement
    assert TEST.search(kept) or kept.startswith("Differs: ")
    assert TEST.sub("", kept).strip(" ,") == "" or kept.startswith("Differs: ")
    for path, name in TEST.findall(kept):
        assert name in names_in(TESTS.parent / path), f"{path}::{name}"


def test_the_page_counts_its_rows() -> None:
    differs = sum(kept.startswith("Differs: ") for *_, kept in ROWS)
    assert (
        f"{len(ROWS)} requirements, of which {differs} are kept differently by decision" in PAGE.read_text()
    )
