from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

import pytest

from ralph.loop.annotated_json import read_as


class Color(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: int


@dataclass(frozen=True)
class Outer:
    name: str
    share: float = 0.5
    color: Color | None = None
    inner: Inner | None = None
    many: tuple[Inner, ...] = field(default=())
    is_on: bool = False


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"name": "a"}, Outer("a")),
        ({"name": "a", "unknown": 1}, Outer("a")),
        ({"name": "a", "share": 2}, Outer("a", 2.0)),
        ({"name": "a", "color": "red", "inner": {"number": 3}}, Outer("a", color=Color.RED, inner=Inner(3))),
        (
            {"name": "a", "color": None, "many": [{"number": 1}, {"number": 2}]},
            Outer("a", many=(Inner(1), Inner(2))),
        ),
    ],
)
def test_a_value_that_fits_is_read(value: object, read: Outer) -> None:
    assert read_as(Outer, value) == read


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "it must be an object"),
        ({}, "name is missing"),
        ({"name": 1}, "name must be of type str"),
        ({"name": None}, "name must be of type str"),
        ({"name": "a", "share": "1"}, "share must be of type float"),
        ({"name": "a", "share": True}, "share must be of type float"),
        ({"name": "a", "is_on": 1}, "is_on must be of type bool"),
        ({"name": "a", "color": "blue"}, "color cannot be 'blue'"),
        ({"name": "a", "color": ["red"]}, "color cannot be"),
        ({"name": "a", "inner": {"number": True}}, "inner.number must be of type int"),
        ({"name": "a", "inner": 3}, "inner must be an object"),
        ({"name": "a", "many": {}}, "many must be a list"),
        ({"name": "a", "many": [{"number": 1}, {}]}, "many[1].number is missing"),
    ],
)
def test_one_that_does_not_fit_is_refused_by_its_place(value: object, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_as(Outer, value)
