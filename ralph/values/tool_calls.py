"""The vocabulary of tools: their definitions, the model's calls, and the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping

FINAL_REPORT = "final_report"
"""The tool with which a model ends a task that requires a report. It runs nothing: `values/report.py` takes the call.
"""

FILE_TOOLS = frozenset({"Write", "Edit"})
"""Tools whose effect is one file's new content: a later check can tell whether the write was done."""

Block = dict[str, Any]
"""One content block as it stands on the wire; unknown kinds are carried verbatim."""


class ToolDefinition(Struct, frozen=True):
    """A tool as the model sees it. `input_schema` is JSON Schema, `type: object` at the top."""

    name: str
    description: str
    input_schema: dict[str, Any]
    is_read_only: bool = False
    """Read-only calls of one message may run in parallel, and again after a crash."""


class ToolCall(Struct, frozen=True):
    """A call the model made. `id` is the API's `tool_use` id."""

    id: str
    name: str
    arguments: dict[str, Any]


class ToolOutput(Struct, frozen=True):
    """The result of a tool: text, or content blocks (text and image) in wire form."""

    content: str | tuple[Block, ...]
    is_error: bool = False
    seen: Mapping[str, str] = field(default_factory=dict)
    """The content of files that the model knows from this result, by path. It is for the journal alone, and no
    part of the block.
    """


class FileChange(Struct, frozen=True):
    """A call's planned change to one file, by content: enough to tell later whether it was done."""

    path: str
    """Absolute, links followed."""
    before: str | None
    """SHA-256 of the content, in hex; None: the file did not exist."""
    after: str

    @property
    def is_real(self) -> bool:
        return self.before != self.after


class ToolResult(Struct, frozen=True):
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
