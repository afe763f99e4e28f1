"""A turn as events of the API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ralph.mock_api import (
    ScenarioError,
    Text,
    Thinking,
    ToolUse,
    Turn,
    as_events,
    as_message,
    encode_event,
    encode_events,
)
from tests.rows import every_row

EVERYTHING = Turn(
    content=(
        Thinking("hm, let me see what there is", "c2ln"),
        Text("Größe 🙂 and a separator \u2028 of lines"),
        ToolUse("Bash", {"command": "ls -la", "n": [1, {"a": None}]}, id="toolu_1"),
        ToolUse("Read"),
    )
)


def collect(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content that the deltas of a stream make."""
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
        if event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            elif delta["type"] == "thinking_delta":
                block["thinking"] += delta["thinking"]
            elif delta["type"] == "signature_delta":
                block["signature"] = delta["signature"]
            else:
                block["json"] = block.get("json", "") + delta["partial_json"]
    for block in blocks.values():
        if "json" in block:
            block["input"] = json.loads(block.pop("json") or "{}")
    return list(blocks.values())


@every_row("chunk_chars", [0, 1, 7, 1000])
def test_deltas_add_up_to_the_message(chunk_chars: int) -> None:
    turn = Turn(content=EVERYTHING.content, chunk_chars=chunk_chars)
    assert collect(as_events(turn, index=3)) == as_message(turn, index=3)["content"]


def test_blocks_are_strictly_sequential() -> None:
    events = as_events(EVERYTHING)
    order = [
        (e["type"], e["index"]) for e in events if e["type"] in {"content_block_start", "content_block_stop"}
    ]
    assert order == [(kind, i) for i in range(4) for kind in ("content_block_start", "content_block_stop")]
    assert [e["type"] for e in events[-2:]] == ["message_delta", "message_stop"]


def test_stop_reason_follows_from_the_content_unless_given() -> None:
    assert as_message(Turn("hi"))["stop_reason"] == "end_turn"
    assert as_message(EVERYTHING)["stop_reason"] == "tool_use"
    assert (
        as_message(Turn(stop_reason="refusal", stop_details={"type": "refusal"})).items()
        >= {"stop_reason": "refusal", "stop_details": {"type": "refusal"}}.items()
    )
    assert as_events(Turn("hi", stop_reason=""))[-2]["delta"]["stop_reason"] == ""


def test_ids_left_open_differ_between_answers_and_blocks() -> None:
    turn = Turn(content=(ToolUse("A"), ToolUse("B")))
    ids = [block["id"] for index in (0, 1) for block in as_message(turn, index=index)["content"]]
    assert len(set(ids)) == 4


def test_usage_given_is_sent_verbatim_at_both_ends() -> None:
    events = as_events(Turn("hi", usage={"input_tokens": 7, "output_tokens": 5000}))
    assert events[0]["message"]["usage"] == {"input_tokens": 7, "output_tokens": 1}
    assert events[-2]["usage"] == {"input_tokens": 7, "output_tokens": 5000}


def test_arguments_that_are_no_json_are_streamed_verbatim() -> None:
    events = as_events(Turn(content=(ToolUse("Bash", input_json='{"command": "l'),), chunk_chars=5))
    assert (
        "".join(e["delta"]["partial_json"] for e in events if "delta" in e and "index" in e)
        == '{"command": "l'
    )


def test_a_raw_block_arrives_whole_in_its_start() -> None:
    block = {"type": "redacted_thinking", "data": "abc"}
    events = as_events(Turn(content=(block,)))
    assert [e["type"] for e in events[1:3]] == ["content_block_start", "content_block_stop"]
    assert events[1]["content_block"] == block


def test_pings_come_before_and_between() -> None:
    names = [e["type"] for e in as_events(Turn("abc", chunk_chars=1, pings_before_start=2, ping_every=3))]
    assert (names[:4], names[-1]) == (["ping", "ping", "message_start", "ping"], "message_stop")


def test_an_event_is_two_lines_and_an_empty_one() -> None:
    assert encode_event({"type": "ping"}) == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert encode_events([{"type": "ping"}], "\r\n") == b'event: ping\r\ndata: {"type":"ping"}\r\n\r\n'


def test_text_goes_out_as_utf8_and_lone_surrogates_as_escapes() -> None:
    assert "ö".encode() in encode_event({"type": "x", "text": "ö"})
    assert b"\\ud83d" in encode_event({"type": "x", "text": "ö\ud83d"})


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ScenarioError, match="chunk_chars"):
        Turn("hi", chunk_chars=-1)
