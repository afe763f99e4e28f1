"""Whole runs with tools of MCP servers that the API would refuse together with every request, and with typed results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.program.mcp.test_mcp_servers import config, result, run, tools_of
from tests.program.model_answers import DONE, calls


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


SCHEMAS = {
    "good": {"type": "object", "properties": {"n": {"type": "integer"}}},
    "union": {
        "type": "object",
        "anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}],
        "properties": {"c": {}},
    },
    "odata": {"type": "object", "properties": {"$filter": {"type": "string"}}},
    "draft4": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}},
    },
    "deep": nested(60),
    "large": {"type": "object", "properties": {"a": {"enum": ["x" * 1000] * 1001}}},
}
LEFT_OUT = {
    "deep": "its schema is nested deeper than 100 levels",
    "draft4": "its schema is invalid in the draft 2020-12 (properties.n.exclusiveMinimum: true)",
    "large": "its schema has 1,0",
    "odata": 'the API takes no property named "$filter"',
}
INFO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "s", "version": "1"},
}
# Lists tools with the schemas in the file `schemas.json`. A call returns its arguments as FastMCP returns a number.
SERVER = f"""
import json, sys
tools = [dict(name=name, inputSchema=schema) for name, schema in json.load(open("schemas.json")).items()]
for line in sys.stdin:
    message = json.loads(line)
    text = json.dumps(message.get("params", dict()).get("arguments"))
    typed = dict(content=[dict(type="text", text=text)], structuredContent=dict(result=json.loads(text)))
    answers = {{"initialize": {INFO!r}, "tools/list": dict(tools=tools), "tools/call": typed, "ping": dict()}}
    if message["method"] in answers:
        print(json.dumps(dict(jsonrpc="2.0", id=message["id"], result=answers[message["method"]])), flush=True)
"""


@pytest.fixture
def servers(ralph) -> tuple[str, str]:
    (ralph.cwd / "schemas.json").write_text(json.dumps(SCHEMAS))
    return "--mcp-config", config(s={"command": "python3", "args": ["-c", SERVER]})


def test_a_tool_that_the_api_refuses_is_left_out_with_a_notice(ralph, serve, servers) -> None:
    """The scripted server refuses such requests as the API does: before, the run ended at its first request (69)."""
    server = serve(calls(("mcp__s__odata", {"$filter": "x"})), DONE)
    ran = run(ralph, *servers).having(0)
    assert tools_of(server)[8:] == ["mcp__s__good", "mcp__s__union"]
    init = next(one for one in ran.objects if one.get("subtype") == "init")
    assert init["tools"] == tools_of(server)
    told = [
        one["text"] for one in ran.objects if one.get("subtype") == "notice" and "is left out" in one["text"]
    ]
    assert [text.partition(": ")[0] for text in told] == [
        f"the MCP tool mcp__s__{name} is left out" for name in LEFT_OUT
    ]
    assert [why in text for text, why in zip(told, LEFT_OUT.values(), strict=True)] == [True] * len(LEFT_OUT)
    assert "There is no tool 'mcp__s__odata'" in result(server, 1)[0]


def test_a_tool_that_nobody_chose_has_no_notice(ralph, serve, servers) -> None:
    serve(DONE)
    ran = run(ralph, *servers, "--disallowed-tools", "mcp__s").having(0)
    assert "is left out" not in ran.stderr


def test_a_typed_result_is_sent_once_and_its_arguments_pass_as_they_are(ralph, serve, servers) -> None:
    given = {"a": "5", "b": None}
    server = serve(calls(("mcp__s__union", given)), calls(("mcp__s__good", {"n": 5})), DONE)
    ran = run(ralph, *servers).having(0)
    assert result(server, 1) == (json.dumps(given), False)
    assert result(server, 2) == ('{"n": 5}', False)
    assert " came as " not in ran.stderr


def test_the_doctor_says_which_tools_are_left_out(ralph, serve, servers) -> None:
    serve()
    ran = ralph("doctor", *servers)
    assert ran.code == 0, ran.stdout
    assert "  ok    MCP servers: s: connected, 2 tools (good, union)" in ran.stdout
    assert ran.stdout.count("  warn  MCP servers: the MCP tool mcp__s__") == len(LEFT_OUT)
