"""A whole assistant message, as the loop sees it: its blocks, its calls, what was odd about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from ralph.core.tool_calls import Block, ToolCall


@dataclass(frozen=True)
class MalformedCall:
    """A tool call that must not run. `raw` is its input as the model wrote it."""

    id: str
    name: str
    raw: str
    reason: str


@dataclass(frozen=True)
class Answer:
    """A whole assistant message."""

    message: dict[str, Any]
    """The API's message object; `content` holds finished blocks in index order."""
    calls: tuple[ToolCall | MalformedCall, ...]
    """The client tool calls, in order. Empty where the stop reason forbids to run any."""
    warnings: tuple[str, ...] = ()
    request_id: str | None = None

    @property
    def content(self) -> list[Block]:
        content: list[Block] = self.message["content"]
        return content

    @property
    def stop_reason(self) -> str:
        return str(self.message["stop_reason"])

    @property
    def text(self) -> str:
        """What the model said, as it said it; blocks on lines of their own."""
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")


def with_unique_call_ids(answer: Answer, taken: Collection[str]) -> Answer:
    """The answer with new ids for calls whose id an earlier answer has used.

    Some local servers number their calls from 0 in every answer; the API wants ids unique over a conversation.
    """
    names = {call.id: call.id for call in answer.calls}
    for used in names.keys() & set(taken):
        names[used] = next(
            name for n in count(2) if (name := f"{used}_{n}") not in taken and name not in names
        )
    if all(old == new for old, new in names.items()):
        return answer
    content = [
        {**block, "id": names[block["id"]]}
        if block.get("type") == "tool_use" and block["id"] in names
        else block
        for block in answer.content
    ]
    calls = tuple(replace(call, id=names[call.id]) for call in answer.calls)
    return replace(answer, message={**answer.message, "content": content}, calls=calls)
