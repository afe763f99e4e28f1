"""The quick decoder and the exact decoder must accept the same JSON texts, with the same values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.values.strict_json import DEEPEST, strict_json
from tests.rows import every_row

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(VALUES, st.booleans())
def test_a_value_comes_back_as_it_was_written(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert repr(strict_json(text)) == repr(value)


@every_row("text", ['"\\ud83d"', '"\\udc00x"', '["\\ud83d", "\\u0041"]', '{"a": "\\ud83dA"}'])
def test_half_a_character_is_kept_for_the_other_half(text: str) -> None:
    assert strict_json(text) == json.loads(text)


def test_a_number_longer_than_any_machine_integer_is_exact() -> None:
    assert strict_json("9" * 4000) == int("9" * 4000)


def test_the_last_of_two_equal_keys_counts() -> None:
    assert strict_json('{"a": 1, "a": 2}') == {"a": 2}


REFUSED = [
    *("", "{", "{'a': 1}", "[1,]", '{"a": 1} x', "nul", "01", "1.", "\ufeff{}", '"\t"'),
    *("NaN", "[Infinity]", "-Infinity", "1e999", '{"a": -1e999}', "9" * 5000),
    "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
]


@every_row("text", REFUSED)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which sentence is the decoder's business
        strict_json(text)


def test_what_is_as_deep_as_allowed_is_taken() -> None:
    assert strict_json("[" * DEEPEST + "]" * DEEPEST)
