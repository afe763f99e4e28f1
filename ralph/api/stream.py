"""Assembles one assistant message from stream events. No I/O happens here.

A message is complete only when `message_stop` has arrived. Servers interleave the events of different blocks, so each
event is assigned to its block by the field `index`. Unknown events and deltas are ignored. Blocks of unknown types
are kept unchanged.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.api.content_block import OpenBlock
from ralph.api.stream_events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    OtherBlockDelta,
    WholeMessage,
    checked,
    stream_event,
)
from ralph.conversation.context_size import tokens_of_bytes
from ralph.values.answer import Answer, MalformedCall
from ralph.values.errors import StreamParse, StreamTransient

if TYPE_CHECKING:
    from ralph.api.stream_events import StreamEvent
    from ralph.values.tool_calls import ToolCall

NOT_RUNNABLE_STOPS = frozenset({"refusal"})
"""Stop reasons after which no tool call of the answer may run."""

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
        return Answer(message, self._calls(str(message["stop_reason"])), tuple(warnings), request_id)

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
            # Each count is a total, so it replaces the earlier one. A count that is missing or null changes nothing.
            self._message["usage"].update({k: v for k, v in event.usage.items() if v is not None})

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
