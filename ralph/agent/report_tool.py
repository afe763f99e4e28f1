"""The definition of the tool `final_report` with the user's JSON Schema for the payload, and a walk through the
schemas inside a schema. Resolves no reference to another document, and checks no report.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ralph.values.answer import FINAL_REPORT, ToolDefinition
from ralph.values.report import STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


DEFAULT_DRAFT = "https://json-schema.org/draft/2020-12/schema"

# Keywords of JSON Schema since draft 4 whose value is an object that maps names to schemas.
_NAMED_SCHEMAS = {
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
}
# Keywords of JSON Schema since draft 4 whose value is a schema or a list of schemas.
_SCHEMAS = (
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contentSchema", "propertyNames"}
    | {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"}
    | {"additionalProperties", "unevaluatedProperties"}
)


def report_tool(payload_schema: dict[str, Any] | None) -> ToolDefinition:
    """`payload_schema` is None if a report has no payload. A payload is optional, because a failed task has none.
    Another draft than the default is named at the top, so that a resumed session can check reports with the
    recorded definition alone.
    """
    once = "Call this exactly once, as your very last action, when the task is done or cannot be done."
    properties: dict[str, Any] = {
        "status": {"type": "string", "enum": list(STATUSES)},
        "summary": {
            "type": "string",
            "minLength": 1,
            "description": "what was done, or why it could not be done",
        },
    }
    draft: dict[str, str] = {}
    how = 'Use status "failure" when the task could not be done.'
    if payload_schema is not None:
        properties["payload"] = _embedded(payload_schema)
        how = (
            'Use status "success" with the payload, or "failure", for which the payload may be left out, when the '
            "task could not be done."
        )
        named = payload_schema.get("$schema", DEFAULT_DRAFT)
        draft = {} if named.rstrip("#") == DEFAULT_DRAFT else {"$schema": named}
    schema = {**draft, "type": "object", "properties": properties, "required": ["status", "summary"]}
    return ToolDefinition(FINAL_REPORT, f"{once} {how}", schema)


def has_payload(tool: ToolDefinition) -> bool:
    return "payload" in tool.input_schema["properties"]


def _embedded(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of the schema for `properties.payload`."""
    inside: dict[str, Any] = json.loads(json.dumps(schema))
    # `schemas_within` follows all references before it returns, so that none of them has been changed yet.
    for _, one in schemas_within(inside):
        fragment = own_fragment(schema, one.get("$ref"))
        if fragment is not None:
            one["$ref"] = f"#/properties/payload{fragment}"
    named = {"$schema", "id" if is_draft_4(schema) else "$id"}
    return {key: value for key, value in inside.items() if key not in named}


def schemas_within(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """`schema` and all schemas inside it or named by a `$ref`, each with its JSON pointer."""
    found: list[tuple[str, dict[str, Any]]] = []
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("#", schema)]
    while waiting:
        pointer, one = waiting.pop()
        if not isinstance(one, dict) or id(one) in seen:
            continue
        seen.add(id(one))
        found.append((pointer, one))
        waiting.extend(reversed(list(direct_subschemas(pointer, one))))
        fragment = own_fragment(schema, one.get("$ref"))
        if fragment is not None:
            waiting.append((f"#{fragment}", leads_to(schema, fragment)))
    return found


def direct_subschemas(pointer: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly in `schema`, whose JSON pointer is `pointer`, each with its own."""
    for key, value in schema.items():
        if key in _NAMED_SCHEMAS and isinstance(value, dict):
            for name, inner in value.items():
                yield f"{pointer}/{key}/{name.replace('~', '~0').replace('/', '~1')}", inner
        elif key in _SCHEMAS and isinstance(value, list):
            yield from ((f"{pointer}/{key}/{index}", inner) for index, inner in enumerate(value))
        elif key in _SCHEMAS:
            yield f"{pointer}/{key}", value


def own_fragment(schema: Mapping[str, Any], ref: object) -> str | None:
    """The part behind the `#` of a reference into `schema` itself, else None."""
    if not isinstance(ref, str):
        return None
    document, _, fragment = ref.partition("#")
    return fragment if document in ("", root_id(schema)) else None


def root_id(schema: Mapping[str, Any]) -> str:
    """The id without a `#` at its end. Empty if the schema states none."""
    named = schema.get("id" if is_draft_4(schema) else "$id", "")
    return named.rstrip("#") if isinstance(named, str) else ""


def is_draft_4(schema: Mapping[str, Any]) -> bool:
    return str(schema.get("$schema")).startswith("http://json-schema.org/draft-04/")


def leads_to(schema: Mapping[str, Any], fragment: str) -> Any:
    """The part of `schema` at the JSON pointer `fragment`. None if there is no such part or it is no pointer."""
    here: Any = schema
    if fragment and not fragment.startswith("/"):
        return None
    for escaped in unquote(fragment).split("/")[1:]:
        part = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and part in here:
            here = here[part]
        elif isinstance(here, list) and re.fullmatch("[0-9]{1,9}", part) and int(part) < len(here):
            here = here[int(part)]
        else:
            return None
    return here
