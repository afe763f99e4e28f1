from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.settings import checks as must_be
from ralph.values.endpoint import header_table
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.text()),
    st.dictionaries(st.text(), st.none()),
)
CHECKS = [
    must_be.text,
    must_be.base_url,
    must_be.path,
    must_be.boolean,
    must_be.one_of("a", "b"),
    must_be.whole(1),
    must_be.seconds,
    must_be.positive_seconds,
    must_be.seconds_or_none,
    must_be.duration,
    must_be.tool_names,
    must_be.variable_names,
    must_be.key_variables,
    must_be.target_name,
    must_be.comma_separated,
    must_be.dollars,
    header_table,
]


@given(ANYTHING, st.sampled_from(CHECKS))
def test_check_gives_a_value_or_says_in_one_line_what_it_must_be(
    value: object, check: Callable[[object], object]
) -> None:
    said = ""
    try:
        check(value)
    except ValueError as error:
        said = str(error)
    assert not said or said.startswith(("must ", "is not "))
    assert "\n" not in said


def test_huge_number_is_refused_and_not_spelled_out() -> None:
    with pytest.raises(ValueError, match="a huge number"):
        must_be.seconds(10**5000)


def test_long_value_is_cut() -> None:
    with pytest.raises(ValueError, match=r"x\.\.\.$"):
        must_be.boolean("x" * 500)


@every_row(
    ("text", "names"),
    [
        ("", []),
        (" , ", []),
        ("Read", ["Read"]),
        ("Read,Edit Bash,,Grep", ["Read", "Edit", "Bash", "Grep"]),
        ("Bash(git add:*),Read", ["Bash(git add:*)", "Read"]),
        ("Bash(git", ["Bash(git"]),
        ("Bash(a) Bash(b)", ["Bash(a)", "Bash(b)"]),
        (")(", [")("]),
    ],
)
def test_names_are_split_outside_of_parentheses(text: str, names: list[str]) -> None:
    assert must_be.split_names(text) == names


@every_row(("text", "in_seconds"), [("0", 0), ("1", 0.001), ("1000", 1), ("9" * 15, 999999999999.999)])
def test_milliseconds_become_seconds(text: str, in_seconds: float) -> None:
    assert must_be.milliseconds(text) == in_seconds


@every_row(
    ("text", "in_seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("0.5", 0.5),
        (" 30M ", 1800),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1d1h1m1s", 90_061),
        ("1h 30m", 5400),
        ("1.5 h", 5400),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, in_seconds: float) -> None:
    assert must_be.duration(text) == in_seconds


@every_row("text", ["", " ", "soon", "5x", "-5", "30m1h", "1h30", "100000h", "nan", "1e3", "٣m", "h", "0m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be"):
        must_be.duration(text)
