"""Faults instead of an answer, observed by a client that counts bytes."""

from __future__ import annotations

from typing import Any

import pytest

from ralph.mock_api import Fault, MockApi, Model, Scenario, ScenarioError, Step, Turn
from tests.mock_api.conftest import read_to_the_end
from tests.mock_api.harness import STREAMED, TURN, Ask, Connect, RawRequest, Serve, breaking, sent
from tests.rows import every_row


@every_row(
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
def test_a_status_comes_with_the_apis_error_object(serve: Serve, status: int, kind: Any) -> None:
    server = serve(Fault(status=status, headers={"Retry-After": "7"}))
    answer = sent(
        "POST", f"{server.base_url}/v1/messages", json=STREAMED, headers={"anthropic-version": "2023-06-01"}
    )
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "7")
    assert answer.json()["error"]["type"] == kind
    assert answer.json()["request_id"] == answer.headers["request-id"]


def test_an_error_can_say_what_the_api_would_say(serve: Serve, ask: Ask) -> None:
    seen = ask(serve(Fault(status=400, message="prompt is too long: 2 tokens > 1 maximum")))
    assert b'"message": "prompt is too long: 2 tokens > 1 maximum"' in seen.body


@every_row(
    ("body", "sent", "content_type"),
    [
        ("<h1>Bad gateway</h1>", b"<h1>Bad gateway</h1>", "text/html; charset=utf-8"),
        ("", b"", "text/plain"),
        (b"\xff\xfe", b"\xff\xfe", "text/html; charset=utf-8"),
        ({"a": [1]}, b'{"a": [1]}', "application/json"),
        ([1], b"[1]", "application/json"),
    ],
)
def test_a_body_of_ones_own(serve: Serve, ask: Ask, body: Any, sent: bytes, content_type: str) -> None:
    seen = ask(serve(Fault(status=502, body=body)))
    assert (seen.status, seen.body) == (502, sent)
    assert f"content-type: {content_type}" in seen.head


@pytest.mark.parametrize("at_accept", [False, True])
def test_a_reset_before_any_byte(serve: Serve, ask: Ask, connect: Connect, at_accept: bool) -> None:
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
def test_a_clean_end_before_any_byte(serve: Serve, ask: Ask, connect: Connect, at_accept: bool) -> None:
    server = serve(Fault(close_before_headers=True, at_accept=at_accept))
    if at_accept:
        assert connect(server).recv(1) == b""
    else:
        seen = ask(server)
        assert (seen.data, seen.ended) == (b"", "eof")
    assert server.request_count == (0 if at_accept else 1)


def test_an_at_accept_fault_on_a_kept_connection_comes_after_the_request(
    serve: Serve, connect: Connect, raw_request: RawRequest
) -> None:
    server = serve(Turn("Hello"), Fault(close_before_headers=True, at_accept=True))
    sock = connect(server)
    sock.sendall(raw_request(STREAMED))
    data = b""
    while not data.endswith(b"\r\n0\r\n\r\n"):
        data += sock.recv(65536)
    sock.sendall(raw_request(STREAMED))
    assert sock.recv(1) == b""


@every_row("size", [1, 8, 20, 60])
def test_a_reset_inside_the_headers(serve: Serve, ask: Ask, size: int) -> None:
    whole = ask(serve(TURN)).data
    seen = ask(serve(breaking(partial_headers_bytes=size)))
    assert (seen.data, seen.ended) == (whole[:size], "reset")


def test_bytes_that_are_no_http(serve: Serve, ask: Ask) -> None:
    seen = ask(serve(Fault(garbage="SSH-2.0-OpenSSH\r\n"), Fault(garbage=b"\x16\x03\x01\x00")))
    assert (seen.data, seen.ended) == (b"SSH-2.0-OpenSSH\r\n", "eof")


def test_a_huge_body_has_exactly_that_many_bytes(serve: Serve, ask: Ask) -> None:
    seen = ask(serve(Fault(status=500, huge_body_bytes=3_000_001)))
    assert "content-length: 3000001" in seen.head
    assert seen.body == b"x" * 3_000_001


@every_row(
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
def test_a_fault_that_cannot_work_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        Fault(**fields)


def test_a_step_is_neither_empty_nor_half_lost() -> None:
    for turn, fault, repeat in ((None, None, 1), (TURN, Fault(status=500), 1), (TURN, None, 0)):
        with pytest.raises(ScenarioError):
            Step(turn, fault, repeat)


@every_row(
    ("fault", "ended", "sent"),
    [
        (Fault(stall_before_headers_s=30), "timeout", ""),
        (Fault(drip_s=30), "timeout", "\r\n\r\n{"),
        (Fault(cut_after_bytes=8), "eof", '\r\n\r\n{"type":'),
        (Fault(cut_after_bytes=8, framing="reset"), "reset", '\r\n\r\n{"type":'),
        (Fault(partial_headers_bytes=8), "reset", "HTTP/1.1"),
        (Fault(reset_before_headers=True), "reset", ""),
        (Fault(close_before_headers=True), "eof", ""),
        (Fault(garbage="SSH-2.0"), "eof", "SSH-2.0"),
        (Fault(status=503, body="no"), "eof", "\r\n\r\nno"),
        (Fault(body={"max_tokens": 0}), "eof", '\r\n\r\n{"max_tokens": 0}'),
    ],
)
def test_what_is_said_of_a_model_breaks_as_it_should_every_time(
    connect: Connect, fault: Fault, ended: str, sent: str
) -> None:
    with MockApi(Scenario((Turn("whole"),), models=(Model("m", fault=fault),))) as server:
        for _ in range(2):
            sock = connect(server)
            sock.sendall(
                b"GET /v1/models/m HTTP/1.1\r\nanthropic-version: 2023-06-01\r\nconnection: close\r\n\r\n"
            )
            seen = read_to_the_end(sock, silent_after=sent.encode() if ended == "timeout" else None)
            assert seen.ended == ended
            assert seen.data.decode().endswith(sent)
        assert len(server.lookups) == 2


@every_row(
    ("fields", "message"),
    [
        ({"id": ""}, "id: must not be empty"),
        ({"max_tokens": 0}, "max_tokens: must be at least 1"),
        ({"max_input_tokens": -1}, "max_input_tokens: must be at least 1"),
        ({"fault": Fault(stall_after_events=0)}, "stall_after_events: has no effect here"),
        ({"fault": Fault(cut_after_events=0)}, "cut_after_events: has no effect here"),
        ({"fault": Fault(at_accept=True, reset_before_headers=True)}, "at_accept: has no effect"),
        ({"fault": Fault(json_instead_of_sse=True)}, "json_instead_of_sse: has no effect"),
        ({"max_tokens": 5, "fault": Fault(status=500)}, "a fault that answers by itself"),
    ],
)
def test_a_model_that_could_not_be_described_so_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Model(**{"id": "m", **fields})
    assert str(caught.value).startswith(message)
