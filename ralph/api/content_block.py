"""Collects one content block from its deltas, and parses tool input when the block ends.

A call that cannot run is marked as malformed; its input is never guessed.
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
"""Kinds of blocks whose deltas are known: any other delta for them is a protocol error."""


class OpenBlock:
    """A block that has begun. Raises StreamParse if its fields or a delta do not fit its kind."""

    def __init__(self, block: Block) -> None:
        check_block(block)
        self.block = block
        self.is_closed = False
        self.malformed: str | None = None
        """The reason why the tool call cannot run, set when the block ends; None: it can run."""
        self.raw_input = ""
        self._kind: str = block["type"]
        self._fragments: list[str] = []
        if self._kind in {"text", "thinking"}:
            self.block.setdefault(self._kind, "")
        if self._kind == "thinking":
            # Local servers leave it out; a thinking block without one cannot be sent back.
            self.block.setdefault("signature", "")

    @property
    def is_client_call(self) -> bool:
        return self._kind == "tool_use"

    @property
    def streamed_bytes(self) -> int:
        """Bytes of text, thinking and tool input that came in deltas."""
        return sum(len(fragment.encode("utf-8", "replace")) for fragment in self._fragments)

    def extend(self, delta: KnownDelta | dict[str, Any]) -> None:
        """Takes one delta. Deltas of unknown kinds, and deltas for unknown blocks, are ignored."""
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
            checked(delta, KnownDelta)  # raises: its fields are not those of its kind

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
            elif value:  # it came whole, in no deltas
                self.raw_input = json.dumps(value)
            _check_strict(value)
        except (ValueError, RecursionError) as error:
            self.malformed = f"its input is not valid JSON ({error})"
        if self.malformed is None and not isinstance(value, dict):
            self.malformed = f"its input must be a JSON object, got {type(value).__name__}"
        # The API takes nothing but an object back; this wrapper is the form it documents.
        self.block["input"] = value if self.malformed is None else {"INVALID_JSON": self.raw_input}


def _check_strict(value: Any) -> None:
    """Raises ValueError for values that JSON does not have: NaN, Infinity (also as 1e999), lone surrogates."""
    # Two halves of a character in different escapes join here; a single half could not reach a command.
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _joined_surrogates(text: str) -> str:
    """The text with surrogate pairs from two deltas joined; a lone surrogate becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
