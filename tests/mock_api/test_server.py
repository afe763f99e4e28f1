"""Requests and connections, on real sockets."""

import json
import socket
import threading
import time

import httpx
import pytest

from ralph.mock_api import (
    FOREVER,
    Fault,
    MockApi,
    Scenario,
    Step,
    Text,
    ToolUse,
    Turn,
    as_events,
    encode_events,
    run_forever,
)
from ralph.mock_api.plan import Context, plan_step

REQUEST = {"model": "claude-test", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
HEADERS = {"anthropic-version": "2023-06-01", "x-api-key": "k"}
HELLO = Step(Turn("Hello"), repeat=FOREVER)


def post(server, **changes):
    return httpx.post(f"{server.base_url}/v1/messages", json={**REQUEST, **changes}, headers=HEADERS)


def test_a_stream_is_the_encoded_events_and_ends_with_the_last_chunk(serve, ask):
    turn = Turn(content=(Text("Größe " * 50), ToolUse("Bash", {"command": "ls"})))

    seen = ask(serve(turn))

    assert seen.chunks == (encode_events(as_events(turn, model="claude-test")), True)
    assert "content-type: text/event-stream; charset=utf-8" in seen.head
    assert seen.ended == "eof"


def test_without_stream_the_answer_is_the_message(serve):
    answer = post(serve(Turn("Hello")))

    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["content"] == [{"type": "text", "text": "Hello"}]
    assert answer.json()["model"] == "claude-test"
    assert answer.headers["request-id"] == "req_mock_000000"


def test_steps_are_used_up_in_order_and_then_requests_are_refused(serve):
    server = serve(Turn("one"), Step(Turn("two"), repeat=2), Fault(status=429))

    answers = [post(server) for _ in range(5)]

    assert [a.status_code for a in answers] == [200, 200, 200, 429, 400]
    assert [a.json()["content"][0]["text"] for a in answers[:3]] == ["one", "two", "two"]
    assert answers[4].json()["error"] == {
        "type": "invalid_request_error",
        "message": "scenario exhausted after 4 requests",
    }


def test_a_script_computes_the_next_step_from_the_request():
    def script(request, index):
        return Turn(f"{index}: {request.json()['messages'][-1]['content']}")

    with MockApi(script=script) as server:
        texts = [post(server).json()["content"][0]["text"] for _ in range(2)]

    assert texts == ["0: hi", "1: hi"]


def test_a_script_that_fails_is_told_to_the_client():
    def script(request, index):
        raise KeyError("nope")

    with MockApi(script=script) as server:
        answer = post(server)

    assert answer.status_code == 400
    assert "KeyError('nope')" in answer.json()["error"]["message"]


def test_a_script_and_steps_exclude_each_other():
    with pytest.raises(ValueError, match="script"):
        MockApi(Scenario(steps=(HELLO,)), script=lambda request, index: HELLO)


def test_a_connection_is_kept_for_the_next_request(serve, connect, raw_request):
    server = serve(HELLO)
    sock = connect(server)
    for _ in range(3):
        sock.sendall(raw_request({**REQUEST, "stream": True}))
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += sock.recv(65536)
    assert server.request_count == 3


def test_two_requests_sent_at_once_are_answered_in_turn(serve, connect, raw_request):
    sock = connect(serve(Turn("first"), Fault(status=500)))
    sock.sendall(
        raw_request(REQUEST)
        + raw_request(REQUEST, headers="anthropic-version: 2023-06-01\r\nconnection: close\r\n")
    )

    data = b""
    while piece := sock.recv(65536):
        data += piece

    assert data.index(b"first") < data.index(b"HTTP/1.1 500")


def test_a_chunked_request_body_is_read(serve):
    body = json.dumps(REQUEST).encode()

    server = serve(HELLO)
    answer = httpx.post(
        f"{server.base_url}/v1/messages?beta=true", content=iter([body[:10], body[10:]]), headers=HEADERS
    )

    assert answer.status_code == 200
    assert server.requests[0].body == body
    assert server.requests[0].path == "/v1/messages?beta=true"


def test_a_client_that_expects_100_continue_is_asked_for_the_body(serve, connect):
    body = json.dumps(REQUEST).encode()
    sock = connect(serve(HELLO))
    sock.sendall(
        b"POST /v1/messages HTTP/1.1\r\nanthropic-version: 2023-06-01\r\nexpect: 100-continue\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    sock.sendall(body)
    assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")


def test_an_http_1_0_client_gets_a_body_without_chunks(serve, connect):
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


@pytest.mark.parametrize(
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
def test_what_is_no_request_is_refused_and_the_connection_closed(serve, connect, sent, status):
    sock = connect(serve(HELLO))
    sock.sendall(sent)
    assert sock.recv(1000).startswith(b"HTTP/1.1 %d" % status)


def test_other_paths_and_methods_are_refused_in_the_apis_words(serve):
    base = serve(HELLO).base_url

    missing = httpx.get(f"{base}/nothing")
    wrong_method = httpx.get(f"{base}/v1/messages")
    head = httpx.head(f"{base}/nothing")

    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert (head.status_code, head.content) == (404, b"")


def test_a_model_can_be_looked_up(serve):
    assert httpx.get(f"{serve(HELLO).base_url}/v1/models/claude-x").json()["id"] == "claude-x"


def test_a_key_is_asked_for_only_when_the_scenario_says_so(serve):
    body = json.dumps(REQUEST).encode()
    headers = {"anthropic-version": "2023-06-01"}
    open_server, strict = serve(HELLO), serve(HELLO, require_key=True)

    def status(server, **extra):
        return httpx.post(f"{server.base_url}/v1/messages", content=body, headers=headers | extra).status_code

    assert status(open_server) == 200
    assert status(strict) == 401
    assert status(strict, authorization="Bearer x") == 200
    assert status(strict, **{"x-api-key": "x"}) == 200


def test_a_refused_request_uses_up_no_step(serve):
    server = serve(Turn("Hello"))

    assert post(server, messages=[]).status_code == 400
    assert post(server).status_code == 200
    assert server.request_count == 2


def test_validation_can_be_switched_off(serve):
    assert post(serve(HELLO, validate=False), messages=[], nonsense=1).status_code == 200


def test_a_paused_turn_may_be_sent_back_as_it_is(serve):
    server = serve(Turn("Searching", stop_reason="pause_turn"), Turn("Found"), Turn("More"))
    echoed = [*REQUEST["messages"], {"role": "assistant", "content": "Searching"}]

    statuses = [post(server).status_code, post(server, messages=echoed).status_code]
    assert statuses == [200, 200]
    assert post(server, messages=echoed).status_code == 400


def test_a_body_over_32_mb_is_too_large(serve):
    server = serve(HELLO)
    padding = "x" * (32 * 1024 * 1024)

    answer = post(server, messages=[{"role": "user", "content": padding}])

    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


def test_without_parsing_any_body_gets_a_stream(serve, connect, raw_request):
    server = serve(HELLO, parse_requests=False, keep_bodies=0)
    sock = connect(server)
    for _ in range(2):
        sock.sendall(raw_request(b"not json"))
        assert b"text/event-stream" in sock.recv(65536)
    assert [request.body for request in server.requests] == [None, None]


def test_twenty_thousand_deltas_are_one_piece_of_bytes(serve, ask):
    step = Step(Turn("x" * 20_000, chunk_chars=1), repeat=FOREVER)

    body, is_whole = ask(serve(step, parse_requests=False, keep_bodies=0)).chunks

    assert is_whole
    assert body.count(b"event: content_block_delta") == 20_000
    assert len(plan_step(step, Context()).parts) == 1


def test_without_parsing_a_repeated_answer_is_encoded_once(serve, ask):
    with MockApi(Scenario(steps=(HELLO,), parse_requests=False)) as server:
        ask(server, close=False, timeout_s=0.05)
        first = server._responder._cached
        ask(server, close=False, timeout_s=0.05)
        assert first is not None
        assert server._responder._cached is first


def test_without_parsing_tool_calls_still_get_ids_of_their_own(serve, ask):
    server = serve(Step(Turn((ToolUse("A"),)), repeat=FOREVER), parse_requests=False)

    assert b"toolu_mock_000000_0" in ask(server).data
    assert b"toolu_mock_000001_0" in ask(server).data


def test_twenty_clients_at_once_each_get_one_step(serve):
    server = serve(*(Turn(str(number)) for number in range(20)))
    texts = []

    def client():
        texts.append(post(server).json()["content"][0]["text"])

    threads = [threading.Thread(target=client) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(map(int, texts)) == list(range(20))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(stall_before_headers_s=float("inf")),
        Fault(stall_after_events=2),
        Fault(stall_after_events=0, ping_interval_s=0.01),
        Fault(drip_s=10),
        Fault(status=200, huge_body_bytes=10**12),
    ],
    ids=["before headers", "inside", "pings", "drip", "huge"],
)
def test_close_ends_a_hanging_answer_within_half_a_second(serve, connect, raw_request, fault):
    server = serve(fault)
    sock = connect(server)
    sock.sendall(raw_request({**REQUEST, "stream": True}))
    assert server.wait_for_requests(1)
    time.sleep(0.05)  # into the stall

    started = time.monotonic()
    server.close()

    assert time.monotonic() - started < 0.5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mock-api")]


def test_close_ends_idle_and_half_asked_connections(serve, connect):
    server = serve(HELLO)
    connect(server)
    connect(server).sendall(b"POST /v1/messages HTTP/1.1\r\ncontent-le")
    time.sleep(0.05)

    started = time.monotonic()
    server.close()
    server.close()

    assert time.monotonic() - started < 0.5


def test_a_client_that_leaves_a_stall_frees_its_thread(serve, connect, raw_request):
    server = serve(Fault(stall_after_events=1))
    sock = connect(server)
    sock.sendall(raw_request({**REQUEST, "stream": True}))
    sock.recv(1000)
    sock.close()

    end = time.monotonic() + 2
    while server._open and time.monotonic() < end:
        time.sleep(0.01)

    assert not server._open


def test_a_taken_port_is_an_error_and_a_closed_one_is_free_again(serve):
    server = serve(HELLO)
    with pytest.raises(OSError, match="in use"):
        MockApi(port=server.port).start()
    server.close()
    with MockApi(Scenario(steps=(HELLO,)), port=server.port) as again:
        assert post(again).status_code == 200


def test_only_this_machine_can_connect(serve):
    assert serve(HELLO)._listener.getsockname()[0] == "127.0.0.1"


def test_run_forever_serves_until_it_is_stopped(tmp_path):
    stop = threading.Event()
    record = tmp_path / "requests.jsonl"
    seen = []

    def ready(server):
        seen.append(post(server).status_code)
        stop.set()

    run_forever(Scenario(steps=(HELLO,)), record=record, ready=ready, stop=stop)

    assert seen == [200]
    assert json.loads(record.read_text())["body"] == REQUEST


def test_a_connection_that_opens_and_closes_does_no_harm(serve):
    server = serve(HELLO)
    for _ in range(5):
        socket.create_connection(("127.0.0.1", server.port)).close()
    assert post(server).status_code == 200
