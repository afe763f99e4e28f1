"""Says why the API would refuse the input schema of an MCP tool. It would refuse every request with that tool, so that a
single tool would end each run at its first request. No I/O happens here.

The API wants a valid schema of the draft 2020-12, and restricts the names of the properties at its top (both with status
400). `jsonschema` could check the former too, but it takes 0.1 s to import and 3 ms for a small schema.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ralph.values.report import shown
from ralph.values.strict_json import DEEPEST, JSON_TYPES, is_deeper, is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LARGEST_BYTES = 1_000_000
"""The size of the largest schema. It would fill the window of most models, and a request may have 32 MB."""
_PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def why_refused(schema: Mapping[str, Any]) -> str | None:
    """The reason for which the API refuses the schema, or None if it takes it."""
    if is_deeper(schema, DEEPEST):
        return f"its schema is nested deeper than {DEEPEST} levels"
    size = len(json.dumps(schema))
    if size > LARGEST_BYTES:
        return f"its schema has {size:,} bytes, over {LARGEST_BYTES:,}"
    fault = next(_faults(schema), None)
    if fault is not None:
        return f"its schema is invalid in the draft 2020-12 ({fault})"
    names = (name for name in schema.get("properties", ()) if not _PROPERTY_NAME.fullmatch(name))
    wrong = next(names, None)
    if wrong is None:
        return None
    return f"the API takes no property named {shown(wrong)} (only 1 to 64 of a-z, A-Z, 0-9, _, . and -)"


def _faults(schema: Any) -> Iterator[str]:
    """The faults of a schema and of all schemas inside it. Each is the path of a wrong value."""
    waiting = [("", schema)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            yield f"{path.lstrip('.')}: {shown(one)} is no schema"
            continue
        for keyword, value in one.items():
            where = f"{path}.{keyword}"
            if not _KEYWORDS.get(keyword, _is_anything)(value):
                yield f"{where.lstrip('.')}: {shown(value)}"
            elif keyword in _ONE:
                waiting.append((where, value))
            elif keyword in _NAMED:
                waiting += [(f"{where}.{name}", inner) for name, inner in value.items()]
            elif keyword in _SEVERAL:
                waiting += [(f"{where}[{index}]", inner) for index, inner in enumerate(value)]


def _is_anything(_value: Any) -> bool:
    return True


def _is_size(value: Any) -> bool:
    return is_number(value) and value >= 0 and value == int(value)


def _are_names(value: Any) -> bool:
    is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return is_list and len(set(value)) == len(value)


def _is_type(value: Any) -> bool:
    several = [value] if isinstance(value, str) else value
    return _are_names(several) and bool(several) and JSON_TYPES.keys() >= set(several)


_ONE = frozenset(
    "additionalProperties contains contentSchema else if items not propertyNames then "
    "unevaluatedItems unevaluatedProperties".split()
)
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_TEXTS = (
    "$anchor $comment $dynamicAnchor $dynamicRef $id $ref $schema contentEncoding contentMediaType description format "
    "pattern title".split()
)
_KEYWORDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_NAMED, JSON_TYPES["object"]),
    **dict.fromkeys(_SEVERAL, lambda value: isinstance(value, list) and bool(value)),
    **dict.fromkeys(_TEXTS, JSON_TYPES["string"]),
    **dict.fromkeys(("deprecated", "readOnly", "uniqueItems", "writeOnly"), JSON_TYPES["boolean"]),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), is_number),
    **dict.fromkeys(("maxContains", "maxItems", "maxLength", "maxProperties"), _is_size),
    **dict.fromkeys(("minContains", "minItems", "minLength", "minProperties"), _is_size),
    **dict.fromkeys(("enum", "examples"), JSON_TYPES["array"]),
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
    "multipleOf": lambda value: is_number(value) and value > 0,
    "required": _are_names,
    "type": _is_type,
}
"""For each keyword, whether a value has the form that the draft wants. Schemas in the value are looked at afterwards."""
