"""Applies a fault to the events of a stream and to their bytes. Pure; `plan` decides when and how they are sent."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from ralph.mock_api.events import Event, encode_event

if TYPE_CHECKING:
    from ralph.mock_api.fault import Fault


def break_events(events: list[Event], fault: Fault) -> list[Event]:
    """The events of the broken stream, before any of it is cut off."""
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
    """The bytes of each event, with the fault's line ending and its malformed event."""
    encoded = [encode_event(event, fault.line_ending) for event in events]
    position = (fault.malformed_json_at_event or 0) - 1
    if 0 <= position < len(encoded):
        encoded[position] = _half_of_its_json(encoded[position], fault.line_ending.encode())
    return encoded


def _interleaved(events: list[Event]) -> list[Event]:
    """All blocks start, then take turns, one delta each, and stop at the very end, in order."""
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
