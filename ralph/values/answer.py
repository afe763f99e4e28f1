"""A complete assistant message with its content blocks, its tool calls, and warnings about it."""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ralph.values.tool_calls import Block, ToolCall

# The API refuses a conversation if the id or the name of a tool call contains any of these characters, or if the
# name is longer than this.
_REFUSED_CHARACTER = r"[^a-zA-Z0-9_-]"
_LONGEST_NAME = 128


class MalformedCall(Struct, frozen=True):
    """A tool call that must not run because its input is faulty. `raw` is the input as the model wrote it. `reason`
    says what is wrong with the input. The model gets this reason as the result of the call.
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
    """The tool calls (`tool_use` blocks) of the answer, in order. The tuple is empty if no call may run because of
    the answer's stop reason."""
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
    """A copy of the answer, in which the ids and names of tool calls are replaced if the API would refuse them in the
    next request.

    Ids and names may contain only ASCII letters, digits, `_` and `-`, and every id must be unique in the
    conversation. `taken` holds the ids that the conversation already contains. Some local servers number the calls of
    each answer from 0, or name a call `functions.Bash:0`.
    """
    ids = _sendable_ids(answer.call_ids, taken)
    content = [_renamed(block, ids) if block.get("type") == "tool_use" else block for block in answer.content]
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


def _renamed(block: Block, ids: Mapping[str, str]) -> Block:
    return {**block, "id": ids[block["id"]], "name": _sendable_name(block["name"])}
