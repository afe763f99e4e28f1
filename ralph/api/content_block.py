"""Builds one content block of an answer from its deltas. When a block of a tool call ends, parses the input of the
call. If the input is invalid, the call is marked as malformed. Ralph never guesses how to repair a broken input.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.api.stream_events import (
    KNOWN_DELTAS,
    CitationsDelta,
    InputJsonDelta,
    KnownDelta,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
    check_block,
    checked,
)
from ralph.values.answer import MalformedCall
from ralph.values.errors import StreamParse
from ralph.values.strict_json import strict_json
from ralph.values.tool_calls import ToolCall

if TYPE_CHECKING:
    from msgspec import Struct

    from ralph.values.tool_calls import Block

_TOOL_INPUT_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_KINDS_WITH_DELTAS = _TOOL_INPUT_BLOCKS | {"text", "thinking"}
"""The block types whose deltas ralph knows. If a block of these types gets a delta for another block type, the answer
is refused."""


class OpenBlock:
    """A content block that has begun and still receives deltas.

    The constructor raises StreamParse if a field of the block has the wrong type. `extend` raises StreamParse if a
    delta does not fit the block, or if a field of the delta has the wrong type.
    """

    def __init__(self, block: Block) -> None:
        check_block(block)
        self.block = block
        self.is_closed = False
        self.malformed: str | None = None
        """The reason why the tool call cannot run, or None if it can run. Set when the block has ended."""
        self.raw_input = ""
        """The input of the tool call as the model wrote it. Set when the block has ended."""
        self._kind: str = block["type"]
        self._fragments: list[str] = []
        if self._kind in {"text", "thinking"}:
            self.block.setdefault(self._kind, "")
        if self._kind == "thinking":
            # Local servers leave the signature out, but a thinking block without that field cannot be sent back.
            self.block.setdefault("signature", "")

    @property
    def is_client_call(self) -> bool:
        """Whether the block is a call of one of ralph's tools. False for a call of a tool that the server runs."""
        return self._kind == "tool_use"

    @property
    def streamed_bytes(self) -> int:
        """The number of bytes of text, thinking and tool input in the deltas so far."""
        return sum(len(fragment.encode("utf-8", "replace")) for fragment in self._fragments)

    def extend(self, delta: KnownDelta | dict[str, Any]) -> None:
        """Adds one delta. If ralph does not know the type of the delta or of the block, the block does not change."""
        match delta:
            case TextDelta():
                self._append(delta, delta.text, fits=self._kind == "text")
            case InputJsonDelta():
                self._append(delta, delta.partial_json, fits=self._kind in _TOOL_INPUT_BLOCKS)
            case ThinkingDelta():
                self._append(delta, delta.thinking, fits=self._kind == "thinking")
            case SignatureDelta() if self._kind == "thinking":
                self.block["signature"] = delta.signature
            case CitationsDelta() if self._kind == "text":
                before = self.block.get("citations")
                self.block["citations"] = [*(before if isinstance(before, list) else ()), delta.citation]
            case dict():
                self._take_other(delta)

    def _take_other(self, delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "compaction_delta" and self._kind == "compaction":
            self.block.update({name: value for name, value in delta.items() if name != "type"})
        elif kind in KNOWN_DELTAS and self._kind in _KINDS_WITH_DELTAS:
            checked(delta, KnownDelta)  # raises, because the delta has a known type but a wrong field

    def close(self) -> None:
        self.is_closed = True
        if self._kind in _TOOL_INPUT_BLOCKS:
            self._close_input()
        elif self._kind in {"text", "thinking"} and self._fragments:
            self.block[self._kind] = _joined_surrogates(self.block[self._kind] + "".join(self._fragments))

    def as_call(self) -> ToolCall | MalformedCall:
        if self.malformed is not None:
            return MalformedCall(self.block["id"], self.block["name"], self.raw_input, self.malformed)
        return ToolCall(self.block["id"], self.block["name"], self.block["input"])

    def _append(self, delta: Struct, fragment: str, *, fits: bool) -> None:
        if not fits and self._kind in _KINDS_WITH_DELTAS:
            raise StreamParse(f"{delta.__struct_config__.tag} does not fit a {self._kind} block")
        self._fragments.append(fragment)

    def _close_input(self) -> None:
        self.raw_input = "".join(self._fragments)
        placeholder = self.block.get("input")
        value: Any = {} if placeholder is None else placeholder
        try:
            if self.raw_input.strip():
                value = strict_json(self.raw_input)
            elif value:  # the input arrived when the block began, without deltas
                self.raw_input = json.dumps(value)
            _check_strict(value)
        except (ValueError, RecursionError) as error:
            self.malformed = f"its input is not valid JSON ({error})"
        if self.malformed is None and not isinstance(value, dict):
            self.malformed = f"its input must be a JSON object, got {type(value).__name__}"
        # The API requires an object. It documents this form for an input that is not JSON.
        self.block["input"] = value if self.malformed is None else {"INVALID_JSON": self.raw_input}


def _check_strict(value: Any) -> None:
    """Raises ValueError for values that JSON does not allow: NaN, Infinity (also written as 1e999) and lone
    surrogates.
    """
    # The decoder has joined the two halves of a surrogate pair. A single half is refused here, because no command
    # could receive it.
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _joined_surrogates(text: str) -> str:
    """Joins the two halves of surrogate pairs that arrived in different deltas. A lone surrogate becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
