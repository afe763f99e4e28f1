"""A complete assistant message with its content blocks, its tool calls, and warnings about it. Also the types for tools:
their definitions, the model's calls, and the results of the calls.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from itertools import count
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

FINAL_REPORT = "final_report"
"""The tool with which the model ends a task that requires a report. A call of it runs nothing: `values/report.py`
checks its arguments."""

FILE_TOOLS = frozenset({"Write", "Edit"})
"""The tools that write one file. Before a call, ralph records a checksum of the new content, by which it can check
after a crash whether the file was written."""
COMMANDS = "Bash"
BASH_OUTPUT, KILL_BASH = "BashOutput", "KillBash"
"""The tools for commands in the background. A run has them if it has Bash, and what allows Bash allows them."""

Block = dict[str, Any]
"""One content block of a message, as JSON for the API. Blocks of unknown types are passed on unchanged."""


class ToolDefinition(Struct, frozen=True):
    """A tool as the model gets it. `input_schema` is a JSON Schema whose top level has `type: object`."""

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
    """The change that a tool call is about to make to one file, described by checksums. After a crash, ralph
    compares them with the file to learn whether the change was made.
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
    """One line with the exception's class, its message and its innermost frames, the innermost first. Apart from
    the message, it contains no source text and no values of variables.
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


@contextmanager
def tool_errors(about: str) -> Iterator[None]:
    """Raises a ToolError that begins with `about` in place of an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{about}: {os_error_text(error)}") from None


# The API refuses a conversation if the id or the name of a tool call contains any of these characters, or if the
# name is longer than this.
_REFUSED_CHARACTER = r"[^a-zA-Z0-9_-]"
_LONGEST_NAME = 128


class MalformedCall(Struct, frozen=True):
    """A tool call that must not run because its input is faulty. `raw` is the input as the model wrote it. `reason`
    says what is wrong. The model gets `reason` as the result of the call.
    """

    id: str
    name: str
    raw: str
    reason: str


class Answer(Struct, frozen=True):
    """A complete assistant message."""

    message: dict[str, Any]
    """The API's message object. Its `content` holds complete blocks, in the order of their indexes."""
    calls: tuple[ToolCall | MalformedCall, ...]
    """The tool calls (`tool_use` blocks) of the answer, in order. Empty if no call may run because of the answer's
    stop reason."""
    warnings: tuple[str, ...] = ()
    request_id: str | None = None

    @property
    def content(self) -> list[Block]:
        content: list[Block] = self.message["content"]
        return content

    @property
    def call_ids(self) -> list[str]:
        """The ids of all tool calls (`tool_use` blocks), including calls that must not run."""
        return [block["id"] for block in self.content if block.get("type") == "tool_use"]

    @property
    def stop_reason(self) -> str:
        return str(self.message["stop_reason"])

    @property
    def text(self) -> str:
        """The text blocks of the answer, unchanged and joined by line breaks."""
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")


def with_sendable_calls(answer: Answer, taken: Collection[str]) -> Answer:
    """A copy of the answer, in which the ids and names of tool calls are replaced if the API would refuse them in
    the next request.

    They may contain only ASCII letters, digits, `_` and `-`, and every id must be unique in the conversation, whose
    ids so far are `taken`. Some local servers number the calls of each answer from 0, or name a call
    `functions.Bash:0`.
    """
    ids = _sendable_ids(answer.call_ids, taken)
    content = [
        {**block, "id": ids[block["id"]], "name": _sendable_name(block["name"])}
        if block.get("type") == "tool_use"
        else block
        for block in answer.content
    ]
    if content == answer.content:
        return answer
    calls = tuple(replace(call, id=ids[call.id], name=_sendable_name(call.name)) for call in answer.calls)
    return replace(answer, message={**answer.message, "content": content}, calls=calls)


def _sendable_ids(ids: Collection[str], taken: Collection[str]) -> dict[str, str]:
    sendable = {own: re.sub(_REFUSED_CHARACTER, "_", own) for own in ids}
    used = {own for own in ids if sendable[own] == own and own not in taken}
    for own in ids:
        if own not in used:
            free = (name for name in numbered(sendable[own]) if name not in taken and name not in used)
            sendable[own] = next(free)
            used.add(sendable[own])
    return sendable


def numbered(name: str) -> Iterator[str]:
    """Yields the name itself, and then the name with each number from 2 on."""
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def _sendable_name(name: str) -> str:
    return re.sub(_REFUSED_CHARACTER, "_", name)[:_LONGEST_NAME]
