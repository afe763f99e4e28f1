"""The response to `get_context_usage`: how much of the model's window each part of the context fills. No I/O happens
here. Sizes are estimates from bytes, scaled so that they add up to the last estimate of the whole request.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.conversation.context_size import BYTES_PER_TOKEN
from ralph.conversation.messages import to_json
from ralph.values.tool_choice import MCP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.conversation.context_size import ContextMeter
    from ralph.conversation.messages import Conversation
    from ralph.prompt.memory import MemoryFile
    from ralph.retry.roster import Roster


class PartSize(Struct, frozen=True):
    """A part of the request that is shown on its own: an instruction file or a tool of an MCP server."""

    facts: Mapping[str, Any]
    """The fields that drivers expect besides `tokens`: `path` and `type`, or `name` and `serverName`."""
    size_bytes: int


class ContextSizes(Struct, frozen=True):
    model: str
    window_tokens: int | None
    """The context window of the model, or None if it is unknown."""
    total_tokens: int
    """The estimated number of tokens of the next request."""
    part_bytes: Mapping[str, int]
    """The size in bytes of each part of the request. The key is the part's name for people."""
    memory: Sequence[PartSize] = ()
    mcp_tools: Sequence[PartSize] = ()


def sizes_of_next(
    roster: Roster,
    conversation: Conversation,
    meter: ContextMeter,
    memory: Sequence[tuple[MemoryFile, str]] = (),
    servers: Mapping[str, str] = MappingProxyType({}),
) -> ContextSizes:
    """The sizes of the parts of the next request in this conversation. `memory` are the instruction files with their
    sections of the system prompt, as they are now. A resumed session keeps its system prompt: a file counts only if
    the prompt contains its section. `servers` maps the name of each MCP tool of the run to the name of its server.
    """
    head = roster.shape.head()
    tools = head.fields.get("tools", [])
    tool_bytes = len(to_json(tools))
    kinds = _kinds([file for file, _ in memory])
    in_memory = [
        PartSize({"path": file.path, "type": kinds[file.path]}, len(sent))
        for file, section in memory
        if (sent := to_json(section)[1:-1]) in head.body
    ]
    of_servers = [
        PartSize(
            {"name": tool["name"], "serverName": _server_of(tool["name"], servers), "isLoaded": True},
            len(to_json(tool)),
        )
        for tool in tools
        if tool["name"].startswith(MCP_PREFIX)
    ]
    memory_bytes, mcp_bytes = (sum(part.size_bytes for part in parts) for parts in (in_memory, of_servers))
    return ContextSizes(
        model=roster.target.model,
        window_tokens=roster.window,
        total_tokens=roster.estimate(conversation, meter),
        part_bytes={
            "System prompt": max(len(head.body) - tool_bytes - memory_bytes, 0),
            "System tools": tool_bytes - mcp_bytes,
            "MCP tools": mcp_bytes,
            "Memory files": memory_bytes,
            "Messages": max(conversation.size * BYTES_PER_TOKEN - len(head.body), 0),
        },
        memory=in_memory,
        mcp_tools=of_servers,
    )


def _kinds(files: Sequence[MemoryFile]) -> dict[str, str]:
    """Claude Code's word for each file, by path. An imported file has the word of the file that imports it."""
    found: dict[str, str] = {}
    for file in files:  # an importer stands before its imports
        own = "Local" if file.path.endswith("/CLAUDE.local.md") else "Project"
        found[file.path] = "User" if file.is_users else found.get(file.imported_by or "", own)
    return found


def _server_of(tool: str, servers: Mapping[str, str]) -> str:
    """The server of a tool. A resumed session may offer tools of servers that this run does not have: their names are
    taken from the names of the tools.
    """
    return servers.get(tool) or tool.removeprefix(MCP_PREFIX).partition("__")[0]


# Drivers that draw the parts expect a color for each of them.
_COLORS = ("blue", "yellow", "cyan", "orange", "green")


def context_usage(sizes: ContextSizes) -> dict[str, Any]:
    window = sizes.window_tokens or sizes.total_tokens
    all_bytes = sum(sizes.part_bytes.values()) or 1

    def tokens(size_bytes: int) -> int:
        return round(sizes.total_tokens * size_bytes / all_bytes)

    used = [
        {"name": name, "tokens": tokens(size), "color": color, "kind": "used"}
        for (name, size), color in zip(sizes.part_bytes.items(), _COLORS, strict=True)
    ]
    free = {
        "name": "Free space",
        "tokens": max(window - sizes.total_tokens, 0),
        "color": "gray",
        "kind": "free",
    }
    return {
        "categories": [*used, free],
        "totalTokens": sizes.total_tokens,
        "maxTokens": window,
        "rawMaxTokens": window,
        "percentage": round(100 * sizes.total_tokens / window) if window else 0,
        "gridRows": [],
        "model": sizes.model,
        "memoryFiles": [{**part.facts, "tokens": tokens(part.size_bytes)} for part in sizes.memory],
        "mcpTools": [{**part.facts, "tokens": tokens(part.size_bytes)} for part in sizes.mcp_tools],
        "agents": [],
        "isAutoCompactEnabled": True,
        "apiUsage": None,
    }
