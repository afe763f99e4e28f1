"""Playing a scenario, and closing the server at once. Uses real sockets."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import TYPE_CHECKING

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
from tests.mock_api.harness import HELLO, REQUEST, Ask, Connect, RawRequest, Serve, post
from tests.patience import within_s
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.mock_api import RecordedRequest

LAST_CHUNK = b"0\r\n\r\n"


def test_a_stream_is_the_encoded_events_and_ends_with_the_last_chunk(serve: Serve, ask: Ask) -> None:
    turn = Turn(content=(Text("Größe " * 50), ToolUse("Bash", {"command": "ls"})))
    seen = ask(serve(turn))
    assert seen.chunks == (encode_events(as_events(turn, model="claude-test")), True)
    assert "content-type: text/event-stream; charset=utf-8" in seen.head
    assert seen.ended == "eof"


def test_without_a_thread_left_a_client_is_hung_up_on_and_the_next_one_is_served(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(HELLO)
    really_start = threading.Thread.start
    refused = threading.Event()

    def start(thread: threading.Thread) -> None:
        if not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        really_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert (connect(server).recv(1), post(server).status_code) == (b"", 200)


def test_without_stream_the_answer_is_the_message(serve: Serve) -> None:
    answer = post(serve(Turn("Hello")))
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["content"] == [{"type": "text", "text": "Hello"}]
    assert (answer.json()["model"], answer.headers["request-id"]) == ("claude-test", "req_mock_000000")


def test_steps_are_used_up_in_order_and_then_requests_are_refused(serve: Serve) -> None:
    server = serve(Turn("one"), Step(Turn("two"), repeat=2), Fault(status=429))
    answers = [post(server) for _ in range(5)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429, 400]
    assert [a.json()["content"][0]["text"] for a in answers[:3]] == ["one", "two", "two"]
    assert answers[4].json()["error"] == {
        "type": "invalid_request_error",
        "message": "scenario exhausted after 4 requests",
    }


def test_a_script_computes_the_next_step_from_the_request() -> None:
    def script(request: RecordedRequest, index: int) -> Turn:
        return Turn(f"{index}: {request.json()['messages'][-1]['content']}")

    with MockApi(script=script) as server:
        texts = [post(server).json()["content"][0]["text"] for _ in range(2)]
    assert texts == ["0: hi", "1: hi"]


def test_a_script_that_fails_is_told_to_the_client() -> None:
    def script(request: RecordedRequest, index: int) -> Turn:
        raise KeyError("nope")

    with MockApi(script=script) as server:
        answer = post(server)
    assert answer.status_code == 400
    assert "KeyError('nope')" in answer.json()["error"]["message"]


def test_a_script_and_steps_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="script"):
        MockApi(Scenario(steps=(HELLO,)), script=lambda request, index: HELLO)


def test_thousands_of_deltas_are_one_piece_of_bytes(serve: Serve, ask: Ask) -> None:
    step = Step(Turn("x" * 5000, chunk_chars=1), repeat=FOREVER)
    body, is_whole = ask(serve(step, parse_requests=False, keep_bodies=0)).chunks
    assert is_whole
    assert (body.count(b"event: content_block_delta"), len(plan_step(step, Context()).parts)) == (5000, 1)


def test_without_parsing_a_repeated_answer_is_encoded_once(serve: Serve, ask: Ask) -> None:
    with MockApi(Scenario(steps=(HELLO,), parse_requests=False)) as server:
        ask(server, close=False, silent_after=LAST_CHUNK)
        first = server._responder._cached
        ask(server, close=False, silent_after=LAST_CHUNK)
        assert first is not None
        assert server._responder._cached is first


def test_without_parsing_tool_calls_still_get_ids_of_their_own(serve: Serve, ask: Ask) -> None:
    server = serve(Step(Turn((ToolUse("A"),)), repeat=FOREVER), parse_requests=False)
    assert b"toolu_mock_000000_0" in ask(server).data
    assert b"toolu_mock_000001_0" in ask(server).data


def test_twenty_clients_at_once_each_get_one_step(serve: Serve) -> None:
    server = serve(*(Turn(str(number)) for number in range(20)))
    texts = []

    def client() -> None:
        texts.append(post(server).json()["content"][0]["text"])

    threads = [threading.Thread(target=client) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, texts)) == list(range(20))


@every_row(
    "fault",
    [
        Fault(stall_before_headers_s=float("inf")),
        Fault(stall_after_events=2),
        Fault(stall_after_events=0, ping_interval_s=0.01),
        Fault(drip_s=1e6),
        Fault(status=200, huge_body_bytes=10**12),
    ],
)
def test_close_ends_a_hanging_answer_at_once(
    serve: Serve, connect: Connect, raw_request: RawRequest, fault: Fault | None
) -> None:
    server = serve(fault)
    sock = connect(server)
    sock.sendall(raw_request({**REQUEST, "stream": True}))
    assert server.wait_for_requests(1)
    time.sleep(0.05)  # into the stall
    server.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mock-api")]


def test_close_ends_idle_and_half_asked_connections(serve: Serve, connect: Connect) -> None:
    server = serve(HELLO)
    connect(server)
    connect(server).sendall(b"POST /v1/messages HTTP/1.1\r\ncontent-le")
    time.sleep(0.05)
    server.close()
    server.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mock-api")]


def test_a_client_that_leaves_a_stall_frees_its_thread(
    serve: Serve, connect: Connect, raw_request: RawRequest
) -> None:
    server = serve(Fault(stall_after_events=1))
    sock = connect(server)
    sock.sendall(raw_request({**REQUEST, "stream": True}))
    sock.recv(1000)
    sock.close()
    end = time.monotonic() + within_s()
    while server._open and time.monotonic() < end:
        time.sleep(0.01)
    assert not server._open


def test_a_taken_port_is_an_error_and_a_closed_one_is_free_again(serve: Serve) -> None:
    server = serve(HELLO)
    with pytest.raises(OSError, match="in use"):
        MockApi(port=server.port).start()
    server.close()
    with MockApi(Scenario(steps=(HELLO,)), port=server.port) as again:
        assert post(again).status_code == 200


def test_only_this_machine_can_connect(serve: Serve) -> None:
    listener = serve(HELLO)._listener
    assert listener is not None
    assert listener.getsockname()[0] == "127.0.0.1"


def test_run_forever_serves_until_it_is_stopped(tmp_path: Path) -> None:
    stop = threading.Event()
    record = tmp_path / "requests.jsonl"
    seen = []

    def ready(server: MockApi) -> None:
        seen.append(post(server).status_code)
        stop.set()

    run_forever(Scenario(steps=(HELLO,)), record=record, ready=ready, stop=stop)
    assert (seen, json.loads(record.read_text())["body"]) == ([200], REQUEST)


def test_a_connection_that_opens_and_closes_does_no_harm(serve: Serve) -> None:
    server = serve(HELLO)
    for _ in range(5):
        socket.create_connection(("127.0.0.1", server.port)).close()
    assert post(server).status_code == 200
