from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.tools.tool_context import ToolSettings
from ralph.tools.toolbox import LocalToolbox
from ralph.values.answer import ToolCall, ToolOutput
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ralph.mcp.toolset import McpToolset

SECRET = "sk-ant-0123456789"


class Tools:
    """A toolbox with a real clock, a real waiter and real processes. It calls tools as a run does."""

    def __init__(self, home: Path, *, mcp: McpToolset | None = None, **changes: Any) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
        self.settings = replace(ToolSettings(home, environment, kill_grace_s=0.3), **changes)
        clock = SystemClock()
        self.waiter = InboxWaiter(clock)
        self.box = LocalToolbox(
            self.settings, waiter=self.waiter, clock=clock, redactor=Redactor([SECRET]), mcp=mcp
        )

    def call(self, tool: str, arguments: dict[str, Any]) -> ToolOutput:
        [(output, _took_s)] = self.box.run([ToolCall("toolu_1", tool, arguments)])
        return output

    def ok(self, tool: str, **arguments: Any) -> str:
        output = self.call(tool, arguments)
        assert not output.is_error, output.content
        assert isinstance(output.content, str)
        output.content.encode()
        return output.content

    def error(self, tool: str, **arguments: Any) -> str:
        output = self.call(tool, arguments)
        assert output.is_error, output.content
        assert isinstance(output.content, str)
        output.content.encode()
        return output.content


@pytest.fixture
def make_tools(tmp_path: Path) -> Iterator[Callable[..., Tools]]:
    made: list[Tools] = []

    def make(**changes: Any) -> Tools:
        made.append(Tools(tmp_path, **changes))
        return made[-1]

    yield make
    for tools in made:
        tools.box.close()


@pytest.fixture
def tools(make_tools: Callable[..., Tools]) -> Tools:
    return make_tools()


@pytest.fixture
def search_tools(make_tools: Callable[..., Tools]) -> Tools:
    return make_tools(search_timeout_s=20.0)
