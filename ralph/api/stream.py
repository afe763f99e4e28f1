"""Assemble one assistant message from stream events. Pure: events in, an answer out, or a reason why not.

It refuses everything that is not whole: no `message_stop`, no message. Blocks are keyed by `index`, because
servers interleave them. Unknown events, deltas and fields are ignored, unknown blocks are kept verbatim.
Source: the Messages API's streaming contract, version 2026-10-21.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.api.content_block import OpenBlock
from ralph.api.error_body import stream_error
from ralph.conversation.context_size import tokens_of_bytes
from ralph.values.answer import Answer, MalformedCall
from ralph.values.errors import StreamParse, StreamTransient

if TYPE_CHECKING:
    from ralph.values.tool_calls import ToolCall

NOT_RUNNABLE_STOPS = frozenset({"refusal"})
"""Stop reasons after which no tool call of the answer may run."""

# What a `message_delta` has no business to change.
_NOT_IN_A_DELTA = frozenset({"type", "role", "content", "usage"})

# Where a `message_delta` has these, they stand beside its `delta`.
_BESIDE_A_DELTA = ("context_management", "input_transformations")

# The parts of a delta that cost output tokens.
_SPOKEN = ("text", "thinking", "partial_json")

# What the API always sends and other servers may leave out.
_BARE_MESSAGE = {"id": "", "type": "message", "role": "assistant", "model": "", "stop_sequence": None}


class StreamAssembler:
    """Feed it events in the order they came; ask for the answer once `is_complete`."""

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: list[OpenBlock] = []
        self._call_ids: set[str] = set()
        self._saw_delta = False
        self._damaged_text = False
        self._streamed_bytes = 0
        self.is_complete = False

    @property
    def message_id(self) -> str | None:
        return None if self._message is None else str(self._message.get("id", ""))

    @property
    def usage(self) -> dict[str, Any]:
        """Counts seen so far, as the server sent them."""
        return {} if self._message is None else dict(self._message["usage"])

    @property
    def streamed_tokens(self) -> int:
        """An upper bound of the answer's tokens so far, whatever the server has counted by now."""
        return tokens_of_bytes(self._streamed_bytes)

    def feed(self, event: dict[str, Any], *, has_invalid_utf8: bool = False) -> None:
        """Take one event. `has_invalid_utf8`: its bytes were not valid UTF-8 and were replaced by U+FFFD.

        Raises StreamParse where the protocol is broken, StreamTransient where asking again may help.
        """
        if self.is_complete:
            return
        if has_invalid_utf8:
            self._look_at_damage(event)
        match event.get("type"):
            case "error":
                raise stream_error(event)
            case kind if event.get("object") == "error" or (kind is None and event.get("error")):
                raise stream_error(event)  # the shapes of OpenAI's clones
            case "message_start":
                self._start_message(event)
            case kind if kind in _AFTER_START and self._message is None:
                raise StreamTransient(f"{kind} came before message_start")
            case "content_block_start":
                self._start_block(event)
            case "content_block_delta":
                self._extend_block(event)
            case "content_block_stop":
                self._block(event).close()
            case "message_delta":
                self._update_message(event)
            case "message_stop":
                self._stop_message()

    def answer(self, request_id: str | None = None) -> Answer:
        """The whole message. Raises StreamTransient when the stream ended before `message_stop`."""
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

    def _start_message(self, event: dict[str, Any]) -> None:
        if self._message is not None:
            raise StreamParse("a second message_start in one answer")
        message = _dict(event, "message")
        usage = message.get("usage")
        self._message = {
            **_BARE_MESSAGE,
            **message,
            "usage": dict(usage) if isinstance(usage, dict) else {},
        }

    def _start_block(self, event: dict[str, Any]) -> None:
        index = event.get("index")
        if index != len(self._blocks) or isinstance(index, bool):
            raise StreamParse(f"content_block_start has index {index!r}, expected {len(self._blocks)}")
        block = OpenBlock(dict(_dict(event, "content_block")))
        if block.is_client_call:
            if block.block["id"] in self._call_ids:
                raise StreamParse(f"tool_use id {block.block['id']!r} came twice in one answer")
            self._call_ids.add(block.block["id"])
        self._blocks.append(block)

    def _extend_block(self, event: dict[str, Any]) -> None:
        delta = _dict(event, "delta")
        self._streamed_bytes += sum(
            len(str(delta.get(name) or "").encode("utf-8", "replace")) for name in _SPOKEN
        )
        self._block(event).extend(delta)

    def _look_at_damage(self, event: dict[str, Any]) -> None:
        """Damaged text is shown as it is; a damaged tool input must not run."""
        whole = event.get("content_block")
        part = event.get("delta")
        input_ = whole.get("input") if isinstance(whole, dict) else None
        fragment = part.get("partial_json") if isinstance(part, dict) else None
        if "\ufffd" in f"{input_} {fragment}":
            raise StreamTransient("invalid UTF-8 inside a tool's input")
        self._damaged_text = True

    def _update_message(self, event: dict[str, Any]) -> None:
        assert self._message is not None  # noqa: S101 - feed() has looked
        self._saw_delta = True
        delta = _dict(event, "delta")
        if "stop_reason" in delta:
            # What a delta before this one said of the stop belongs to another reason.
            self._message.pop("stop_details", None)
            self._message |= {"stop_reason": delta["stop_reason"], "stop_sequence": None}
        news = {name: value for name, value in delta.items() if name not in _NOT_IN_A_DELTA}
        news |= {name: event.get(name) for name in _BESIDE_A_DELTA}
        # Null is no news: what message_start said of the container holds.
        self._message |= {name: value for name, value in news.items() if value is not None}
        usage = event.get("usage")
        if isinstance(usage, dict):
            # Counts are cumulative: overwrite; an absent or null one keeps what message_start said.
            self._message["usage"].update({k: v for k, v in usage.items() if v is not None})

    def _stop_message(self) -> None:
        still_open = [str(i) for i, block in enumerate(self._blocks) if not block.is_closed]
        if still_open:
            raise StreamParse(f"message_stop came while block {', '.join(still_open)} was open")
        self.is_complete = True

    def _block(self, event: dict[str, Any]) -> OpenBlock:
        index = event.get("index")
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self._blocks):
            raise StreamParse(f"{event['type']} names block {index!r}, which was not started")
        block = self._blocks[index]
        if block.is_closed:
            raise StreamParse(f"{event['type']} names block {index}, which was closed")
        return block

    def _calls(self, stop_reason: str) -> tuple[ToolCall | MalformedCall, ...]:
        if stop_reason in NOT_RUNNABLE_STOPS:
            return ()
        calls = [block.as_call() for block in self._blocks if block.is_client_call]
        # A call that max_tokens cut may parse by luck; as the last block it is not to be trusted.
        if calls and stop_reason == "max_tokens" and self._blocks[-1].is_client_call:
            last = calls[-1]
            raw = last.raw if isinstance(last, MalformedCall) else json.dumps(last.arguments)
            calls[-1] = MalformedCall(
                last.id, last.name, raw, "the answer reached max_tokens inside this call"
            )
        return tuple(calls)

    def _warnings(self) -> list[str]:
        warnings = []
        if not self._saw_delta:
            warnings.append("the server sent no message_delta")
        if self._damaged_text:
            warnings.append("the answer held invalid UTF-8, shown as U+FFFD")
        return warnings


_AFTER_START = frozenset(
    {"content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}
)


def answer_from_message(
    message: dict[str, Any], request_id: str | None = None, *, has_invalid_utf8: bool = False
) -> Answer:
    """The answer of a server that ignored `stream` and sent the whole message as JSON."""
    assembler = StreamAssembler()
    content = message.get("content")
    if not isinstance(content, list):
        raise StreamParse("a JSON message without a content list")
    assembler.feed({"type": "message_start", "message": {**message, "content": []}})
    for index, block in enumerate(content):
        begin = {"type": "content_block_start", "index": index, "content_block": block}
        assembler.feed(begin, has_invalid_utf8=has_invalid_utf8)
        assembler.feed({"type": "content_block_stop", "index": index})
    assembler.feed({"type": "message_delta", "delta": {}})
    assembler.feed({"type": "message_stop"})
    return assembler.answer(request_id)


def _dict(event: dict[str, Any], name: str) -> dict[str, Any]:
    value = event.get(name)
    if not isinstance(value, dict):
        raise StreamParse(f"{event.get('type')} without {name}: {str(event)[:200]}")
    return value
