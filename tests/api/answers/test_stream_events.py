"""Tests what servers may do inside a stream: errors, invalid UTF-8, line ends, unknown and missing parts (A16, A22,
A23).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Step, as_message
from ralph.values.answer import MalformedCall
from ralph.values.errors import ErrorClass, StreamParse, StreamTransient, classify_error
from ralph.values.events import ResponseDiscarded
from ralph.values.usage import TokenUsage
from tests.api.harness import (
    KEY,
    START,
    STOP,
    WHOLE_TURN,
    compact_stream,
    end,
    failure,
    http_answer,
    read_request,
    sse,
    text_block,
)
from tests.rows import every_row

if TYPE_CHECKING:
    import socket

MESSAGE = as_message(WHOLE_TURN)
WHOLE = MESSAGE["content"]


def test_a16_a_rejection_inside_the_stream_is_permanent_and_redacted(answering) -> None:
    error = failure(
        answering(sse(START, {"type": "error", "error": {"type": "billing_error", "message": KEY[1]}}))
    )
    assert isinstance(error, StreamParse)
    assert error.message == "[redacted]"
    assert classify_error(error) is ErrorClass.PERMANENT


def test_no_field_of_an_error_inside_the_stream_repeats_the_key(answering) -> None:
    said = {"type": KEY[1], "code": KEY[1], "message": "no", "request_id": KEY[1]}
    error = failure(answering(sse(START, {"type": "error", "error": said, "request_id": KEY[1]})))
    assert isinstance(error, StreamTransient)
    assert str(error).startswith("[redacted]: no")
    assert KEY[1] not in repr((error.args, error.error_type, error.error_code, error.request_id)[1:])


def test_what_was_thrown_away_is_counted(answering) -> None:
    client = answering(sse(START, *text_block(0, "half")))
    assert failure(client).tokens == TokenUsage(input=3, output=2), "4 bytes of text, which the server bills"
    assert client.events.of(ResponseDiscarded) == [ResponseDiscarded("m1")]


@every_row("first", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\n\n", b": a comment\n\n", b"id: 1\nretry: 5\n"])
def test_what_may_stand_before_the_first_event_is_skipped(answering, first) -> None:
    assert answering(first + sse(START, *text_block(0, "ok"), *end())).send().text == "ok"


def test_a_byte_order_mark_inside_the_stream_is_text(answering) -> None:
    assert answering(sse(START, *text_block(0, "\ufeff", "x\ufeff"), *end())).send().text == "\ufeffx\ufeff"


def test_separators_that_only_python_takes_for_line_ends_are_text(answering) -> None:
    said = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    stream = "".join(
        f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        for event in (START, *text_block(0, said), *end())
    )
    assert answering(stream.encode()).send().text == said


def test_data_over_several_lines_is_one_event(answering) -> None:
    start = json.dumps(START, indent=1).replace("\n", "\ndata: ")
    assert answering(f"data: {start}\n\n".encode() + sse(*text_block(0, "ok"), *end())).send().text == "ok"


def test_names_of_events_may_be_missing_or_wrong(answering) -> None:
    stream = sse(START, *text_block(0, "ok"), *end()).replace(b"data: ", b"event: nonsense\ndata: ", 3)
    assert answering(stream).send().text == "ok"


def whole_block(**fields: Any) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": 0, "content_block": fields},
        {"type": "content_block_stop", "index": 0},
    ]


@pytest.mark.parametrize("delta", [{"type": "text_delta"}, {"type": "input_json_delta", "partial_json": 1}])
def test_a22_a_known_delta_of_an_unknown_block_is_ignored(answering, delta) -> None:
    begin, finish = whole_block(type="future_block", text="as it came")
    event = {"type": "content_block_delta", "index": 0, "delta": delta}
    answer = answering(sse(START, begin, event, finish, *end())).send()
    assert answer.content == [{"type": "future_block", "text": "as it came"}]


@pytest.mark.parametrize("value", [b'"\\ud83d"'])
def test_a_whole_input_is_looked_at_as_strictly_as_one_in_pieces(answering, value) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": 12321}}
    stream = sse(START, *whole_block(**call), *end("tool_use")).replace(b"12321", value)
    (malformed,) = answering(stream).send().calls
    assert isinstance(malformed, MalformedCall)
    assert "command" in malformed.raw


def test_a_thinking_block_without_a_signature_gets_an_empty_one_as_it_must_go_back_with_one(
    answering,
) -> None:
    answer = answering(sse(START, *whole_block(type="thinking", thinking="hm"), *end())).send()
    assert answer.content == [{"type": "thinking", "thinking": "hm", "signature": ""}]


def test_a_null_in_a_message_delta_is_no_news_and_its_last_stop_counts(answering) -> None:
    begin = {"type": "message_start", "message": {"id": "m1", "container": {"id": "c"}}}
    refused = {"stop_reason": "refusal", "stop_sequence": "x", "stop_details": {"type": "refusal"}}
    edits = {"applied_edits": [{"type": "clear_tool_uses_20250919"}]}
    ends: list[dict[str, Any]] = [
        {"type": "message_delta", "delta": {**refused, "container": None}, "context_management": edits},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "context_management": None},
    ]
    message = answering(sse(begin, *text_block(0, "ok"), *ends, STOP)).send().message
    assert (message["container"], message["context_management"]) == ({"id": "c"}, edits)
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert "stop_details" not in message


# --- What is whole: only an answer with `message_stop` (A6, A7). tests/api/dialects/test_faults.py cuts streams anywhere.


def test_a7_a_cut_inside_carriage_returns_is_no_answer(raw_server, rig) -> None:
    stream = compact_stream(WHOLE_TURN, "\r")
    streams = iter([stream[:-2], stream[:-1], stream])

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(http_answer(next(streams)))

    client = rig(raw_server(serve))
    for _ in range(2):
        with pytest.raises(StreamTransient):
            client.send()
    assert client.send().content == WHOLE


def test_a7_a_last_line_that_ends_in_cr_alone_is_whole_whatever_comes_after(serve, rig) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(line_ending="\r", framing="reset"))))
    assert client.send().content == WHOLE


@every_row("framing", ["length", "close", "chunked", "reset"])
def test_every_framing_of_a_whole_answer_is_accepted(serve, rig, framing) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(framing=framing))))
    answer = client.send()
    assert answer.message == {**answer.message, **MESSAGE, "model": "claude-test"}
