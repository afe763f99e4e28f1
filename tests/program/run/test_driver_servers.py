"""MCP servers in a driver's own process: their messages pass as control requests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.program.driver import results
from tests.program.model_answers import DONE, calls, told
from tests.program.run.test_driver_hooks import asked, reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.program.driver import Driver, Line

SDK = json.dumps({"mcpServers": {"calc": {"type": "sdk", "name": "calc"}}})
ADD = {
    "name": "add",
    "description": "Adds.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
}


def server(message: dict[str, Any]) -> dict[str, Any]:
    """The result of a message to a small server with one tool, whose list has two pages."""
    params = message.get("params", {})
    match message["method"]:
        case "initialize":
            return {"protocolVersion": params["protocolVersion"], "capabilities": {}, "serverInfo": {}}
        case "tools/list" if "cursor" not in params:
            return {"tools": [], "nextCursor": "two"}
        case "tools/list":
            return {"tools": [ADD]}
        case "tools/call":
            total = sum(params["arguments"].values())
            return {"content": [{"type": "text", "text": str(total)}], "isError": False}
    return {}


def serve_tools(
    driver: Driver, count: int, answer: Callable[[dict[str, Any]], dict[str, Any]] = server
) -> list[Line]:
    """Answers the first `count` messages to the driver's server, and returns them."""
    messages = []
    for nth in range(1, count + 1):
        request = asked(driver, nth)
        message = request["request"]["message"]
        response = {"jsonrpc": "2.0", "id": message.get("id", 0), "result": answer(message)}
        reply(driver, request, {"mcp_response": response})
        messages.append(message)
    return messages


@pytest.mark.parametrize("way", ["option", "initialize"])
def test_a_model_calls_a_tool_of_the_drivers_own_server(drive, serve, way) -> None:
    api = serve(calls(("mcp__calc__add", {"a": 2, "b": 3})), DONE)
    driver = drive(*(("--mcp-config", SDK) if way == "option" else ()))
    # The answer to `initialize` comes first: a driver may answer its servers' messages only after it.
    fields = {"sdkMcpServers": ["calc"]} if way == "initialize" else {}
    assert driver.ask("initialize", **fields)["models"]
    driver.say("go")
    messages = serve_tools(driver, 5)
    assert [one["method"] for one in messages] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/list",
        "tools/call",
    ]
    driver.result()
    status = driver.ask("mcp_status")["mcpServers"]
    [tool] = driver.ask("get_context_usage")["mcpTools"]
    [result] = results(driver.finish())
    assert result["subtype"] == "success"
    assert told(api)[0]["content"] == "5"
    assert [(one["name"], one["status"], one["tools"][0]["name"]) for one in status] == [
        ("calc", "connected", "add")
    ]
    assert (tool.pop("tokens") > 0, tool) == (
        True,
        {"name": "mcp__calc__add", "serverName": "calc", "isLoaded": True},
    )
    init = driver.event("init")
    assert "mcp__calc__add" in init["tools"]
    assert init["mcp_servers"] == [{"name": "calc", "status": "connected"}]


def test_a_server_that_gives_no_tools_ends_the_run_before_a_request_exits_78(drive, serve) -> None:
    api = serve(DONE)
    driver = drive("--mcp-config", SDK)
    driver.ask("initialize")
    driver.say("go")
    reply(driver, asked(driver), error="no such server")
    ran = driver.finish()
    assert (ran.code, api.request_count) == (78, 0)
    assert "the driver's MCP server 'calc' is not connected: no such server" in ran.stderr


@pytest.mark.parametrize(("code", "exit_code"), [(-32601, 0), (-32603, 78)])
def test_a_server_that_does_not_know_the_question_for_tools_has_none(drive, serve, code, exit_code) -> None:
    """That of @zed-industries/claude-code-acp 0.16.2 says that it has tools, and has none for an editor that gives it no files."""
    serve(DONE)
    driver = drive("--mcp-config", SDK)
    driver.ask("initialize")
    driver.say("go")
    serve_tools(driver, 2)
    refused = {"jsonrpc": "2.0", "id": 2, "error": {"code": code, "message": "no list"}}
    reply(driver, asked(driver, 3), {"mcp_response": refused})
    ran = driver.finish().having(exit_code)
    assert ("is not connected: no list" in ran.stderr) == bool(exit_code)


def test_a_call_without_a_result_is_an_error_that_the_model_reads(drive, serve) -> None:
    api = serve(*(calls(("mcp__calc__add", {"a": number, "b": 3})) for number in range(3)), DONE)
    driver = drive("--mcp-config", SDK)
    driver.ask("initialize")
    driver.say("go")
    serve_tools(driver, 4)
    refused = {"jsonrpc": "2.0", "id": 4, "error": {"code": -32602, "message": "b is missing"}}
    reply(driver, asked(driver, 5), {"mcp_response": refused})
    reply(driver, asked(driver, 6), {"mcp_response": {"result": 5}})
    asked(driver, 7)  # the driver leaves
    assert driver.finish().code == 0
    for nth in range(1, 4):
        [said] = told(api, nth)
        assert said["is_error"]
        assert "gave no result" in said["content"]


def test_a_driver_that_is_stopped_while_its_server_works_leaves_a_valid_session(drive, serve) -> None:
    api = serve(calls(("mcp__calc__add", {"a": 2, "b": 3})), DONE)
    driver = drive("--mcp-config", SDK)
    driver.ask("initialize")
    driver.say("go")
    serve_tools(driver, 4)
    request = asked(driver, 5)
    assert driver.ask("interrupt")["interrupted"] is True
    driver.result()
    cancelled = driver.wait_for(lambda line: line["type"] == "control_cancel_request")
    assert cancelled["request_id"] == request["request_id"]
    driver.say("on")
    assert driver.result(2)["subtype"] == "success"
    assert driver.finish().code == 0
    assert "interrupted" in str(told(api)[0]["content"])


def test_a_servers_own_messages_are_answered(drive, serve) -> None:
    serve(DONE)
    driver = drive()
    driver.say("go")
    driver.result()
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    assert driver.ask("mcp_message", server_name="calc", message=changed) == {}
    requested = {"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage"}
    answer = driver.ask("mcp_message", server_name="calc", message=requested)
    assert answer["mcp_response"]["error"]["code"] == -32601
    driver.finish()


def test_a_drivers_server_without_a_driver_exits_78(ralph, serve) -> None:
    api = serve(DONE)
    ran = ralph("go", "--mcp-config", SDK)
    assert (ran.code, api.request_count) == (78, 0)
    assert "needs --input-format stream-json" in ran.stderr


def test_commands_are_listed_for_the_driver(drive, serve, ralph) -> None:
    serve(DONE)
    folder = ralph.cwd / ".claude" / "commands"
    folder.mkdir(parents=True)
    (folder / "fix.md").write_text("---\ndescription: Mends it.\nargument-hint: <file>\n---\nFix $1.\n")
    driver = drive()
    commands = driver.ask("initialize")["commands"]
    driver.say("go")
    driver.finish()
    assert commands == [{"name": "fix", "description": "Mends it.", "argumentHint": "<file>"}]
