"""Faults inside an answer, observed by a client that counts bytes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from ralph.mock_api import ErrorEvent, Fault, Step, Turn, as_events, encode_event, encode_events
from tests.mock_api.harness import STREAMED, TURN, Ask, Connect, RawRequest, Serve, breaking
from tests.rows import every_row

EVENTS = as_events(TURN, model="claude-test")
WHOLE = encode_events(EVENTS)


def names(body: bytes) -> list[str]:
    return [
        line.removeprefix(b"event: ").decode() for line in body.splitlines() if line.startswith(b"event: ")
    ]


def test_bytes_of_ones_own_can_be_served_as_a_stream_and_cut(serve: Serve, ask: Ask) -> None:
    stream = encode_events([EVENTS[0], EVENTS[0]])
    seen = ask(serve(Fault(body=stream, content_type="text/event-stream", cut_after_bytes=10)))
    assert (seen.status, seen.body, seen.ended) == (200, stream[:10], "eof")
    assert f"content-length: {len(stream)}" in seen.head


@every_row("framing", ["close", "chunked", "reset", "length"])
@every_row("cut", [0, 1, 333, len(WHOLE) - 1, len(WHOLE)])
def test_a_cut_after_any_byte_in_every_framing(serve: Serve, ask: Ask, framing: str, cut: int) -> None:
    seen = ask(serve(breaking(cut_after_bytes=cut, framing=framing)), close=False)
    body, is_terminated = seen.chunks if framing == "chunked" else (seen.body, False)
    assert body == WHOLE[:cut]
    assert not is_terminated
    assert seen.ended == ("reset" if framing == "reset" else "eof")
    assert (f"content-length: {len(WHOLE)}" in seen.head) == (framing == "length")


@every_row("count", [0, 1, 5, len(EVENTS), len(EVENTS) + 9])
def test_a_cut_after_events(serve: Serve, ask: Ask, count: int) -> None:
    seen = ask(serve(breaking(cut_after_events=count, framing="close")))
    assert seen.body == encode_events(EVENTS[:count])


def test_a_reset_loses_no_byte_of_a_long_answer(serve: Serve, ask: Ask) -> None:
    turn = Turn("x" * 3_000_000, chunk_chars=0)
    seen = ask(serve(Step(turn, Fault(framing="reset"))))
    assert len(seen.body) == len(encode_events(as_events(turn, model="claude-test")))
    assert seen.ended == "reset"


@every_row("after", [0, 1, 4, 999])
def test_an_error_event_takes_the_place_of_the_rest(serve: Serve, ask: Ask, after: int) -> None:
    seen = ask(serve(breaking(error_event=ErrorEvent("api_error", "boom", after_events=after))))
    error = encode_event({"type": "error", "error": {"type": "api_error", "message": "boom"}})
    assert seen.chunks == (encode_events(EVENTS[:after]) + error, True)


def test_silence_before_the_headers(serve: Serve, ask: Ask) -> None:
    started = time.monotonic()
    seen = ask(serve(breaking(stall_before_headers_s=0.1)))
    assert time.monotonic() - started >= 0.1
    assert seen.chunks[0] == WHOLE


def test_silence_inside_the_stream_and_then_the_rest(serve: Serve, ask: Ask) -> None:
    started = time.monotonic()
    seen = ask(serve(breaking(stall_after_events=3, stall_s=0.1)))
    assert time.monotonic() - started >= 0.1
    assert seen.chunks == (WHOLE, True)


@pytest.mark.parametrize("after", [0, 3])
def test_silence_for_ever(serve: Serve, ask: Ask, after: int) -> None:
    sent = encode_events(EVENTS[:after]) or b"\r\n\r\n"
    seen = ask(serve(breaking(stall_after_events=after, framing="close")), silent_after=sent)
    assert (seen.body, seen.ended) == (encode_events(EVENTS[:after]), "timeout")


def test_a_stall_right_before_a_cut_comes_first(serve: Serve, ask: Ask) -> None:
    started = time.monotonic()
    seen = ask(serve(breaking(stall_after_events=2, stall_s=0.1, cut_after_events=2, framing="close")))
    assert time.monotonic() - started >= 0.1
    assert seen.body == encode_events(EVENTS[:2])


def test_pings_only_for_ever(serve: Serve, connect: Connect, raw_request: RawRequest) -> None:
    sock = connect(serve(Fault(stall_after_events=0, ping_interval_s=0.01, framing="close")))
    sock.sendall(raw_request(STREAMED))
    data = b""
    while names(data).count("ping") < 20:
        data += sock.recv(65536)
    assert set(names(data)) == {"ping"}


def test_pings_during_a_stall_and_then_the_rest(serve: Serve, ask: Ask) -> None:
    seen = ask(serve(breaking(stall_after_events=1, stall_s=0.1, ping_interval_s=0.02)))
    body, is_whole = seen.chunks
    assert is_whole
    assert body.replace(encode_event({"type": "ping"}), b"") == WHOLE
    assert 1 <= names(body).count("ping") <= 6


def test_a_slow_drip_sends_one_byte_at_a_time(
    serve: Serve, connect: Connect, raw_request: RawRequest
) -> None:
    sock = connect(serve(breaking(drip_s=0.01, framing="close")))
    started = time.monotonic()
    sock.sendall(raw_request(STREAMED))
    data = b""
    while len(data.partition(b"\r\n\r\n")[2]) < 11:
        data += sock.recv(65536)
    assert time.monotonic() - started >= 10 * 0.01
    assert WHOLE.startswith(data.partition(b"\r\n\r\n")[2])


def test_interleaved_blocks_stop_at_the_very_end(serve: Serve, ask: Ask) -> None:
    order = names(ask(serve(breaking(interleaved=True))).chunks[0])
    assert order[-4:] == ["content_block_stop", "content_block_stop", "message_delta", "message_stop"]
    assert order.count("content_block_stop") == 2


def test_the_deltas_of_interleaved_blocks_take_turns(serve: Serve, ask: Ask) -> None:
    body, _ = ask(serve(breaking(interleaved=True))).chunks
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]
    order = [event["index"] for event in events if "index" in event]
    assert order[:6] == [0, 1] * 3
    assert sorted(map(str, events)) == sorted(map(str, EVENTS)), "the same events in another order"
    for index in (0, 1):
        assert [e for e in events if e.get("index") == index] == [
            e for e in EVENTS if e.get("index") == index
        ]


def test_pings_take_turns_with_interleaved_blocks_and_an_empty_answer_has_none(
    serve: Serve, ask: Ask
) -> None:
    pinging = Turn(TURN.content, ping_every=2)
    server = serve(Step(pinging, Fault(interleaved=True)), Step(Turn(), Fault(interleaved=True)))
    assert names(ask(server).chunks[0]).count("ping") == names(encode_events(as_events(pinging))).count(
        "ping"
    )
    assert names(ask(server).chunks[0]) == ["message_start", "message_delta", "message_stop"]


def test_a_huge_line_can_open_like_an_event(serve: Serve, ask: Ask) -> None:
    fault = Fault(body="data: ", huge_body_bytes=100_000, content_type="text/event-stream", framing="chunked")
    assert ask(serve(fault)).chunks == (b"data: " + b"x" * 100_000, True)


def test_a_fault_without_a_turn_breaks_a_greeting(serve: Serve, ask: Ask) -> None:
    assert b"Hello from the" in ask(serve(Fault(omit_message_stop=True))).data


def without(kind: str) -> bytes:
    return encode_events(event for event in EVENTS if event["type"] != kind)


MALFORMED = encode_event(EVENTS[1]).splitlines()[1]
DATA = MALFORMED.removeprefix(b"data: ")
LIMIT = {"anthropic-ratelimit-requests-remaining": "1"}


@every_row(
    ("fault", "body", "head"),
    [
        ({"framing": "close"}, WHOLE, "connection: close"),
        ({"framing": "length"}, WHOLE, f"content-length: {len(WHOLE)}"),
        ({"drip_s": 0}, WHOLE, "transfer-encoding: chunked"),
        ({"content_type": "text/html"}, WHOLE, "content-type: text/html"),
        ({"headers": LIMIT}, WHOLE, "anthropic-ratelimit-requests-remaining: 1"),
        *(({"line_ending": end}, encode_events(EVENTS, end), "chunked") for end in ("\n", "\r\n", "\r")),
        ({"omit_message_stop": True}, without("message_stop"), "chunked"),
        ({"omit_message_delta": True}, without("message_delta"), "chunked"),
        ({"omit_tool_input": True}, WHOLE.replace(b',"input":{}', b""), "chunked"),
        (
            {"malformed_json_at_event": 2},
            WHOLE.replace(MALFORMED, b"data: " + DATA[: len(DATA) // 2], 1),
            "chunked",
        ),
    ],
)
def test_a_whole_answer_that_is_another(
    serve: Serve, ask: Ask, fault: dict[str, Any], body: bytes, head: str
) -> None:
    seen = ask(serve(breaking(**fault)))
    assert (seen.chunks if "chunked" in seen.head else (seen.body, True)) == (body, True)
    assert head in seen.head
    assert ("chunked" in seen.head) == (fault.get("framing") is None)


def test_json_although_a_stream_was_asked_for(serve: Serve, ask: Ask) -> None:
    seen = ask(serve(breaking(json_instead_of_sse=True)))
    assert "content-type: application/json" in seen.head
    assert seen.body.startswith(b'{"id": "msg_mock_000000"')
