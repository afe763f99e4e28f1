"""The ids of a session's calls are a value, although longer values share their memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ralph.conversation.session import CallIds

IDS = st.lists(st.sampled_from("abcdef"), max_size=4)


@given(st.lists(st.tuples(st.integers(min_value=0), IDS), max_size=12))
def test_each_value_has_the_ids_of_those_it_came_from_and_its_own(steps: list[tuple[int, list[str]]]) -> None:
    """Each step makes a value from any earlier one, also from one that others have come from."""
    values: list[tuple[CallIds, set[str]]] = [(CallIds(), set())]
    for number, ids in steps:
        value, expected = values[number % len(values)]
        values.append((value.plus(ids), expected | set(ids)))
    for value, expected in values:
        assert set(value) == expected
        assert len(value) == len(expected)
        assert {one for one in "abcdef" if one in value} == expected


def test_a_long_session_keeps_its_ids_once() -> None:
    ids = CallIds()
    for number in range(1_000):
        ids = ids.plus([f"call_{number}"])
    assert ids._numbers is ids.plus(["next"])._numbers
    assert len(ids) == 1_000
