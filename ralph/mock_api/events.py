"""Converts a turn to the API's format. The results are the message object, the events of the stream, and the bytes of
the events. A fault may break the events. No I/O happens here.
"""

from __future__ import annotations

import json
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from ralph.mock_api.scenario import Block, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ralph.mock_api.fault import Fault

Event = dict[str, Any]

DEFAULT_MODEL = "claude-mock"
PING: Event = {"type": "ping"}


def as_message(turn: Turn, *, index: int = 0, model: str = DEFAULT_MODEL) -> dict[str, Any]:
    """The complete message of a turn. It answers a request without `stream`. `index` is the number of the answer,
    counted from 0. If the turn defines no ids, ids are made from this number.
    """
    blocks = turn.blocks()
    calls_tool = any(isinstance(block, ToolUse) for block in blocks)
    default_reason = "tool_use" if calls_tool else "end_turn"
    message = {
        "id": turn.id or f"msg_mock_{index:06d}",
        "type": "message",
        "role": "assistant",
        "model": turn.model or model,
        "content": [_whole_block(block, index, position) for position, block in enumerate(blocks)],
        "stop_reason": default_reason if turn.stop_reason is None else turn.stop_reason,
        "stop_sequence": turn.stop_sequence,
        "usage": dict(turn.usage) if turn.usage is not None else _default_usage(blocks),
    }
    if turn.stop_details is not None:
        message["stop_details"] = dict(turn.stop_details)
    return message


def as_events(turn: Turn, *, index: int = 0, model: str = DEFAULT_MODEL) -> list[Event]:
    """The events of an intact stream for a turn, in order. `index` is as in `as_message`."""
    message = as_message(turn, index=index, model=model)
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
        "usage": _first_usage(usage),
    }
    events = [PING] * turn.pings_before_start
    events.append({"type": "message_start", "message": start})
    for position, (block, whole) in enumerate(zip(turn.blocks(), content, strict=True)):
        events.extend(_block_events(block, whole, position, turn.chunk_chars))
    events.append({"type": "message_delta", "delta": end, "usage": usage})
    events.append({"type": "message_stop"})
    return events if not turn.ping_every else list(_with_pings(events, turn.ping_every))


def encode_event(event: Event, line_ending: str = "\n") -> bytes:
    """Encodes an event as a server-sent event in UTF-8. As in the API, lone surrogates become JSON escapes."""
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    try:
        encoded = data.encode()
    except UnicodeEncodeError:
        encoded = json.dumps(event, separators=(",", ":")).encode()
    end = line_ending.encode()
    return b"event: " + str(event["type"]).encode() + end + b"data: " + encoded + end + end


def encode_events(events: Iterable[Event], line_ending: str = "\n") -> bytes:
    return b"".join(encode_event(event, line_ending) for event in events)


def _whole_block(block: Block, index: int, position: int) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, Thinking):
        return {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
    if isinstance(block, ToolUse):
        call_id = block.id or f"toolu_mock_{index:06d}_{position}"
        return {"type": "tool_use", "id": call_id, "name": block.name, "input": dict(block.input)}
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
        fragments = ["", *_split(_input_json(block), chunk_chars)]
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in fragments]
    yield {"type": "content_block_start", "index": position, "content_block": opening}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": position, "delta": delta}
    yield {"type": "content_block_stop", "index": position}


def _input_json(block: ToolUse) -> str:
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
    return len(_input_json(block)) if isinstance(block, ToolUse) else 0


def _first_usage(usage: dict[str, Any]) -> dict[str, Any]:
    """The usage in `message_start`. It contains all input tokens, but at most one output token."""
    return {**usage, "output_tokens": min(1, usage["output_tokens"])} if "output_tokens" in usage else usage


def _with_pings(events: list[Event], every: int) -> Iterator[Event]:
    for count, event in enumerate(events, start=1):
        yield event
        if count % every == 0 and count < len(events):
            yield PING


def break_events(events: list[Event], fault: Fault) -> list[Event]:
    """Applies the fault to the events of a stream. It does not apply a fault that cuts off the bytes of the stream."""
    if fault.interleaved:
        events = _interleaved(events)
    if fault.omit_tool_input:
        events = [_without_tool_input(event) for event in events]
    if fault.omit_message_delta:
        events = [event for event in events if event["type"] != "message_delta"]
    if fault.omit_message_stop:
        events = [event for event in events if event["type"] != "message_stop"]
    if fault.error_event is not None:
        error = {"type": fault.error_event.type, "message": fault.error_event.message}
        events = [*events[: fault.error_event.after_events], {"type": "error", "error": error}]
    return events


def encode_broken(events: list[Event], fault: Fault) -> list[bytes]:
    """The bytes of each event. The fault defines the line endings, and may name an event whose JSON is cut off."""
    encoded = [encode_event(event, fault.line_ending) for event in events]
    position = (fault.malformed_json_at_event or 0) - 1
    if 0 <= position < len(encoded):
        encoded[position] = _half_of_its_json(encoded[position], fault.line_ending.encode())
    return encoded


def _interleaved(events: list[Event]) -> list[Event]:
    """Reorders the events. First all blocks start. Then the deltas of the blocks alternate. At the end, all blocks
    stop.
    """
    is_block = [event["type"].startswith("content_block_") for event in events]
    if True not in is_block:
        return events
    first, end = is_block.index(True), len(events) - is_block[::-1].index(True)
    turns: dict[Any, list[Event]] = {}
    for event in events[first:end]:
        if event["type"] != "content_block_stop":
            turns.setdefault(event.get("index"), []).append(event)  # pings, without an index, take turns too
    rounds = chain.from_iterable(zip_longest(*turns.values()))
    stops = [event for event in events if event["type"] == "content_block_stop"]
    return [*events[:first], *(event for event in rounds if event is not None), *stops, *events[end:]]


def _without_tool_input(event: Event) -> Event:
    block = event.get("content_block", {})
    if block.get("type") != "tool_use":
        return event
    return {**event, "content_block": {key: value for key, value in block.items() if key != "input"}}


def _half_of_its_json(encoded: bytes, end: bytes) -> bytes:
    name, _, rest = encoded.partition(end + b"data: ")
    data = rest.removesuffix(end + end)
    return name + end + b"data: " + data[: len(data) // 2] + end + end
