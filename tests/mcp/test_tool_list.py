"""Tests the names and definitions of MCP servers' tools, which come from untrusted lists."""

from __future__ import annotations

from typing import Any

import pytest

from ralph.mcp.toolset import ServerFailedError, tool_name, tools_of, without_duplicates
from ralph.values.redaction import Redactor
from tests.rows import every_row


@every_row(
    ("server", "tool", "name"),
    [
        ("calc", "add", "mcp__calc__add"),
        ("my server.v2", "get/it", "mcp__my_server_v2__get_it"),
        ("plugin:a:b", "x-y_z", "mcp__plugin_a_b__x-y_z"),
        ("café", "ü", "mcp__caf___" + "_"),
    ],
)
def test_names_are_made_as_claude_code_makes_them(server, tool, name) -> None:
    assert tool_name(server, tool) == name


def test_a_long_name_fits_the_api_and_stays_distinct() -> None:
    one, other = tool_name("s" * 40, "t" * 60 + "1"), tool_name("s" * 40, "t" * 60 + "2")
    assert len(one) == len(other) == 64
    assert one != other


def tool(name: Any = "t", **changes: Any) -> dict[str, Any]:
    return {"name": name, "description": "d", "inputSchema": {"type": "object", "properties": {}}} | changes


def test_the_order_depends_on_names_alone() -> None:
    one = tools_of({"b": [tool("y"), tool("x")], "a": [tool("z")]})
    other = tools_of({"a": [tool("z")], "b": [tool("x"), tool("y")]})
    assert [each.definition.name for each in one] == ["mcp__a__z", "mcp__b__x", "mcp__b__y"]
    assert one == other


def test_no_tool_counts_as_one_that_only_reads() -> None:
    [one] = tools_of({"a": [tool(annotations={"readOnlyHint": True})]})
    assert not one.definition.is_read_only


def test_a_server_that_repeats_a_credential_tells_it_to_no_model() -> None:
    secret = "hunter2hunter2"
    told = tool(
        secret,
        description=f"asks db://me:{secret}@host",
        inputSchema={"type": "object", "properties": {secret: {"description": secret}}, "$defs": [secret]},
    )
    [one] = tools_of({"a": [told]}, Redactor([secret]).redact)
    assert one.tool == secret, "the server knows its tool by no other name"
    assert secret not in repr(one.definition)
    assert one.definition.description == "asks db://me:[redacted]@host"


@every_row(
    ("schema", "becomes"),
    [
        (None, {"type": "object"}),
        ([], {"type": "object"}),
        ({"type": "string"}, {"type": "object"}),
        (
            {"$schema": "x", "anyOf": [{}], "type": "object", "properties": {"a": True}},
            {"type": "object", "properties": {"a": True}},
        ),
        (
            {
                "properties": {"id": {"type": "string"}},
                "oneOf": [
                    {"properties": {"kind": {"const": "a"}, "n": {"type": "integer"}, "id": {}}},
                    {"properties": {"kind": {"const": "b"}, "n": {"type": "integer"}}},
                    {"properties": None},
                    True,
                ],
                "allOf": [{"properties": {"more": {}}}],
            },
            {
                "type": "object",
                "properties": {
                    "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]},
                    "n": {"type": "integer"},
                    "id": {"type": "string"},
                    "more": {},
                },
            },
        ),
        ({"anyOf": [{"required": ["a"]}], "oneOf": {}}, {"type": "object"}),
    ],
)
def test_a_schema_is_one_that_the_api_takes(schema, becomes) -> None:
    [one] = tools_of({"a": [tool(inputSchema=schema)]})
    assert one.definition.input_schema == becomes


def test_a_long_description_is_cut_and_a_nameless_tool_left_out() -> None:
    [one] = tools_of({"a": [tool(description="x" * 5000), tool(""), tool(None), {}]})
    assert len(one.definition.description) < 2100
    assert one.definition.description.endswith("[cut]")


@every_row(
    ("listed", "name"),
    [
        ({"a.b": [tool()], "a_b": [tool()]}, "mcp__a_b__t"),
        ({"a": [tool("b__t")], "a__b": [tool()]}, "mcp__a__b__t"),
        ({"a": [tool("x/y"), tool("x.y")]}, "mcp__a__x_y"),
        ({"a": [tool("x"), tool("y.z"), tool("x")], "b": [tool()]}, None),
        ({"a.b": [tool(None)], "a_b": [tool(None)]}, None),
    ],
)
def test_no_two_tools_have_one_name(listed, name) -> None:
    if name is None:
        without_duplicates(tools_of(listed))
        return
    with pytest.raises(ServerFailedError, match=f"would both be called {name}:"):
        without_duplicates(tools_of(listed))
