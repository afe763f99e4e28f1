"""Streams of other servers whose meaning is clear although they break a rule of the protocol."""

from __future__ import annotations

import pytest

from tests.api.foreign.wire import DONE, Row, events_of, note, play, sse, stream


def stopped_with(reason: str) -> bytes:
    """A good answer with a call and another stop reason."""
    return sse(
        *(
            {**event, "delta": {"stop_reason": reason}} if event["type"] == "message_delta" else event
            for event in events_of(note())
        )
    )


ROWS = [
    Row(
        "calls under end_turn",
        "litellm#34692, bifrost#3638",
        (stopped_with("end_turn"), DONE),
        peers="Claude Code runs the call",
        notes="1\n",
    ),
    Row(
        "no usage at all",
        "anthropic-sdk-python#1806, pi#6567",
        (stream(note(), usage=None), DONE),
        peers="the official SDK raises an error",
        notes="1\n",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_clear_stream_is_accepted(row, tmp_path) -> None:
    play(row, tmp_path)
