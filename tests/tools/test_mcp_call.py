"""Tests calls of MCP servers' tools through the toolbox, with a group of servers that needs no process."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mcp.toolset import CallFailedError, McpToolset
from ralph.sandbox import disk_work
from ralph.tools import mcp_call
from ralph.tools.tool_context import ToolContext
from ralph.values.ports import SignalReceived
from ralph.values.tool_choice import ToolLists
from tests.fakes.box import FakeBox, note_of
from tests.tools.conftest import SECRET
from tests.tools.image_files import png

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.tools.conftest import Tools

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


class FakeServers:
    """One server `fake` with one tool `say`, whose result the test chooses."""

    names = ("fake",)

    def __init__(self, answer: dict[str, Any] | BaseException) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.is_closed = False

    def begin(self, start: Any) -> None:
        """There is nothing to start."""

    def tools(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"fake": [{"name": "say", "description": "d", "inputSchema": SCHEMA}]}

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        assert (server, tool) == ("fake", "say")
        self.asked.append(arguments)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def toolbox_of(make_tools: Callable[..., Tools]) -> Callable[..., Tools]:
    def make(servers: FakeServers) -> Tools:
        tools = make_tools(mcp=McpToolset([servers], asked_for=(), lists=ToolLists()))
        tools.box.connect_servers(mcp_call.start_server, mcp_call.run)
        return tools

    return make


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


IMAGE = {"type": "image", "data": base64.b64encode(png(3, 3)).decode(), "mimeType": "image/png"}


def test_a_call_gets_the_servers_text_without_credentials(toolbox_of) -> None:
    servers = FakeServers(text_result(f"the key is {SECRET}"))
    tools = toolbox_of(servers)
    assert [tool.name for tool in tools.box.definitions][-1] == "mcp__fake__say"
    assert tools.ok("mcp__fake__say", text="x", unknown=1) == "the key is [redacted]"
    assert servers.asked == [{"text": "x"}]
    tools.box.close()
    assert servers.is_closed


def test_an_error_holds_no_image_because_the_api_refuses_that(toolbox_of) -> None:
    content = [{"type": "text", "text": "failed"}, IMAGE]
    output = toolbox_of(FakeServers({"content": content, "isError": True})).call("mcp__fake__say", {})
    assert output.is_error
    assert isinstance(output.content, str)
    assert output.content.startswith("failed\n[an image that cannot be shown: image/png")


def test_a_damaged_image_becomes_words(toolbox_of) -> None:
    cut = IMAGE | {"data": base64.b64encode(png(3, 3)[:-12]).decode()}
    text = toolbox_of(FakeServers({"content": [cut]})).ok("mcp__fake__say")
    assert text == "[an image that cannot be shown: the image is damaged: it ends before its IEND chunk]"


def test_a_call_without_a_result_is_an_error(toolbox_of) -> None:
    assert toolbox_of(FakeServers(CallFailedError("gone"))).error("mcp__fake__say") == "gone"


def test_an_interrupted_call_says_what_was_undone_of_it(toolbox_of, monkeypatch) -> None:
    monkeypatch.setattr(ToolContext, "box", FakeBox(SECRET))
    tools = toolbox_of(FakeServers(SignalReceived(15)))
    with pytest.raises(SignalReceived) as stop:
        tools.call("mcp__fake__say", {})
    assert stop.value.undone == note_of("[redacted]")


def test_a_call_is_not_made_while_the_disk_with_protected_files_does_not_answer(
    toolbox_of, monkeypatch
) -> None:
    monkeypatch.setattr(disk_work, "_ANSWERS_WITHIN_S", 0.05)
    monkeypatch.setattr(ToolContext, "box", FakeBox(silent="look"))
    servers = FakeServers(text_result("said"))
    tools = toolbox_of(servers)
    assert "the call was not made: a file system" in tools.error("mcp__fake__say")
    assert servers.asked == []
