"""The MCP tools of a run, from all MCP servers: their names and definitions for the model, and why the API would refuse
one. The list of tools is fixed when the servers are connected. If a server changes its tools later, this has no effect,
because requests repeat the list of tools byte for byte.

The statements that a server makes about itself are not trusted. The texts of a server are shortened. If a server says
that a tool is read-only, ralph ignores this.

The API wants a valid schema of the draft 2020-12, and restricts the names of the properties at its top (both with status
400): a single bad tool would end each run at its first request.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from ralph.values.answer import ToolDefinition
from ralph.values.nesting import is_deeper
from ralph.values.redaction import redacted
from ralph.values.report import shown
from ralph.values.strict_json import DEEPEST
from ralph.values.tool_choice import ToolLists, covers, is_chosen, mcp_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ralph.mcp.configuration import McpServer
    from ralph.mcp.helper_process import ServerProcess

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
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - 0.1 s, and few runs have servers

    try:
        errors = Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema)
        error = next(errors, None)
    except RecursionError:
        return "its schema is nested too deep"
    if error is not None:
        where = error.json_path.removeprefix("$").lstrip(".")
        return f"its schema is invalid in the draft 2020-12 ({where}: {shown(error.instance)})"
    names = (name for name in schema.get("properties", ()) if not _PROPERTY_NAME.fullmatch(name))
    wrong = next(names, None)
    if wrong is None:
        return None
    return f"the API takes no property named {shown(wrong)} (only 1 to 64 of a-z, A-Z, 0-9, _, . and -)"


# Claude Code cuts descriptions at the same length.
_LONGEST_DESCRIPTION = 2_048
# The API refuses these words at the top of a tool's schema; the server checks its arguments itself.
_UNIONS = ("oneOf", "anyOf", "allOf")
_REFUSED_AT_TOP = (*_UNIONS, "$schema")


class McpTool(Struct, frozen=True):
    """A tool of an MCP server that is connected."""

    server: str
    tool: str
    """The name that the server itself uses for the tool."""
    definition: ToolDefinition


def tool_name(server: str, tool: str) -> str:
    """The name of the tool for the model: `mcp__SERVER__TOOL` (`mcp_name`)."""
    return mcp_name(f"mcp__{server}__{tool}".replace("*", "_"))


def tools_of(
    listed: Mapping[str, Iterable[Mapping[str, Any]]], redact: Callable[[str], str] = str
) -> tuple[McpTool, ...]:
    """The tools of all servers. `listed` maps the name of each server to the tools that it has listed. `redact`
    removes the credentials that a server was given and repeats.

    The result is sorted by name, so that requests have the same bytes in whatever order the servers answered.
    Several tools may have the same name.
    """
    found = (_tool(server, raw, redact) for server in sorted(listed) for raw in listed[server])
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.definition.name))


def _tool(server: str, raw: Mapping[str, Any], redact: Callable[[str], str]) -> McpTool | None:
    shown_name, described, schema = (
        redacted(raw.get(key), redact) for key in ("name", "description", "inputSchema")
    )
    name = raw.get("name")
    if not isinstance(name, str) or not name:
        return None
    description = described if isinstance(described, str) else ""
    if len(description) > _LONGEST_DESCRIPTION:
        description = f"{description[:_LONGEST_DESCRIPTION]}... [cut]"
    shown = schema if isinstance(schema, dict) else {}
    plain = {key: value for key, value in shown.items() if key not in _REFUSED_AT_TOP}
    if found := _in_unions(shown):
        plain["properties"] = found | _properties_of(shown)
    return McpTool(
        server, name, ToolDefinition(tool_name(server, shown_name), description, plain | {"type": "object"})
    )


def _in_unions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties in the alternatives of a union at the top of a schema, so that the model knows them without the union. A
    property that several alternatives define differently is a union itself, which the API takes there.
    """
    found: dict[str, list[Any]] = {}
    for word in _UNIONS:
        alternatives = schema.get(word)
        for one in alternatives if isinstance(alternatives, list) else ():
            for name, inner in _properties_of(one).items():
                known = found.setdefault(name, [])
                known += [inner] if inner not in known else []
    return {name: known[0] if len(known) == 1 else {"anyOf": known} for name, known in found.items()}


def _properties_of(schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def without_duplicates(tools: Iterable[McpTool]) -> tuple[tuple[McpTool, ...], tuple[str, ...]]:
    """The tools without those whose name an earlier one has, and the names of what was left out. Raises ServerFailedError
    if two servers would have a tool of one name: rules and the model could not tell the servers apart.
    """
    found: dict[str, McpTool] = {}
    again: dict[str, None] = {}
    for one in tools:
        name = one.definition.name
        first = found.setdefault(name, one)
        if first.server != one.server:
            raise ServerFailedError(
                f"the MCP servers {first.server!r} and {one.server!r} both have a tool that would be called {name}: give "
                f"one of the servers another name, or leave the tool out (--disallowed-tools {name})"
            )
        if first is not one:
            again[name] = None
    return tuple(found.values()), tuple(again)


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
        self._with_process: dict[str, McpServer] = {}
        self.definitions: tuple[ToolDefinition, ...] = ()
        """The tools that the run may use, in an order that does not change. Empty before `connect` is called."""
        self.notices: tuple[str, ...] = ()

    @property
    def server_names(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def connect(self, start: Callable[[McpServer], ServerProcess]) -> None:
        """Connects to all servers, and waits until all are connected. `start` is called for each server that needs
        a process. Raises ServerFailedError and Interrupted.
        """

        def start_and_keep(server: McpServer) -> ServerProcess:
            self._with_process[server.name] = server
            return start(server)

        for group in self._all:
            group.begin(start_and_keep)
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
        """The tools that the run may use, by the name of their server. They have the names that the server itself
        uses.
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

    def process_server_of(self, name: str) -> McpServer | None:
        """The server of a tool, or None if it has no process of this run."""
        return self._with_process.get(self._tools[name][0])

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Calls a tool and returns the result in the form of the protocol's `tools/call`. Raises CallFailedError
        and Interrupted.
        """
        server, tool = self._tools[name]
        return self._groups[server].call(server, tool, arguments)

    def close(self) -> None:
        for group in self._all:
            group.close()


# --- The port of a group of servers that are reached in the same way
# `servers.py` implements it for servers that have a process or an address, and `driven/questions.py` for those that a driver
# provides.

UNKNOWN_EFFECTS = "Its effects are unknown: look at the state of things before you repeat it."


class ServerFailedError(Exception):
    """A server did not start in time, or could not be started. The message is one line with the server's name."""


class CallFailedError(Exception):
    """A tool call failed and has no result. The message is written for the model."""


class ServerGroup(Protocol):
    @property
    def names(self) -> Sequence[str]: ...

    def begin(self, start: Callable[[McpServer], ServerProcess]) -> None:
        """Begins to connect to the servers, and does not wait for them. Calls `start` for each server that needs a
        process. Raises ServerFailedError.
        """

    def tools(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Waits until all servers are connected. Returns the tools of each server, by the server's name, in the
        form of the protocol's `tools/list`. Raises ServerFailedError and Interrupted.
        """

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Calls a tool and returns the result in the form of the protocol's `tools/call`. Raises CallFailedError.
        Also raises Interrupted, after it has told the server that nobody waits for the result any more.
        """

    def close(self) -> None:
        """Ends the servers of the group."""
