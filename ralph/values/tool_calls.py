"""The types for tools: definitions of tools, the model's calls, and the results of the calls. Also
describes an exception in one line, such as a tool's error for the model.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


FINAL_REPORT = "final_report"
"""The name of the tool with which the model ends a task that requires a report. A call of this tool runs nothing.
`values/report.py` checks the arguments of the call."""

FILE_TOOLS = frozenset({"Write", "Edit"})
"""The tools that write one file. Before a call, ralph records a checksum of the new content. After a crash, ralph can
then check whether the file was written."""
COMMANDS = "Bash"
"""The tool that runs commands."""
BASH_OUTPUT, KILL_BASH = "BashOutput", "KillBash"
"""The tools for commands in the background. A run has them if it has Bash, and what allows Bash allows them."""

Block = dict[str, Any]
"""One content block of a message, as JSON for the API. Blocks of unknown types are passed on unchanged."""


class ToolDefinition(Struct, frozen=True):
    """The definition of a tool, as the model gets it. `input_schema` is a JSON Schema. Its top level has `type:
    object`.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    is_read_only: bool = False
    """True if the tool changes nothing. Calls of such a tool may run in parallel, and may run again after a crash."""


class ToolCall(Struct, frozen=True):
    """A tool call by the model. `id` is the API's `tool_use` id."""

    id: str
    name: str
    arguments: dict[str, Any]


def unknown_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the arguments that the tool's schema does not contain. The tool runs without them."""
    known = schema.get("properties")
    takes_others = "additionalProperties" in schema or "patternProperties" in schema
    if not isinstance(known, dict) or takes_others:
        return ()
    return tuple(str(key) for key in arguments if key not in known)


_WITH_AN = ("array", "integer", "object")


def type_names(types: str | Sequence[str]) -> str:
    """Types of JSON Schema in words, such as `an array or null`."""
    named = [types] if isinstance(types, str) else types
    plain = ("null", "any")
    return " or ".join(one if one in plain else f"{'an' if one in _WITH_AN else 'a'} {one}" for one in named)


class ToolOutput(Struct, frozen=True):
    """The output of a tool. It is a text, or a series of text and image blocks in the form that the API expects."""

    content: str | tuple[Block, ...]
    is_error: bool = False
    seen: Mapping[str, str] = field(default_factory=dict)
    """The files whose content this output shows to the model. Each path is mapped to the SHA-256 of the content in
    hex. For a large file, it is mapped to the file's inode, size and modification time. The journal contains this
    mapping, and the API does not receive it."""
    is_denied: bool = False
    """True if the sandbox denied an operation of the call. It is neither written to the journal nor sent to the API."""
    notices: tuple[str, ...] = ()
    """Notices for people about the call. They are neither written to the journal nor sent to the API."""

    def followed_by(self, text: str, gap: str = "\n\n") -> ToolOutput:
        """The output with a text at its end, after `gap` if the output is text. An empty text changes nothing."""
        if not text:
            return self
        if isinstance(self.content, str):
            return replace(self, content=f"{self.content}{gap}{text}")
        return replace(self, content=(*self.content, {"type": "text", "text": text}))


class Runnable(Struct, frozen=True):
    """A call that may run."""

    call: ToolCall
    """The call as it must run. A hook or somebody who was asked may have changed its arguments."""
    notes: tuple[str, ...] = ()


Ruling = ToolOutput | Runnable
"""The decision about a call. A `ToolOutput` is an error result for the model, and the call must not run."""


class FileChange(Struct, frozen=True):
    """The change that a tool call is about to make to one file, described by checksums. After a crash, ralph compares
    these checksums with the file, and so knows whether the change was made.
    """

    path: str
    before: str | None
    """The SHA-256 of the old content in hex, or None if the file did not exist."""
    after: str

    @property
    def is_real(self) -> bool:
        """Whether the new content differs from the old content."""
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


_MOST_FRAMES = 4


def describe_bug(error: BaseException) -> str:
    """One line with the class of the exception, its message and its innermost frames. The innermost frame comes
    first. Apart from the message, the line contains no source text and no values of variables.
    """
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{PurePath(code.co_filename).name}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    where = " < ".join(reversed(frames[-_MOST_FRAMES:]))
    return f"a bug in ralph: {type(error).__name__}: {error} (at {where})"


def os_error_text(error: OSError) -> str:
    return error.strerror or type(error).__name__


class ToolError(Exception):
    """A failure of a tool. Its text is written for the model and becomes the result of the tool call.

    Any other exception from a tool is a bug in ralph.
    """
