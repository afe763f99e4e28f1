"""Tests which tools of MCP servers are left out, because the API would refuse every request with them."""

from __future__ import annotations

from typing import Any

from ralph.mcp.toolset import LARGEST_BYTES, why_refused
from tests.rows import every_row


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = object_of(a=schema)
    return schema


@every_row(
    ("schema", "why"),
    [
        (object_of(**{"$filter": {}}), 'the API takes no property named "$filter" (only'),
        (object_of(**{"filter[status]": {}}), 'no property named "filter[status]"'),
        (object_of(**{"rule_name[]": {}}), 'no property named "rule_name[]"'),
        (object_of(größe={}), 'no property named "größe"'),
        (object_of(**{"": {}}), 'no property named ""'),
        (object_of(**{"a\n": {}}), "no property named"),
        (object_of(**{"x" * 65: {}}), "no property named"),
        (object_of(a={"type": "None"}), 'invalid in the draft 2020-12 (properties.a.type: "None")'),
        (
            object_of(a={"type": "array", "items": [{"type": "string"}]}),
            "properties.a.items: an array",
        ),
        (object_of(a={"exclusiveMinimum": True}), "properties.a.exclusiveMinimum: true"),
        (object_of(a={"required": True}), "properties.a.required: true"),
        (object_of(a="string"), 'properties.a: "string"'),
        (object_of(a={"anyOf": [{}, {"type": []}]}), "properties.a.anyOf[1].type: an array"),
        (object_of(a={"anyOf": []}), "properties.a.anyOf: an array"),
        ({"type": "object", "properties": None}, "properties: null"),
        ({"type": "object", "properties": []}, "properties: an array"),
        ({"type": "object", "required": ["a", "a"]}, "required"),
        (object_of(a={"enum": "x" * 5000}), "..."),
        (nested(60), "nested deeper than 100 levels"),
        (nested(3000), "nested deeper than 100 levels"),
        (object_of(a={"description": "x" * LARGEST_BYTES}), "over 1,000,000"),
    ],
)
def test_a_schema_that_the_api_refuses_is_named_with_the_reason(schema: dict[str, Any], why: str) -> None:
    found = why_refused(schema)
    assert found is not None
    assert why in found
    assert len(found) < 300


@every_row(
    "schema",
    [
        {"type": "object"},
        object_of(**{"x" * 64: {}, "a.b-c_D9": True}),
        object_of(a={"type": ["string", "null"], "nullable": True, "example": "x", "x-own": [1]}),
        object_of(a={"type": "object", "properties": {"$filter": {"type": "string"}}}),
        object_of(a={"anyOf": [{"$ref": "#/$defs/b"}, {"const": None}], "default": {"type": 5}}),
        {"type": "object", "$defs": {"b c": {"items": False, "prefixItems": [{}]}}},
        object_of(a={"minLength": 1.0, "maximum": 0.5, "multipleOf": 0.01, "enum": [], "uniqueItems": False}),
        object_of(a={"const": {"type": "None"}, "enum": [{"required": True}], "examples": [{"items": []}]}),
        nested(45),
    ],
)
def test_a_schema_that_the_api_takes_is_kept(schema: dict[str, Any]) -> None:
    assert why_refused(schema) is None
