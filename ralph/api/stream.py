"""Assembles one assistant message from stream events. No I/O happens here.

A message is complete only when `message_stop` has arrived. Servers interleave the events of different blocks, so each
event is assigned to its block by the field `index`. Unknown events and deltas are ignored. Blocks of unknown types
are kept unchanged.

When a block of a tool call ends, the input of the call is parsed. If the input is invalid, the call is marked as
malformed. Ralph never guesses how to repair a broken input.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.api.stream_events import (
    KNOWN_DELTAS,
    BlockDelta,
    BlockStart,
    BlockStop,
    CitationsDelta,
    InputJsonDelta,
    KnownDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    OtherBlockDelta,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
    WholeMessage,
    check_block,
    checked,
    stream_event,
)
from ralph.conversation.context_size import tokens_of_bytes
from ralph.values.answer import Answer, MalformedCall
from ralph.values.errors import StreamParse, StreamTransient
from ralph.values.strict_json import strict_json
from ralph.values.tool_calls import ToolCall
from ralph.values.usage import with_later_usage

if TYPE_CHECKING:
    from msgspec import Struct

    from ralph.api.stream_events import StreamEvent
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


NOT_RUNNABLE_STOPS = frozenset({"refusal"})
"""Stop reasons after which no tool call of the answer may run."""

# The names that OpenAI and Google give to stop reasons. Gateways pass them on.
_OTHER_NAMES = {
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}

# Fields that a `message_delta` may not change.
_NOT_IN_A_DELTA = frozenset({"type", "role", "content", "usage"})

# Fields that the API always sends and other servers may leave out.
_BARE_MESSAGE = {"id": "", "type": "message", "role": "assistant", "model": "", "stop_sequence": None}


class StreamAssembler:
    """Assembles a message from stream events. The caller passes the events to `feed`, in order. When `is_complete` is
    True, `answer` returns the message.
    """

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: list[OpenBlock] = []
        self._call_ids: set[str] = set()
        self._has_message_delta = False
        self._has_damaged_text = False
        self.is_complete = False

    @property
    def message_id(self) -> str | None:
        """The id of the message, or None if the message has not begun. It is empty if the server gave no id."""
        return None if self._message is None else str(self._message.get("id", ""))

    @property
    def usage(self) -> dict[str, Any]:
        """The API's `usage` object with the token counts so far. It is empty if the message has not begun."""
        return {} if self._message is None else dict(self._message["usage"])

    @property
    def streamed_tokens(self) -> int:
        """The number of tokens of the answer so far, estimated from its bytes. The estimate is more likely too high
        than too low.
        """
        return tokens_of_bytes(sum(block.streamed_bytes for block in self._blocks))

    def feed(self, event: dict[str, Any], *, has_invalid_utf8: bool = False) -> None:
        """Adds one event. `has_invalid_utf8` is True if invalid bytes in the event may have been replaced by U+FFFD.

        Ignores events after the end of the message. If the event reports an error of the server, raises that error.
        Raises StreamParse if the event violates the protocol. Raises StreamTransient if an event comes before
        `message_start`, or if the input of a tool call contains invalid UTF-8.
        """
        if self.is_complete:
            return
        typed = stream_event(event)
        if has_invalid_utf8:
            self._check_damage(typed)
        if typed is None:
            return
        if self._message is None and not isinstance(typed, MessageStart):
            raise StreamTransient(f"{event['type']} came before message_start")
        match typed:
            case BlockDelta() | OtherBlockDelta():
                self._block(typed.index, event).extend(typed.delta)
            case MessageStart():
                self._start_message(typed.message)
            case BlockStart():
                self._start_block(typed)
            case BlockStop():
                self._block(typed.index, event).close()
            case MessageDelta():
                self._update_message(typed)
            case MessageStop():
                self._stop_message()

    def answer(self, request_id: str | None = None) -> Answer:
        """The complete answer. Raises StreamTransient if `message_stop` has not arrived."""
        if self._message is None:
            raise StreamTransient("the answer ended before message_start")
        if not self.is_complete:
            raise StreamTransient("the answer ended before message_stop")
        warnings = list(self._warnings())
        message = dict(self._message)
        message["content"] = [block.block for block in self._blocks]
        if not message.get("stop_reason"):
            message["stop_reason"] = "tool_use" if any(b.is_client_call for b in self._blocks) else "end_turn"
            warnings.append(f"the server gave no stop reason; taken as {message['stop_reason']}")
        stop = str(message["stop_reason"])
        meant = _OTHER_NAMES.get(stop.lower(), stop)
        if meant != stop:
            message["stop_reason"] = meant
            warnings.append(f"the server gave the stop reason {stop!r}; taken as {meant}")
        return Answer(message, self._calls(meant), tuple(warnings), request_id)

    def _start_message(self, message: dict[str, Any]) -> None:
        if self._message is not None:
            raise StreamParse("a second message_start in one answer")
        usage = message.get("usage")
        self._message = {
            **_BARE_MESSAGE,
            **message,
            "usage": dict(usage) if isinstance(usage, dict) else {},
        }

    def _start_block(self, event: BlockStart) -> None:
        if event.index != len(self._blocks):
            raise StreamParse(f"content_block_start has index {event.index}, expected {len(self._blocks)}")
        block = OpenBlock(event.content_block)
        if block.is_client_call:
            if block.block["id"] in self._call_ids:
                raise StreamParse(f"tool_use id {block.block['id']!r} came twice in one answer")
            self._call_ids.add(block.block["id"])
        self._blocks.append(block)

    def _check_damage(self, event: StreamEvent | None) -> None:
        """Raises StreamTransient if the input of a tool call contains invalid UTF-8, because this call must not run.
        Invalid UTF-8 in text is accepted, and the answer gets a warning.
        """
        match event:
            case BlockStart():
                tool_input = str(event.content_block.get("input"))
            case BlockDelta(delta=InputJsonDelta(partial_json=tool_input)):
                pass
            case _:
                tool_input = ""
        if "\ufffd" in tool_input:
            raise StreamTransient("invalid UTF-8 inside a tool's input")
        self._has_damaged_text = True

    def _update_message(self, event: MessageDelta) -> None:
        assert self._message is not None  # noqa: S101 - feed() has checked it
        self._has_message_delta = True
        if "stop_reason" in event.delta:
            # Stop details from an earlier delta belong to another stop reason.
            self._message.pop("stop_details", None)
            self._message |= {"stop_reason": event.delta["stop_reason"], "stop_sequence": None}
        news = {name: value for name, value in event.delta.items() if name not in _NOT_IN_A_DELTA}
        news["context_management"] = event.context_management
        news["input_transformations"] = event.input_transformations
        # A null changes nothing. For example, the container that message_start named stays.
        self._message |= {name: value for name, value in news.items() if value is not None}
        if isinstance(event.usage, dict):
            self._message["usage"] = with_later_usage(self._message["usage"], event.usage)

    def _stop_message(self) -> None:
        still_open = [str(i) for i, block in enumerate(self._blocks) if not block.is_closed]
        if still_open:
            raise StreamParse(f"message_stop came while block {', '.join(still_open)} was open")
        self.is_complete = True

    def _block(self, index: int, event: dict[str, Any]) -> OpenBlock:
        if index >= len(self._blocks):
            raise StreamParse(f"{event['type']} names block {index}, which was not started")
        block = self._blocks[index]
        if block.is_closed:
            raise StreamParse(f"{event['type']} names block {index}, which was closed")
        return block

    def _calls(self, stop_reason: str) -> tuple[ToolCall | MalformedCall, ...]:
        if stop_reason in NOT_RUNNABLE_STOPS:
            return ()
        calls = [block.as_call() for block in self._blocks if block.is_client_call]
        # A call that was cut off by max_tokens may be valid JSON by chance. It is the last block, and must not run.
        if calls and stop_reason == "max_tokens" and self._blocks[-1].is_client_call:
            last = calls[-1]
            raw = last.raw if isinstance(last, MalformedCall) else json.dumps(last.arguments)
            calls[-1] = MalformedCall(
                last.id, last.name, raw, "the answer reached max_tokens inside this call"
            )
        return tuple(calls)

    def _warnings(self) -> list[str]:
        warnings = []
        if not self._has_message_delta:
            warnings.append("the server sent no message_delta")
        if self._has_damaged_text:
            warnings.append("the answer held invalid UTF-8, shown as U+FFFD")
        return warnings


def answer_from_message(
    message: dict[str, Any], request_id: str | None = None, *, has_invalid_utf8: bool = False
) -> Answer:
    """The answer from a complete message that a server sent as one JSON object, although the request asked for a
    stream. `has_invalid_utf8` and the errors are as in `StreamAssembler.feed`.
    """
    assembler = StreamAssembler()
    content = checked(message, WholeMessage).content
    assembler.feed({"type": "message_start", "message": {**message, "content": []}})
    for index, block in enumerate(content):
        begin = {"type": "content_block_start", "index": index, "content_block": block}
        assembler.feed(begin, has_invalid_utf8=has_invalid_utf8)
        assembler.feed({"type": "content_block_stop", "index": index})
    assembler.feed({"type": "message_delta", "delta": {}})
    assembler.feed({"type": "message_stop"})
    return assembler.answer(request_id)
