"""One content block while its deltas come. Fragments are joined once, at its end, and tool input is parsed then.

What cannot be run is marked as malformed, never guessed at.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.values.answer import MalformedCall
from ralph.values.errors import StreamParse
from ralph.values.strict_json import strict_json
from ralph.values.tool_calls import ToolCall

if TYPE_CHECKING:
    from ralph.values.tool_calls import Block

TOOL_INPUT_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_TEXT_BLOCKS = ("text", "thinking")
"""Blocks whose deltas are text, kept under the block's own name."""
_DELTA_BLOCKS = TOOL_INPUT_BLOCKS.union(_TEXT_BLOCKS)
"""Blocks that are known to come in pieces: a piece that does not fit breaks the protocol."""


class OpenBlock:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.is_closed = False
        self.malformed: str | None = None
        """Why the input cannot be run, set at close."""
        self.raw_input = ""
        self._fragments: dict[str, list[str]] = {}
        if not isinstance(self.block.get("type"), str):
            raise StreamParse(f"a content block without a type: {str(self.block)[:200]}")
        if self.is_client_call and not (_is_name(self.block.get("id")) and _is_name(self.block.get("name"))):
            raise StreamParse(f"a tool_use block without id or name: {str(self.block)[:200]}")
        if self.block["type"] in _TEXT_BLOCKS:
            name = self.block["type"]
            if not isinstance(self.block.setdefault(name, ""), str):
                raise StreamParse(f"a {name} block whose {name} is no text: {str(self.block)[:200]}")
        if self.block["type"] == "thinking":
            # Local servers leave it out; a thinking block without one cannot be sent back.
            self.block.setdefault("signature", "")

    @property
    def is_client_call(self) -> bool:
        return self.block.get("type") == "tool_use"

    def extend(self, delta: dict[str, Any]) -> None:
        """Take one delta. One of an unknown kind, or for a block of an unknown kind, is ignored."""
        match delta.get("type"):
            case "text_delta":
                self._append("text", delta)
            case "thinking_delta":
                self._append("thinking", delta)
            case "input_json_delta":
                self._append("partial_json", delta)
            case "signature_delta" if self.block["type"] == "thinking":
                self.block["signature"] = delta.get("signature", "")
            case "citations_delta" if self.block["type"] == "text":
                before = self.block.get("citations")
                self.block["citations"] = [
                    *(before if isinstance(before, list) else ()),
                    delta.get("citation"),
                ]
            case "compaction_delta" if self.block["type"] == "compaction":
                self.block.update({k: v for k, v in delta.items() if k != "type"})

    def close(self) -> None:
        self.is_closed = True
        for name in _TEXT_BLOCKS:
            if name in self._fragments:
                self.block[name] = _joined_surrogates(self.block[name] + "".join(self._fragments[name]))
        if self.block["type"] in TOOL_INPUT_BLOCKS:
            self._close_input()
        try:
            json.dumps(self.block, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise StreamParse(
                f"a content block that is no JSON ({error}): {str(self.block)[:200]}"
            ) from error

    def as_call(self) -> ToolCall | MalformedCall:
        if self.malformed is not None:
            return MalformedCall(self.block["id"], self.block["name"], self.raw_input, self.malformed)
        return ToolCall(self.block["id"], self.block["name"], self.block["input"])

    def _append(self, name: str, delta: dict[str, Any]) -> None:
        if self.block["type"] not in _DELTA_BLOCKS:
            return
        fits = (
            self.block["type"] in TOOL_INPUT_BLOCKS if name == "partial_json" else self.block["type"] == name
        )
        fragment = delta.get(name)
        if not fits or not isinstance(fragment, str):
            raise StreamParse(
                f"{delta['type']} does not fit a {self.block['type']} block: {str(delta)[:200]}"
            )
        self._fragments.setdefault(name, []).append(fragment)

    def _close_input(self) -> None:
        self.raw_input = "".join(self._fragments.get("partial_json", []))
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


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _check_strict(value: Any) -> None:
    """Refuses values that JSON does not have: NaN, Infinity (also as 1e999), half characters. Raises
    ValueError.
    """
    # Two halves of a character in different escapes join here; a half alone could not reach a command.
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _joined_surrogates(text: str) -> str:
    """Halves of a character that came in different deltas become one; a half alone becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
