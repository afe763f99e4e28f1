"""Requests contain what was given, answers contain what was scripted, and one connection serves many requests."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import respx

from ralph.mock_api import Fault, Step, Turn, as_events, as_message
from ralph.values.answer import ToolCall
from ralph.values.errors import StreamTransient
from ralph.values.events import RequestSent, ResponseDiscarded, StreamReceived
from ralph.values.ports import JournalError
from tests.api.harness import (
    HEAD,
    KEY,
    MESSAGE,
    START,
    STOP,
    WHOLE_TURN,
    await_no_exchange,
    end,
    http_answer,
    read_request,
    sse,
    text_block,
    tool_block,
)
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    import socket


def test_a_whole_answer_is_what_the_server_was_scripted_with(serve, rig) -> None:
    client = rig(serve(WHOLE_TURN))
    answer = client.send()
    assert answer.message == as_message(WHOLE_TURN, model="claude-test")
    assert answer.calls == (
        ToolCall("t1", "Read", {"file_path": "ä.py"}),
        ToolCall("t2", "Bash", {"command": "printf '🙂'"}),
    )
    assert (answer.text, answer.request_id, answer.warnings) == ("Ja: 世界 🙂", "req_mock_000000", ())


def test_every_event_is_passed_on_as_the_server_sent_it(serve, rig) -> None:
    turn = Turn("Hello", pings_before_start=1)
    client = rig(serve(turn))
    client.send()
    received = [event.event for event in client.events.of(StreamReceived)]
    assert received == as_events(turn, model="claude-test")
    assert not client.events.of(ResponseDiscarded)


def test_the_request_on_the_wire(raw_server, rig) -> None:
    server = raw_server(http_answer(sse(START, *text_block(0, "ok"), *end())))
    message = '{"role":"user","content":"ümläut 🙂"}'.encode()
    rig(server, headers=(("x-api-key", "sk-ünicode"), ("x-team", "a b"))).send(message)
    head, _, sent = server.requests[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    assert lines[0] == b"POST /v1/messages HTTP/1.1"
    assert sent == HEAD.body + b',"messages":[' + message + b"," + message + b"]}"
    assert (fields[b"anthropic-version"], fields[b"content-type"]) == (b"2026-10-21", b"application/json")
    assert fields[b"accept-encoding"] == b"identity"
    assert (fields[b"x-api-key"], fields[b"x-team"]) == ("sk-ünicode".encode("latin-1"), b"a b")
    assert fields[b"user-agent"], "some gateways refuse requests without it"
    assert len(fields) == len(lines) - 1, "a header was sent twice"


def test_a_fresh_connection_follows_a_broken_stream(serve, rig) -> None:
    # The stalled answer is given up in the middle; its connection must not serve the next request.
    server = serve(Step(WHOLE_TURN, Fault(malformed_json_at_event=2, stall_after_events=2)), Turn("again"))
    client = rig(server)
    with pytest.raises(Exception, match="undecodable JSON"):
        client.send()
    assert client.send().text == "again"


def test_an_answer_whose_connection_never_ends_does_not_hold_up_the_next(raw_server, rig) -> None:
    body = sse(START, *text_block(0, "ok"), *end())

    def never_ending(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(http_answer(body))
        sock.recv(1)

    client = rig(raw_server(never_ending))
    assert [client.send().text for _ in range(2)] == ["ok", "ok"]


def test_an_error_of_the_events_ends_the_request(raw_server, rig) -> None:
    """The journal may fail while the request is on its way."""
    is_there, was_left = threading.Event(), threading.Event()

    def never_answer(sock: socket.socket) -> None:
        read_request(sock)
        is_there.set()
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
        was_left.set()

    def fail(event: object) -> None:
        assert isinstance(event, RequestSent)
        assert is_there.wait(PATIENCE_S)
        raise JournalError(Path("/journal"), OSError(5, "Input/output error"))

    client = rig(raw_server(never_answer))
    client.events.emit = fail
    with pytest.raises(JournalError):
        client.send()
    assert was_left.wait(PATIENCE_S)
    assert await_no_exchange()


def test_the_http_seam_can_be_faked(rig) -> None:
    with respx.mock, httpx.HTTPTransport() as transport:
        route = respx.post("https://api.test/v1/messages")
        route.side_effect = [
            httpx.Response(
                200,
                headers={"content-type": "text/event-stream", "request-id": "r1"},
                content=sse(START, *tool_block(0, '{"command":', '"ls"}'), *end("tool_use")),
            ),
            httpx.Response(200, headers={"content-type": "text/event-stream"}, content=sse(START, STOP)[:-3]),
        ]
        client = rig("https://api.test", transport=transport)
        answer = client.send()
        assert (answer.calls, answer.request_id) == ((ToolCall("t1", "Bash", {"command": "ls"}),), "r1")
        with pytest.raises(StreamTransient):
            client.send()
        sent = route.calls[0].request
        assert sent.content == HEAD.body + b',"messages":[%b,%b]}' % (MESSAGE, MESSAGE)
        assert sent.headers[KEY[0]] == KEY[1]
        client.close()
