"""The types for tools: their definitions, the model's calls, and the results of the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping

FINAL_REPORT = "final_report"
"""The name of the tool that the model calls to end a task that requires a report. A call runs nothing;
`values/report.py` checks its arguments."""

FILE_TOOLS = frozenset({"Write", "Edit"})
"""Tools that write one file. Ralph records a checksum of the new content before a call, so that it can check after a
crash whether the file was written."""

Block = dict[str, Any]
"""One content block of a message, as JSON for the API. Blocks of unknown types are passed on unchanged."""


class ToolDefinition(Struct, frozen=True):
    """A tool as the model sees it. `input_schema` is a JSON Schema whose top level has `type: object`."""

    name: str
    description: str
    input_schema: dict[str, Any]
    is_read_only: bool = False
    """True if the tool changes nothing. Calls of such a tool may run in parallel, and may be repeated after a
    crash."""


class ToolCall(Struct, frozen=True):
    """A tool call by the model. `id` is the API's `tool_use` id."""

    id: str
    name: str
    arguments: dict[str, Any]


def unknown_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments that a tool does not have, according to its schema. The tool runs without them."""
    known = schema.get("properties")
    takes_others = "additionalProperties" in schema or "patternProperties" in schema
    if not isinstance(known, dict) or takes_others:
        return ()
    return tuple(str(key) for key in arguments if key not in known)


class ToolOutput(Struct, frozen=True):
    """The result of a tool. It is a text, or a series of text and image blocks as the API expects them."""

    content: str | tuple[Block, ...]
    is_error: bool = False
    seen: Mapping[str, str] = field(default_factory=dict)
    """The files that the model knows from this result. It maps each path to the SHA-256 of the content in hex or, for
    a large file, to its inode, size and modification time. It is written to the journal, and is not sent to the
    API."""
    is_denied: bool = False
    """True if the sandbox refused something that the call tried. It is neither written to the journal nor sent to the
    API."""
    notices: tuple[str, ...] = ()
    """Notices for people about the call. They are neither written to the journal nor sent to the API."""


class RuleVerdict(Struct, frozen=True):
    """The decision of the permission rules about one call."""

    denied: str | None = None
    """The reason why the call must not run, written for the model. None if no rule denies it."""
    asks: str | None = None
    """The reason why somebody must be asked before the call runs. None if no rule requires that."""


class FileChange(Struct, frozen=True):
    """The change that a tool call is about to make to one file, described by checksums.

    With them, ralph can tell after a crash whether the change was made.
    """

    path: str
    """The absolute path, with symbolic links resolved."""
    before: str | None
    """The SHA-256 of the old content in hex, or None if the file did not exist."""
    after: str
    """The SHA-256 of the new content in hex."""

    @property
    def is_real(self) -> bool:
        """Whether the new content differs from the old one."""
        return self.before != self.after


class ToolResult(Struct, frozen=True):
    """The output of a tool, with the id of the call that it answers."""

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
