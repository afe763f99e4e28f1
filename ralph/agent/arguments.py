"""Checks the arguments of a tool call against the tool's schema, and converts values whose meaning is clear. No I/O happens here.

The supported parts of JSON Schema are those that tool definitions use: `type`, `properties`, `required`, `enum`,
`minimum` and `items`. Other keywords and invalid parts of an MCP tool's schema are ignored, because the MCP server checks
the arguments itself.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ralph.values.strict_json import JSON_TYPES, is_number, strict_json
from ralph.values.tool_calls import type_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LONGEST_SHOWN_VALUE = 60
_MOST_FAULTS_NAMED = 5
_BOOLEANS = {"true": True, "false": False}


def fitted_arguments(schema: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of one of ralph's own tools, in the types of the tool's schema where a value of another type
    has only one meaning: a number or a boolean as text, and a whole number with a fraction of 0. A null is left out if the
    argument may be left out. All other values are unchanged.
    """
    properties, required = schema.get("properties", {}), schema.get("required", ())
    fitted = {}
    for name, value in arguments.items():
        wanted = _type_in(properties.get(name)) or "any"
        if value is not None or name in required or _is_of_type(value, wanted):
            fitted[name] = _fitted(value, wanted)
    return fitted


def _fitted(value: Any, wanted: str | list[str]) -> Any:
    """The value in the type that is wanted. The value itself if it has that type, or if its meaning is not clear."""
    meant = value
    if isinstance(value, str) and wanted == "boolean":
        meant = _BOOLEANS.get(value.strip().lower())
    elif isinstance(value, str) and wanted in ("integer", "number"):
        with suppress(ValueError, RecursionError):
            meant = strict_json(value)
    if wanted == "integer" and isinstance(meant, float) and meant.is_integer():
        meant = int(meant)
    return meant if _is_of_type(meant, wanted) else value


def fault_in_arguments(tool_name: str, schema: Mapping[str, Any], arguments: Any) -> str | None:
    """The faults in the arguments of a tool call, each with its path and the expected type. None if there are none.
    `arguments` may be any JSON value.
    """
    if not isinstance(arguments, dict):
        return f"{tool_name}: the arguments must be an object, got {shown_value(arguments)}"
    faults = list(_faults(schema, arguments, path=""))
    if not faults:
        return None
    more = len(faults) - _MOST_FAULTS_NAMED
    named = "; ".join(faults[:_MOST_FAULTS_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return f"{tool_name}: {named}"


def _faults(schema: Any, value: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    where = f'"{path}"' if path else "the value"
    expected = _type_in(schema)
    if expected is not None and not _is_of_type(value, expected):
        yield f"{where} must be {type_names(expected)}, got {shown_value(value)}"
        return
    allowed, minimum = schema.get("enum"), schema.get("minimum")
    if isinstance(allowed, list) and not any(_is_same(value, one) for one in allowed):
        choices = ", ".join(json.dumps(one) for one in allowed)
        yield f"{where} must be one of {choices}, got {shown_value(value)}"
    if is_number(minimum) and is_number(value) and value < minimum:
        yield f"{where} must be at least {minimum}, got {shown_value(value)}"
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
            yield f'"{prefix}{key}" is required ({type_names(_type_in(properties.get(key)) or "any")})'
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
    is_of_type = JSON_TYPES.get(expected)
    return is_of_type is None or is_of_type(value)


def _is_same(value: Any, allowed: Any) -> bool:
    """Whether two values are equal in JSON. In Python, 1 and True are equal, but in JSON they are not."""
    return bool(type(value) is type(allowed) and value == allowed)


def shown_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    if len(text) > _LONGEST_SHOWN_VALUE:
        text = text[:_LONGEST_SHOWN_VALUE] + "..."
    kind = next((name for name, is_of_type in JSON_TYPES.items() if is_of_type(value)), "not JSON")
    return text if value is None else f"{text} ({kind})"
