"""The vocabulary of tools: what the model may call, what it called, what came back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Block = dict[str, Any]
"""One content block as it stands on the wire; unknown kinds are carried verbatim."""


@dataclass(frozen=True)
class ToolDefinition:
    """What the model is told about a tool. `input_schema` is JSON Schema, `type: object` at the top."""

    name: str
    description: str
    input_schema: dict[str, Any]
    is_read_only: bool = False
    """Read-only calls of one message may run in parallel, and again after a crash."""


@dataclass(frozen=True)
class ToolCall:
    """A call the model made. `id` is the API's `tool_use` id."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ToolOutput:
    """What a tool gives back: text, or content blocks (text and image) in wire form."""

    content: str | tuple[Block, ...]
    is_error: bool = False


@dataclass(frozen=True)
class ToolResult:
    """An output bound to its call."""

    tool_use_id: str
    output: ToolOutput

    def as_block(self) -> Block:
        content = self.output.content
        block: Block = {
            "type": "tool_result",
            "tool_use_id": self.tool_use_id,
            "content": content if isinstance(content, str) else list(content),
        }
        if self.output.is_error:
            block["is_error"] = True
        return block
