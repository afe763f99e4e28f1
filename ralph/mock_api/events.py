"""Converts a turn to the Messages API: the message, the events of the stream, and their bytes, as a fault breaks them.
The other dialects translate these events.
"""

from __future__ import annotations

import json
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from ralph.mock_api.scenario import Block, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.mock_api.scenario import Fault

Event = dict[str, Any]
Line = Event | str
"""An event of a stream in any dialect. A string stands for a line that is not JSON: a comment, or `data: [DONE]`."""
_Line = TypeVar("_Line", Event, Line)

DEFAULT_MODEL = "claude-mock"


class ScriptedAnswer(Struct, frozen=True):
    """An answer to one request, before it is translated to a dialect."""

    turn: Turn
    message: Event
    """The answer as the message of the Messages API."""
    payload: Mapping[str, Any]


PING: Event = {"type": "ping"}


def as_message(
    turn: Turn,
    *,
    index: int = 0,
    model: str = DEFAULT_MODEL,
    message_id: str = "msg_mock",
    call_id: str = "toolu_mock",
) -> dict[str, Any]:
    """The complete message, the answer without `stream`. Ids that the turn leaves open are made from `index`, the
    number of the answer from 0, and begin with `message_id` and `call_id`.
    """
    blocks = turn.blocks()
    calls_tool = any(isinstance(block, ToolUse) for block in blocks)
    default_reason = "tool_use" if calls_tool else "end_turn"
    message = {
        "id": turn.id or f"{message_id}_{index:06d}",
        "type": "message",
        "role": "assistant",
        "model": turn.model or model,
        "content": [_whole_block(block, f"{call_id}_{index:06d}_{at}") for at, block in enumerate(blocks)],
        "stop_reason": default_reason if turn.stop_reason is None else turn.stop_reason,
        "stop_sequence": turn.stop_sequence,
        "usage": dict(turn.usage) if turn.usage is not None else _default_usage(blocks),
    }
    if turn.stop_details is not None:
        message["stop_details"] = dict(turn.stop_details)
    return message


def as_events(turn: Turn, *, index: int = 0, model: str = DEFAULT_MODEL) -> list[Event]:
    """The events of an intact stream for a turn, in order. `index` is as in `as_message`."""
    return with_pings(message_events(turn, as_message(turn, index=index, model=model)), turn, PING)


def message_events(turn: Turn, whole: dict[str, Any]) -> list[Event]:
    """The events that stream `whole`, the message of the turn. They contain no pings."""
    message = dict(whole)
    end = {
        key: message.pop(key) for key in ("stop_reason", "stop_sequence", "stop_details") if key in message
    }
    usage = message.pop("usage")
    content = message.pop("content")
    start = {
        **message,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        # All input tokens, but at most one output token.
        "usage": {name: min(1, count) if name == "output_tokens" else count for name, count in usage.items()},
    }
    events: list[Event] = [{"type": "message_start", "message": start}]
    for position, (block, whole_block) in enumerate(zip(turn.blocks(), content, strict=True)):
        events.extend(_block_events(block, whole_block, position, turn.chunk_chars))
    events.append({"type": "message_delta", "delta": end, "usage": usage})
    events.append({"type": "message_stop"})
    return events


def with_pings(events: list[_Line], turn: Turn, ping: _Line) -> list[_Line]:
    """The events with the pings that the turn asks for."""
    events = [ping] * turn.pings_before_start + events
    spread: list[_Line] = []
    for count, event in enumerate(events, start=1):
        spread.append(event)
        if turn.ping_every and count % turn.ping_every == 0 and count < len(events):
            spread.append(ping)
    return spread


def encode_event(event: Line, line_ending: str = "\n") -> bytes:
    """A server-sent event in UTF-8, whose name is its `type`. As in the API, lone surrogates become JSON escapes."""
    end = line_ending.encode()
    if isinstance(event, str):
        return event.encode() + end + end
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    try:
        encoded = data.encode()
    except UnicodeEncodeError:
        encoded = json.dumps(event, separators=(",", ":")).encode()
    name = b"event: " + str(event["type"]).encode() + end if "type" in event else b""
    return name + b"data: " + encoded + end + end


def encode_events(events: Iterable[Line], line_ending: str = "\n") -> bytes:
    return b"".join(encode_event(event, line_ending) for event in events)


def _whole_block(block: Block, call_id: str) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, Thinking):
        return {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
    if isinstance(block, ToolUse):
        return {"type": "tool_use", "id": block.id or call_id, "name": block.name, "input": dict(block.input)}
    return dict(block)


def _block_events(block: Block, whole: dict[str, Any], position: int, chunk_chars: int) -> Iterator[Event]:
    opening = dict(whole)
    deltas: list[dict[str, Any]] = []
    if isinstance(block, Text):
        opening["text"] = ""
        deltas = [{"type": "text_delta", "text": part} for part in _split(block.text, chunk_chars)]
    elif isinstance(block, Thinking):
        opening |= {"thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": part} for part in _split(block.thinking, chunk_chars)
        ]
        deltas.append({"type": "signature_delta", "signature": block.signature})
    elif isinstance(block, ToolUse):
        opening["input"] = {}
        # The API begins with an empty fragment. A client that expects JSON in the first fragment fails on it.
        fragments = ["", *_split(input_json(block), chunk_chars)]
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in fragments]
    yield {"type": "content_block_start", "index": position, "content_block": opening}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": position, "delta": delta}
    yield {"type": "content_block_stop", "index": position}


def input_json(block: ToolUse) -> str:
    """The arguments of a call as they are streamed. Empty if there are none."""
    if block.input_json is not None:
        return block.input_json
    return json.dumps(block.input, ensure_ascii=False) if block.input else ""


def _split(text: str, chunk_chars: int) -> list[str]:
    size = chunk_chars or len(text) or 1
    return [text[start : start + size] for start in range(0, len(text), size)]


def _default_usage(blocks: Iterable[Block]) -> dict[str, int]:
    chars = sum(_count_chars(block) for block in blocks)
    # Four characters a token is the usual estimate for English.
    return {
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": max(1, chars // 4),
    }


def _count_chars(block: Block) -> int:
    if isinstance(block, Text):
        return len(block.text)
    if isinstance(block, Thinking):
        return len(block.thinking)
    return len(input_json(block)) if isinstance(block, ToolUse) else 0


def break_order(events: list[Event], fault: Fault) -> list[Event]:
    """Applies the parts of the fault that move or leave out events and fields of the Messages API."""
    if fault.interleaved:
        events = _interleaved(events)
    if fault.omit_tool_input:
        events = [_without_tool_input(event) for event in events]
    if fault.omit_message_delta:
        events = [event for event in events if event["type"] != "message_delta"]
    if fault.omit_message_stop:
        events = [event for event in events if event["type"] != "message_stop"]
    return events


def encode_broken(events: list[Line], fault: Fault) -> list[bytes]:
    """The bytes of each event. The fault defines the line endings, and may name an event whose JSON is cut off."""
    encoded = [encode_event(event, fault.line_ending) for event in events]
    position = (fault.malformed_json_at_event or 0) - 1
    if 0 <= position < len(encoded):
        end = fault.line_ending.encode()
        before, mark, data = encoded[position].removesuffix(end + end).partition(b"data: ")
        encoded[position] = before + mark + data[: len(data) // 2] + end + end
    return encoded


def _interleaved(events: list[Event]) -> list[Event]:
    """First all blocks start, then their deltas alternate, and at the end all stop."""
    is_block = [event["type"].startswith("content_block_") for event in events]
    if True not in is_block:
        return events
    first, end = is_block.index(True), len(events) - is_block[::-1].index(True)
    turns: dict[int, list[Event]] = {}
    for event in events[first:end]:
        if event["type"] != "content_block_stop":
            turns.setdefault(event["index"], []).append(event)
    rounds = chain.from_iterable(zip_longest(*turns.values()))
    stops = [event for event in events if event["type"] == "content_block_stop"]
    return [*events[:first], *(event for event in rounds if event is not None), *stops, *events[end:]]


def _without_tool_input(event: Event) -> Event:
    block = event.get("content_block", {})
    if block.get("type") != "tool_use":
        return event
    return {**event, "content_block": {key: value for key, value in block.items() if key != "input"}}
