"""Decodes standard JSON with limited nesting. No I/O happens here. It is meant for JSON that ralph has not written
itself, such as answers of servers, reports of models and control lines.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from ralph.values.nesting import is_deeper

if TYPE_CHECKING:
    from collections.abc import Callable

DEEPEST = 100
"""The maximum depth of nesting. It is so low that recursive functions can process every accepted value."""


def strict_json(text: str) -> Any:
    """Decodes a JSON text.

    Raises ValueError if the text is not standard JSON (NaN, Infinity and numbers too large for a float are not), or
    if the value is nested more than `DEEPEST` levels deep. Raises RecursionError if the nesting is too deep for
    Python's decoder.
    """
    try:
        value = _QUICK.decode(text)
    except ValueError:
        # msgspec also refuses half of a surrogate pair, although the other half may arrive in the next delta. And the
        # messages of the standard library describe a fault in more detail.
        value = _EXACT.decode(text)
    # Counting brackets is quick, and hardly any text has so many that the depth must be measured.
    if text.count("[") + text.count("{") > DEEPEST and is_deeper(value, DEEPEST):
        raise ValueError(f"nested deeper than {DEEPEST}")
    return value


def unambiguous_json(text: str) -> Any:
    """Decodes as `strict_json`, but raises ValueError if an object has a key twice. `strict_json` takes the last of
    equal keys.
    """
    _WITH_KEYS_ONCE.decode(text)
    return strict_json(text)


def clear_object(text: str) -> dict[str, Any]:
    """Decodes a JSON object that is not standard JSON, although its meaning is clear: its strings contain raw line
    breaks or tabs, or the whole object is written as one string.

    Raises ValueError for any other text, and RecursionError as `strict_json` does.
    """
    value: Any = text
    for _ in range(2):
        if not isinstance(value, str) or re.search(_OTHER_CONTROL_CHARACTER, value):
            break
        value = _CLEAR.decode(value)
    if not isinstance(value, dict) or is_deeper(value, DEEPEST):
        raise ValueError("no object whose meaning is clear")
    check_encodable(value)
    return value


def check_encodable(value: Any) -> None:
    """Raises ValueError for values that JSON does not allow: NaN, Infinity (also written as 1e999) and lone
    surrogates.
    """
    # The decoder has joined the two halves of a surrogate pair. A single half is refused here, because no command
    # could receive it.
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _once(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in entries:
        if key in found:
            raise ValueError(f"the key {key!r} occurs twice in one object")
        found[key] = value
    return found


def is_number(value: Any) -> bool:
    """Whether a value is a number in JSON. In Python, booleans, NaN and Infinity are numbers too, but not in JSON."""
    # `math.isfinite` refuses an int of 400 digits.
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf


JSON_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": is_number,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
"""For each type of JSON, whether a value belongs to it. An error message names the first one that does."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large")
    return number


_QUICK = msgspec.json.Decoder()
_WITH_KEYS_ONCE = json.JSONDecoder(object_pairs_hook=_once)
_CLEAR = json.JSONDecoder(strict=False, object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite)
_OTHER_CONTROL_CHARACTER = r"[\x00-\x08\x0b\x0c\x0e-\x1f]"
_EXACT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def with_whole_keys(value: Any) -> Any:
    """The JSON value without those object entries, at any depth, whose key contains half of a surrogate pair.

    msgspec cannot convert an object with such a key, because it encodes keys as UTF-8 to compare them. Ralph reads
    none of these entries.
    """
    if isinstance(value, dict):
        return {key: with_whole_keys(one) for key, one in value.items() if is_encodable(key)}
    return [with_whole_keys(one) for one in value] if isinstance(value, list) else value


def is_encodable(text: str) -> bool:
    """Whether the text has a form in UTF-8. Half of a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
