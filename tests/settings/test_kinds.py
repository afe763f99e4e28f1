"""Tests which values a setting accepts, from every source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.settings.tables import ALL_KEYS, in_milliseconds
from ralph.settings.targets import KINDS
from ralph.values.setting import DURATION, SECONDS, SWITCH, Kind
from tests.rows import every_row

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.just("\udcff"),  # a byte of a variable that is not text
    st.lists(st.text()),
    st.dictionaries(st.text(), st.text()),
)


@given(ANYTHING, st.sampled_from([*(key.kind for key in ALL_KEYS), *KINDS.values()]))
def test_a_kind_gives_a_value_or_says_in_one_line_what_it_must_be(raw: object, kind: Kind) -> None:
    said = ""
    try:
        kind.decoded(raw, is_text=isinstance(raw, str))
    except ValueError as error:
        said = str(error)
    assert not said or said.startswith(("must ", "is not ", "has the unknown key ", "needs "))
    assert "\n" not in said


def test_huge_number_is_refused_and_not_spelled_out() -> None:
    with pytest.raises(ValueError, match="a huge number"):
        SECONDS.decoded(10**5000)


def test_long_value_is_cut() -> None:
    with pytest.raises(ValueError, match=r"x\.\.\.$"):
        SWITCH.decoded("x" * 500)


@every_row(("text", "in_seconds"), [("0", 0), ("1", 0.001), ("1000", 1), ("9" * 15, 999999999999.999)])
def test_milliseconds_become_seconds(text: str, in_seconds: float) -> None:
    read = in_milliseconds("VARIABLE", "").read
    assert read is not None
    assert read(text) == in_seconds


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
    assert DURATION.decoded(text) == in_seconds


@every_row("text", ["", " ", "soon", "5x", "-5", "30m1h", "1h30", "100000h", "nan", "1e3", "٣m", "h", "0m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be"):
        DURATION.decoded(text)
