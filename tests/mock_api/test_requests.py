"""Tests how the server reads requests, and which it refuses. Uses real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ralph.mock_api import (
    Fault,
    MockApi,
    Model,
    Scenario,
    Turn,
    as_events,
    encode_events,
    validation,
)
from ralph.mock_api import (
    server as server_module,
)
from tests.mock_api.harness import HEADERS, HELLO, REQUEST, Connect, RawRequest, Serve, post, sent
from tests.rows import every_row

if TYPE_CHECKING:
    import httpx
    import pytest


def test_a_connection_is_kept_for_the_next_request(
    serve: Serve, connect: Connect, raw_request: RawRequest
) -> None:
    server = serve(HELLO)
    sock = connect(server)
    for _ in range(3):
        sock.sendall(raw_request({**REQUEST, "stream": True}))
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += sock.recv(65536)
    assert server.request_count == 3


def test_two_requests_sent_at_once_are_answered_in_turn(
    serve: Serve, connect: Connect, raw_request: RawRequest
) -> None:
    sock = connect(serve(Turn("first"), Fault(status=500)))
    sock.sendall(
        raw_request(REQUEST)
        + raw_request(REQUEST, headers="anthropic-version: 2023-06-01\r\nconnection: close\r\n")
    )
    data = b""
    while piece := sock.recv(65536):
        data += piece
    assert data.index(b"first") < data.index(b"HTTP/1.1 500")


def test_a_chunked_request_body_is_read(serve: Serve) -> None:
    body = json.dumps(REQUEST).encode()
    server = serve(HELLO)
    answer = sent(
        "POST",
        f"{server.base_url}/v1/messages?beta=true",
        content=iter([body[:10], body[10:]]),
        headers=HEADERS,
    )
    assert (answer.status_code, server.requests[0].body) == (200, body)
    assert server.requests[0].path == "/v1/messages?beta=true"


def test_a_client_that_expects_100_continue_is_asked_for_the_body(serve: Serve, connect: Connect) -> None:
    body = json.dumps(REQUEST).encode()
    sock = connect(serve(HELLO))
    sock.sendall(
        b"POST /v1/messages HTTP/1.1\r\nanthropic-version: 2023-06-01\r\nexpect: 100-continue\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    sock.sendall(body)
    assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")


def test_an_http_1_0_client_gets_a_body_without_chunks(serve: Serve, connect: Connect) -> None:
    body = json.dumps({**REQUEST, "stream": True}).encode()
    sock = connect(serve(Turn("Hello")))
    sock.sendall(
        b"POST /v1/messages HTTP/1.0\r\nanthropic-version: 2023-06-01\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )
    data = b""
    while piece := sock.recv(65536):
        data += piece
    assert data.partition(b"\r\n\r\n")[2] == encode_events(as_events(Turn("Hello"), model="claude-test"))


@every_row(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000, 431),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(
    serve: Serve, connect: Connect, sent: bytes, status: int
) -> None:
    sock = connect(serve(HELLO))
    sock.sendall(sent)
    assert sock.recv(1000).startswith(b"HTTP/1.1 %d" % status)


def test_other_paths_and_methods_are_refused_in_the_apis_words(serve: Serve) -> None:
    base = serve(HELLO).base_url
    missing = sent("GET", f"{base}/nothing")
    wrong_method = sent("GET", f"{base}/v1/messages")
    head = sent("HEAD", f"{base}/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert (head.status_code, head.content) == (404, b"")


def about(server: MockApi, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    version = {"anthropic-version": "2023-06-01"}
    return sent(method, f"{server.base_url}/v1/models/{path}", headers=version | headers)


MODELS = Scenario((HELLO,), models=(Model("claude-x", 200_000, 64_000), Model("a/b c")))


@every_row(
    ("path", "model_id", "tokens"),
    [
        ("claude-x", "claude-x", (200_000, 64_000)),
        ("claude-x?beta=true", "claude-x", (200_000, 64_000)),
        ("a%2Fb%20c", "a/b c", (None, None)),
    ],
)
def test_a_model_of_the_scenario_can_be_looked_up(path: str, model_id: str, tokens: tuple[int, int]) -> None:
    with MockApi(MODELS) as server:
        said = about(server, path).json()
    assert (said["type"], said["id"]) == ("model", model_id)
    assert (said["max_input_tokens"], said["max_tokens"]) == tokens


@every_row(
    ("path", "method", "message"),
    [
        ("claude-y", "GET", "model: claude-y"),
        ("claude-x%20", "GET", "model: claude-x "),
        ("a/b%20c", "GET", "Not found"),
        ("", "GET", "Not found"),
        ("claude-x", "POST", "Not found"),
    ],
)
def test_any_other_model_is_not_found_in_the_apis_words(path: str, method: str, message: str) -> None:
    with MockApi(MODELS) as server:
        answer = about(server, path, method)
    assert answer.status_code == 404
    assert answer.json()["error"] == {"type": "not_found_error", "message": message}


def test_a_lookup_uses_up_no_step_and_changes_no_number() -> None:
    scenario = Scenario((Turn("first"), Turn("second")), models=(Model("claude-x"),))
    with MockApi(scenario) as server:
        for text in ("first", "second"):
            assert about(server, "claude-x").status_code == 200
            assert about(server, "claude-y").status_code == 404
            answer = post(server)
            assert answer.json()["content"][0]["text"] == text
        assert answer.headers["request-id"] == "req_mock_000001"
        assert [request.method for request in server.requests] == ["POST", "POST"]
        assert (server.request_count, [lookup.index for lookup in server.lookups]) == (2, [0, 1, 2, 3])


def test_a_script_may_describe_models_too() -> None:
    scenario = Scenario(models=(Model("claude-x", 5),))
    with MockApi(scenario, script=lambda _request, index: Turn(f"answer {index}")) as server:
        assert about(server, "claude-x").json()["max_input_tokens"] == 5
        assert post(server).json()["content"][0]["text"] == "answer 0"


def test_a_key_is_asked_for_before_a_model_is_described() -> None:
    scenario = Scenario(models=(Model("claude-x"),), require_key=True)
    with MockApi(scenario) as server:
        assert about(server, "claude-x").status_code == 401
        assert about(server, "claude-x", **{"x-api-key": "k"}).status_code == 200


def test_a_key_is_asked_for_only_when_the_scenario_says_so(serve: Serve) -> None:
    body = json.dumps(REQUEST).encode()
    headers = {"anthropic-version": "2023-06-01"}
    open_server, strict = serve(HELLO), serve(HELLO, require_key=True)

    def status(server: MockApi, **extra: str) -> int:
        return sent(
            "POST", f"{server.base_url}/v1/messages", content=body, headers=headers | extra
        ).status_code

    assert (status(open_server), status(strict)) == (200, 401)
    assert (status(strict, authorization="Bearer x"), status(strict, **{"x-api-key": "x"})) == (200, 200)


def test_a_refused_request_uses_up_no_step(serve: Serve) -> None:
    server = serve(Turn("Hello"))
    assert (post(server, messages=[]).status_code, post(server).status_code) == (400, 200)
    assert server.request_count == 2


def test_validation_can_be_switched_off(serve: Serve) -> None:
    assert post(serve(HELLO, validate=False), messages=[], nonsense=1).status_code == 200


def test_a_paused_turn_may_be_sent_back_as_it_is(serve: Serve) -> None:
    server = serve(Turn("Searching", stop_reason="pause_turn"), Turn("Found"), Turn("More"))
    echoed = [*REQUEST["messages"], {"role": "assistant", "content": "Searching"}]
    statuses = [post(server).status_code, post(server, messages=echoed).status_code]
    assert (statuses, post(server, messages=echoed).status_code) == ([200, 200], 400)


def test_a_body_over_32_mb_is_too_large(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    assert validation.MAX_REQUEST_BYTES == 32 * 1024 * 1024
    monkeypatch.setattr(server_module, "MAX_REQUEST_BYTES", 100_000)
    server = serve(HELLO)
    padding = "x" * 100_000
    answer = post(server, messages=[{"role": "user", "content": padding}])
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


def test_without_parsing_any_body_gets_a_stream(
    serve: Serve, connect: Connect, raw_request: RawRequest
) -> None:
    server = serve(HELLO, parse_requests=False, keep_bodies=0)
    sock = connect(server)
    for _ in range(2):
        sock.sendall(raw_request(b"not json"))
        assert b"text/event-stream" in sock.recv(65536)
    assert [request.body for request in server.requests] == [None, None]
