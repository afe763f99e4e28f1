"""Makes the names and the definitions of MCP tools for the model. No I/O happens here.

The statements that a server makes about itself are not trusted. The texts of a server are shortened. If a server says
that a tool is read-only, ralph ignores this.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.values.tool_calls import ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# The longest name of a tool that every server of the Messages API takes.
_LONGEST_NAME = 64
_HASH_DIGITS = 8
# Claude Code cuts descriptions at the same length.
_LONGEST_DESCRIPTION = 2_048
# The API refuses these words at the top of a tool's schema; the server checks its arguments itself.
_REFUSED_AT_TOP = ("oneOf", "anyOf", "allOf", "$schema")


class McpTool(Struct, frozen=True):
    """A tool of an MCP server that is connected."""

    server: str
    tool: str
    """The name that the server itself uses for the tool."""
    definition: ToolDefinition
    """The definition of the tool that the model gets."""


def normalised(name: str) -> str:
    """The name with an underscore in place of each character that a tool's name must not contain, as in Claude Code."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def tool_name(server: str, tool: str) -> str:
    """The name of the tool for the model: `mcp__SERVER__TOOL`. If the name is too long, a checksum replaces its end."""
    name = f"mcp__{normalised(server)}__{normalised(tool)}"
    if len(name) <= _LONGEST_NAME:
        return name
    digits = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{name[: _LONGEST_NAME - _HASH_DIGITS - 1]}_{digits}"


def tools_of(listed: Mapping[str, Iterable[Mapping[str, Any]]]) -> tuple[McpTool, ...]:
    """The tools of all servers. `listed` maps the name of each server to the tools that the server has listed.

    The result is sorted by name. So requests have the same bytes, in whatever order the servers answered. If two
    tools have the same name, the first one is kept.
    """
    found: dict[str, McpTool] = {}
    for server in sorted(listed):
        for raw in listed[server]:
            one = _tool(server, raw)
            if one is not None:
                found.setdefault(one.definition.name, one)
    return tuple(found[name] for name in sorted(found))


def _tool(server: str, raw: Mapping[str, Any]) -> McpTool | None:
    name, described, schema = raw.get("name"), raw.get("description"), raw.get("inputSchema")
    if not isinstance(name, str) or not name:
        return None
    description = described if isinstance(described, str) else ""
    if len(description) > _LONGEST_DESCRIPTION:
        description = f"{description[:_LONGEST_DESCRIPTION]}... [cut]"
    shown = schema if isinstance(schema, dict) else {}
    plain = {key: value for key, value in shown.items() if key not in _REFUSED_AT_TOP}
    return McpTool(
        server, name, ToolDefinition(tool_name(server, name), description, plain | {"type": "object"})
    )


def duplicates_of(listed: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterator[str]:
    """Yields the names that more than one tool would have."""
    seen: set[str] = set()
    for server in sorted(listed):
        for raw in listed[server]:
            name = tool_name(server, str(raw.get("name")))
            if name in seen:
                yield name
            seen.add(name)
