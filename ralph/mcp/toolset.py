"""The MCP tools of a run, from all MCP servers. The list of tools is fixed when the servers are connected. If a
server changes its tools later, this has no effect, because requests repeat the list of tools byte for byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.mcp.refused_schema import why_refused
from ralph.mcp.tool_list import tools_of, without_duplicates
from ralph.values.tool_choice import covers, is_chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ralph.mcp.configuration import McpServer
    from ralph.mcp.ports import ServerGroup
    from ralph.mcp.server_process import ServerProcess
    from ralph.values.tool_calls import ToolDefinition
    from ralph.values.tool_choice import ToolLists


class McpToolset:
    def __init__(
        self,
        groups: Sequence[ServerGroup],
        *,
        asked_for: Collection[str],
        lists: ToolLists,
        redact: Callable[[str], str] = str,
    ) -> None:
        """`asked_for` holds the names of the servers that the command line of this run configures. `lists` are the
        user's lists of tools. `redact` removes credentials from what servers say about their tools.
        """
        self._groups = {name: group for group in groups for name in group.names}
        self._all = tuple(groups)
        self._asked_for = asked_for
        self._lists = lists
        self._redact = redact
        self._tools: dict[str, tuple[str, str]] = {}
        self.definitions: tuple[ToolDefinition, ...] = ()
        """The tools that the run may use, in an order that does not change. Empty before `connect` is called."""
        self.notices: tuple[str, ...] = ()

    @property
    def server_names(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def connect(self, start: Callable[[McpServer], ServerProcess]) -> None:
        """Connects to all servers, and waits until all are connected. If a server needs a process, `start` is called
        for it. Raises ServerFailedError and Interrupted.
        """
        for group in self._all:
            group.begin(start)
        listed: dict[str, Sequence[Mapping[str, Any]]] = {}
        for group in self._all:
            listed |= group.tools()
        every = tools_of(listed, self._redact)
        chosen, again = without_duplicates(
            tool
            for tool in every
            if is_chosen(tool.definition.name, self._lists, is_asked_for=tool.server in self._asked_for)
        )
        refused = {tool.definition.name: why_refused(tool.definition.input_schema) for tool in chosen}
        chosen = tuple(tool for tool in chosen if refused[tool.definition.name] is None)
        self._tools = {tool.definition.name: (tool.server, tool.tool) for tool in chosen}
        self.definitions = tuple(tool.definition for tool in chosen)
        idle = [
            pattern
            for pattern in self._lists.mcp_patterns
            if not any(covers(pattern.partition("(")[0], tool.definition.name) for tool in every)
        ]
        self.notices = (
            *(f"two MCP tools would be called {name}; the first one is kept" for name in again),
            *(f"the MCP tool {name} is left out: {why}" for name, why in refused.items() if why is not None),
            *(f"{pattern} names no tool of the MCP servers of this run" for pattern in idle),
        )

    def tools_by_server(self) -> dict[str, list[str]]:
        """The tools that the run may use, by the name of their server. The names of the tools are those that the
        server itself uses.
        """
        found: dict[str, list[str]] = {name: [] for name in self._groups}
        for server, tool in self._tools.values():
            found[server].append(tool)
        return found

    def server_of_each(self) -> dict[str, str]:
        """The name of the server of each tool that the run may use, by the tool's name for the model."""
        return {name: server for name, (server, _) in self._tools.items()}

    def has(self, name: str) -> bool:
        return name in self._tools

    def schema_of(self, name: str) -> dict[str, Any]:
        return next(one.input_schema for one in self.definitions if one.name == name)

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Calls a tool and returns the result in the form of the protocol's `tools/call`. Raises CallFailedError and
        Interrupted.
        """
        server, tool = self._tools[name]
        return self._groups[server].call(server, tool, arguments)

    def close(self) -> None:
        for group in self._all:
            group.close()
