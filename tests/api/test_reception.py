"""Pieces of a body in an order that no real server can be made to send."""

from __future__ import annotations

import json
from typing import Any

import httpx

from ralph.api.clocks import ClockLimits, ResponseClocks
from ralph.api.exchange import BodyEnd, ResponseHead
from ralph.api.reception import Reception
from tests.fakes import FakeClock, RecordingEvents

MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


class ArrivedItems:
    """An exchange whose items have all arrived."""

    def __init__(self, *items: Any) -> None:
        self._items = list(items)

    def next_item(self, _until_s: float | None, _waiting_for: str) -> Any:
        return self._items.pop(0)


def test_an_empty_first_piece_does_not_end_a_body() -> None:
    """The header of a gzip body, in a packet of its own, is decompressed to nothing."""
    head = ResponseHead(200, httpx.Headers({"content-type": "application/json"}))
    exchange: Any = ArrivedItems(head, b"", json.dumps(MESSAGE).encode(), BodyEnd())
    clock = FakeClock()
    reception = Reception(
        exchange,
        ResponseClocks(ClockLimits(), clock.now_s()),
        clock,
        events=RecordingEvents(),
        redact=str,
        host="host",
        answered=set(),
    )
    assert reception.receive().content == MESSAGE["content"]
