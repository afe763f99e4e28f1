"""Checks the arguments of a tool call against the tool's schema. Each error is a sentence that tells the model what
to correct.

This module supports the parts of JSON Schema that tool definitions use: `type`, `properties`, `required`, `enum`,
`minimum` and `items`. It ignores other keywords, and converts no value. It also ignores invalid parts of an MCP
tool's schema, because the MCP server checks the arguments itself.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.values.tool_calls import unknown_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_LONGEST_SHOWN_VALUE = 60
_MOST_FAULTS_NAMED = 5

_ARTICLE_AND_NAME = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


class ArgumentCheck(Struct, frozen=True):
    error: str | None
    """One sentence per fault, with the path and the expected type. None if the call may run."""
    ignored: tuple[str, ...] = ()
    """Top-level arguments that the schema does not contain. The call runs without them."""


def check_arguments(tool_name: str, schema: Mapping[str, Any], arguments: Any) -> ArgumentCheck:
    """Checks the arguments of a tool call. `arguments` may be any JSON value."""
    if not isinstance(arguments, dict):
        return ArgumentCheck(f"{tool_name}: the arguments must be an object, got {_shown(arguments)}")
    faults = list(_faults(schema, arguments, path=""))
    ignored = unknown_arguments(schema, arguments)
    if not faults:
        return ArgumentCheck(None, ignored)
    more = len(faults) - _MOST_FAULTS_NAMED
    named = "; ".join(faults[:_MOST_FAULTS_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return ArgumentCheck(f"{tool_name}: {named}", ignored)


def _faults(schema: Any, value: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    where = f'"{path}"' if path else "the value"
    expected = _type_in(schema)
    if expected is not None and not _is_of_type(value, expected):
        yield f"{where} must be {_named(expected)}, got {_shown(value)}"
        return
    allowed, minimum = schema.get("enum"), schema.get("minimum")
    if isinstance(allowed, list) and not any(_is_same(value, one) for one in allowed):
        choices = ", ".join(json.dumps(one) for one in allowed)
        yield f"{where} must be one of {choices}, got {_shown(value)}"
    if _is_number(minimum) and _is_number(value) and value < minimum:
        yield f"{where} must be at least {minimum}, got {_shown(value)}"
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(schema.get("items"), item, f"{path}[{index}]")
    if isinstance(value, dict):
        yield from _faults_inside(schema, value, path)


def _faults_inside(schema: Mapping[str, Any], value: dict[str, Any], path: str) -> Iterator[str]:
    prefix = f"{path}." if path else ""
    properties, required = schema.get("properties"), schema.get("required")
    properties = properties if isinstance(properties, dict) else {}
    for key in required if isinstance(required, list) else ():
        if isinstance(key, str) and key not in value:
            yield f'"{prefix}{key}" is required ({_named(_type_in(properties.get(key)) or "any")})'
    for key, item in value.items():
        if key in properties:
            yield from _faults(properties[key], item, f"{prefix}{key}")


def _type_in(schema: Any) -> str | list[str] | None:
    """The type or the types that the schema requires. None if the schema names no type."""
    expected = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(expected, list) and expected and all(isinstance(one, str) for one in expected):
        return expected
    return expected if isinstance(expected, str) else None


def _is_of_type(value: Any, expected: str | list[str]) -> bool:
    if isinstance(expected, list):
        return any(_is_of_type(value, one) for one in expected)
    is_of_type = _TYPES.get(expected)
    return is_of_type is None or is_of_type(value)


def _is_number(value: Any) -> bool:
    """Whether a value is a number in JSON. In Python, booleans, NaN and Infinity are numbers too, but not in JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# An error message names a value by the first of these types to which it belongs.
_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": _is_number,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _is_same(value: Any, allowed: Any) -> bool:
    """Whether two values are equal in JSON. In Python, 1 and True are equal, but in JSON they are not."""
    return bool(type(value) is type(allowed) and value == allowed)


def _named(expected: str | list[str]) -> str:
    if isinstance(expected, list):
        return " or ".join(_named(one) for one in expected)
    return _ARTICLE_AND_NAME.get(expected, expected)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    if len(text) > _LONGEST_SHOWN_VALUE:
        text = text[:_LONGEST_SHOWN_VALUE] + "..."
    return text if value is None else f"{text} ({_type_name(value)})"


def _type_name(value: Any) -> str:
    return next((name for name, is_of_type in _TYPES.items() if is_of_type(value)), "not JSON")
