"""Every fault, seen by a client that counts bytes."""

import time

import httpx
import pytest

from ralph.mock_api import (
    ErrorEvent,
    Fault,
    ScenarioError,
    Step,
    Text,
    ToolUse,
    Turn,
    as_events,
    encode_event,
    encode_events,
)

REQUEST = {
    "model": "claude-test",
    "max_tokens": 100,
    "stream": True,
    "messages": [{"role": "user", "content": "hi"}],
}
TURN = Turn(content=(Text("Größe 🙂"), ToolUse("Bash", {"command": "ls"})), chunk_chars=3)
EVENTS = as_events(TURN, model="claude-test")
WHOLE = encode_events(EVENTS)


def breaking(**fault):
    return Step(TURN, Fault(**fault))


def names(body):
    return [
        line.removeprefix(b"event: ").decode() for line in body.splitlines() if line.startswith(b"event: ")
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
        (799, "api_error"),
    ],
)
def test_a_status_comes_with_the_apis_error_object(serve, status, kind):
    server = serve(Fault(status=status, headers={"Retry-After": "7"}))

    answer = httpx.post(
        f"{server.base_url}/v1/messages", json=REQUEST, headers={"anthropic-version": "2023-06-01"}
    )

    assert answer.status_code == status
    assert answer.headers["retry-after"] == "7"
    assert answer.json()["error"]["type"] == kind
    assert answer.json()["request_id"] == answer.headers["request-id"]


def test_an_error_can_say_what_the_api_would_say(serve, ask):
    seen = ask(serve(Fault(status=400, message="prompt is too long: 2 tokens > 1 maximum")))

    assert b'"message": "prompt is too long: 2 tokens > 1 maximum"' in seen.body


@pytest.mark.parametrize(
    ("body", "sent", "content_type"),
    [
        ("<h1>Bad gateway</h1>", b"<h1>Bad gateway</h1>", "text/html; charset=utf-8"),
        ("", b"", "text/plain"),
        (b"\xff\xfe", b"\xff\xfe", "text/html; charset=utf-8"),
        ({"a": [1]}, b'{"a": [1]}', "application/json"),
        ([1], b"[1]", "application/json"),
    ],
)
def test_a_body_of_ones_own(serve, ask, body, sent, content_type):
    seen = ask(serve(Fault(status=502, body=body)))

    assert (seen.status, seen.body) == (502, sent)
    assert f"content-type: {content_type}" in seen.head


def test_a_redirect_is_a_status_and_a_header(serve, ask):
    seen = ask(serve(Fault(status=307, headers={"location": "http://127.0.0.1:9/x"})))

    assert seen.status == 307
    assert "location: http://127.0.0.1:9/x" in seen.head


def test_bytes_of_ones_own_can_be_served_as_a_stream_and_cut(serve, ask):
    stream = encode_events([EVENTS[0], EVENTS[0]])
    seen = ask(serve(Fault(body=stream, content_type="text/event-stream", cut_after_bytes=10)))

    assert (seen.status, seen.body, seen.ended) == (200, stream[:10], "eof")
    assert f"content-length: {len(stream)}" in seen.head


@pytest.mark.parametrize("at_accept", [False, True])
def test_a_reset_before_any_byte(serve, ask, connect, at_accept):
    server = serve(Fault(reset_before_headers=True, at_accept=at_accept), Turn("next"))
    if at_accept:
        with pytest.raises(ConnectionResetError):  # possibly before connect() returns
            connect(server).recv(1)
    else:
        seen = ask(server)
        assert (seen.data, seen.ended) == (b"", "reset")
    assert b"next" in ask(server).data
    assert server.request_count == (1 if at_accept else 2)


@pytest.mark.parametrize("at_accept", [False, True])
def test_a_clean_end_before_any_byte(serve, ask, connect, at_accept):
    server = serve(Fault(close_before_headers=True, at_accept=at_accept))
    if at_accept:
        assert connect(server).recv(1) == b""
    else:
        seen = ask(server)
        assert (seen.data, seen.ended) == (b"", "eof")
    assert server.request_count == (0 if at_accept else 1)


def test_an_at_accept_fault_on_a_kept_connection_comes_after_the_request(serve, connect, raw_request):
    server = serve(Turn("Hello"), Fault(close_before_headers=True, at_accept=True))
    sock = connect(server)
    sock.sendall(raw_request(REQUEST))
    data = b""
    while not data.endswith(b"\r\n0\r\n\r\n"):
        data += sock.recv(65536)
    sock.sendall(raw_request(REQUEST))

    assert sock.recv(1) == b""


@pytest.mark.parametrize("size", [1, 8, 20, 60])
def test_a_reset_inside_the_headers(serve, ask, size):
    whole = ask(serve(TURN)).data
    seen = ask(serve(breaking(partial_headers_bytes=size)))

    assert (seen.data, seen.ended) == (whole[:size], "reset")


def test_bytes_that_are_no_http(serve, ask):
    seen = ask(serve(Fault(garbage="SSH-2.0-OpenSSH\r\n"), Fault(garbage=b"\x16\x03\x01\x00")))

    assert (seen.data, seen.ended) == (b"SSH-2.0-OpenSSH\r\n", "eof")


@pytest.mark.parametrize("framing", ["close", "chunked", "reset", "length"])
@pytest.mark.parametrize("cut", [0, 1, 333, len(WHOLE) - 1, len(WHOLE)])
def test_a_cut_after_any_byte_in_every_framing(serve, ask, framing, cut):
    seen = ask(serve(breaking(cut_after_bytes=cut, framing=framing)), close=False)

    body, is_terminated = seen.chunks if framing == "chunked" else (seen.body, False)
    assert body == WHOLE[:cut]
    assert not is_terminated
    assert seen.ended == ("reset" if framing == "reset" else "eof")
    assert (f"content-length: {len(WHOLE)}" in seen.head) == (framing == "length")


@pytest.mark.parametrize("count", [0, 1, 5, len(EVENTS), len(EVENTS) + 9])
def test_a_cut_after_events(serve, ask, count):
    seen = ask(serve(breaking(cut_after_events=count, framing="close")))

    assert seen.body == encode_events(EVENTS[:count])


@pytest.mark.parametrize(("framing", "ended"), [("close", "eof"), ("reset", "reset"), ("length", "eof")])
def test_a_whole_answer_in_another_framing(serve, ask, framing, ended):
    seen = ask(serve(breaking(framing=framing)))

    assert (seen.body, seen.ended) == (WHOLE, ended)
    assert "chunked" not in seen.head


def test_a_reset_loses_no_byte_of_a_long_answer(serve, ask):
    turn = Turn("x" * 3_000_000, chunk_chars=0)
    seen = ask(serve(Step(turn, Fault(framing="reset"))))

    assert len(seen.body) == len(encode_events(as_events(turn, model="claude-test")))
    assert seen.ended == "reset"


@pytest.mark.parametrize("after", [0, 1, 4, 999])
def test_an_error_event_takes_the_place_of_the_rest(serve, ask, after):
    seen = ask(serve(breaking(error_event=ErrorEvent("api_error", "boom", after_events=after))))

    error = encode_event({"type": "error", "error": {"type": "api_error", "message": "boom"}})
    assert seen.chunks == (encode_events(EVENTS[:after]) + error, True)


def test_silence_before_the_headers(serve, ask):
    started = time.monotonic()
    seen = ask(serve(breaking(stall_before_headers_s=0.1)))

    assert time.monotonic() - started >= 0.1
    assert seen.chunks[0] == WHOLE


def test_silence_inside_the_stream_and_then_the_rest(serve, ask):
    started = time.monotonic()
    seen = ask(serve(breaking(stall_after_events=3, stall_s=0.1)))

    assert time.monotonic() - started >= 0.1
    assert seen.chunks == (WHOLE, True)


@pytest.mark.parametrize("after", [0, 3])
def test_silence_for_ever(serve, ask, after):
    seen = ask(serve(breaking(stall_after_events=after, framing="close")), timeout_s=0.1)

    assert (seen.body, seen.ended) == (encode_events(EVENTS[:after]), "timeout")


def test_a_stall_right_before_a_cut_comes_first(serve, ask):
    started = time.monotonic()
    seen = ask(serve(breaking(stall_after_events=2, stall_s=0.1, cut_after_events=2, framing="close")))

    assert time.monotonic() - started >= 0.1
    assert seen.body == encode_events(EVENTS[:2])


def test_pings_only_for_ever(serve, connect, raw_request):
    sock = connect(serve(Fault(stall_after_events=0, ping_interval_s=0.01, framing="close")))
    sock.sendall(raw_request(REQUEST))
    data = b""
    while names(data).count("ping") < 20:
        data += sock.recv(65536)

    assert set(names(data)) == {"ping"}


def test_pings_during_a_stall_and_then_the_rest(serve, ask):
    seen = ask(serve(breaking(stall_after_events=1, stall_s=0.1, ping_interval_s=0.02)))

    body, is_whole = seen.chunks
    assert is_whole
    assert body.replace(encode_event({"type": "ping"}), b"") == WHOLE
    assert 1 <= names(body).count("ping") <= 6


def test_a_slow_drip_sends_one_byte_at_a_time(serve, connect, raw_request):
    sock = connect(serve(breaking(drip_s=0.01, framing="close")))
    started = time.monotonic()
    sock.sendall(raw_request(REQUEST))
    data = b""
    while len(data.partition(b"\r\n\r\n")[2]) < 11:
        data += sock.recv(65536)

    assert time.monotonic() - started >= 10 * 0.01
    assert WHOLE.startswith(data.partition(b"\r\n\r\n")[2])


def test_a_drip_without_delay_is_whole(serve, ask):
    assert ask(serve(breaking(drip_s=0))).chunks == (WHOLE, True)


def test_malformed_json_in_one_event(serve, ask):
    body, is_whole = ask(serve(breaking(malformed_json_at_event=2))).chunks

    line = encode_event(EVENTS[1]).splitlines()[1]
    data = line.removeprefix(b"data: ")
    assert is_whole
    assert body == WHOLE.replace(line, b"data: " + data[: len(data) // 2], 1)


def test_a_wrong_content_type(serve, ask):
    seen = ask(serve(breaking(content_type="text/html")))

    assert "content-type: text/html\r\n" in seen.head + "\r\n"
    assert seen.chunks[0] == WHOLE


def test_interleaved_blocks_stop_at_the_very_end(serve, ask):
    order = names(ask(serve(breaking(interleaved=True))).chunks[0])

    assert order[-4:] == ["content_block_stop", "content_block_stop", "message_delta", "message_stop"]
    assert order.count("content_block_stop") == 2


@pytest.mark.parametrize("missing", ["message_stop", "message_delta"])
def test_a_closing_event_can_be_missing(serve, ask, missing):
    body, is_whole = ask(serve(breaking(**{f"omit_{missing}": True}))).chunks

    assert is_whole
    assert body == encode_events(event for event in EVENTS if event["type"] != missing)


def test_a_tool_call_can_start_without_input(serve, ask):
    body, _ = ask(serve(breaking(omit_tool_input=True))).chunks

    assert b'"input":{}' in WHOLE
    assert body == WHOLE.replace(b',"input":{}', b"")


def test_a_huge_body_has_exactly_that_many_bytes(serve, ask):
    seen = ask(serve(Fault(status=500, huge_body_bytes=3_000_001)))

    assert "content-length: 3000001" in seen.head
    assert seen.body == b"x" * 3_000_001


def test_a_huge_line_can_open_like_an_event(serve, ask):
    fault = Fault(body="data: ", huge_body_bytes=100_000, content_type="text/event-stream", framing="chunked")

    assert ask(serve(fault)).chunks == (b"data: " + b"x" * 100_000, True)


def test_json_although_a_stream_was_asked_for(serve, ask):
    seen = ask(serve(breaking(json_instead_of_sse=True)))

    assert "content-type: application/json" in seen.head
    assert seen.body.startswith(b'{"id": "msg_mock_000000"')


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_every_line_ending_the_standard_allows(serve, ask, ending):
    assert ask(serve(breaking(line_ending=ending))).chunks[0] == encode_events(EVENTS, ending)


def test_a_fault_without_a_turn_breaks_a_greeting(serve, ask):
    assert b"Hello from the" in ask(serve(Fault(omit_message_stop=True))).data


def test_a_fault_may_break_nothing_and_only_add_headers(serve, ask):
    seen = ask(serve(breaking(headers={"anthropic-ratelimit-requests-remaining": "1"})))

    assert "anthropic-ratelimit-requests-remaining: 1" in seen.head
    assert seen.chunks == (WHOLE, True)


@pytest.mark.parametrize(
    "fields",
    [
        {"status": 99},
        {"status": 1000},
        {"cut_after_bytes": -1},
        {"stall_before_headers_s": float("nan")},
        {"drip_s": -0.1},
        {"malformed_json_at_event": 0},
        {"stall_s": 1},
        {"stall_after_events": 0, "ping_interval_s": 0},
        {"stall_after_events": 0, "ping_interval_s": 1, "framing": "length"},
        {"at_accept": True},
        {"message": "x"},
        {"status": 400, "message": "x", "body": "y"},
        {"status": 500, "cut_after_events": 1},
        {"garbage": "x", "omit_message_stop": True},
        {"json_instead_of_sse": True, "line_ending": "\r"},
    ],
)
def test_a_fault_that_cannot_work_is_refused(fields):
    with pytest.raises(ScenarioError):
        Fault(**fields)


def test_a_step_is_neither_empty_nor_half_lost():
    for arguments in ({}, {"turn": TURN, "fault": Fault(status=500)}, {"turn": TURN, "repeat": 0}):
        with pytest.raises(ScenarioError):
            Step(**arguments)
