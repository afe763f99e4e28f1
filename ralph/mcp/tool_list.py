"""Makes the names and the definitions of MCP tools for the model. No I/O happens here.

The statements that a server makes about itself are not trusted. The texts of a server are shortened. If a server says
that a tool is read-only, ralph ignores this.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.mcp.ports import ServerFailedError
from ralph.values.redaction import redacted
from ralph.values.tool_calls import ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# The longest name of a tool that every server of the Messages API takes.
_LONGEST_NAME = 64
_HASH_DIGITS = 8
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


def tools_of(
    listed: Mapping[str, Iterable[Mapping[str, Any]]], redact: Callable[[str], str] = str
) -> tuple[McpTool, ...]:
    """The tools of all servers. `listed` maps the name of each server to the tools that the server has listed. `redact` removes
    the credentials that a server was given and repeats.

    The result is sorted by name. So requests have the same bytes, in whatever order the servers answered. Several tools
    may have the same name.
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
