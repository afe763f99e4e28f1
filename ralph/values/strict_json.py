"""Decodes standard JSON up to a limited depth. All JSON from a server is decoded here. Pure."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import msgspec

DEEPEST = 100
"""The deepest level of nesting that is accepted, so that accepted values can be walked by recursion."""


def strict_json(text: str) -> Any:
    """The value of a JSON text.

    Raises ValueError if the text is not standard JSON (NaN, Infinity and numbers beyond a float are not), or if the
    value is nested too deeply. Raises RecursionError if it is nested so deeply that Python cannot decode it.
    """
    try:
        value = _QUICK.decode(text)
    except (
        ValueError
    ):  # it refuses half characters, which may join later, and describes a fault in less detail
        value = _EXACT.decode(text)
    # Counting brackets is quick, and hardly any text has this many of them.
    if text.count("[") + text.count("{") > DEEPEST and _is_deeper(value, DEEPEST):
        raise ValueError(f"nested deeper than {DEEPEST}")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether the value is nested deeper than `levels`. Goes level by level, without recursion."""
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large")
    return number


_QUICK = msgspec.json.Decoder()
_EXACT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def with_whole_keys(value: Any) -> Any:
    """The JSON value without the keys that hold half of a surrogate pair, at any depth.

    msgspec compares keys as UTF-8 and cannot convert an object with such a key; no key that ralph knows is one.
    """
    if isinstance(value, dict):
        return {key: with_whole_keys(one) for key, one in value.items() if _is_whole(key)}
    return [with_whole_keys(one) for one in value] if isinstance(value, list) else value


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
