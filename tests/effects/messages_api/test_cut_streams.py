"""An answer cut at any byte is thrown away whole; only one whose `message_stop` arrived is an answer (A6, A7)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ralph.core.errors import StreamTransient
from ralph.core.events import ResponseDiscarded
from ralph.core.tool_calls import ToolCall
from ralph.mock_api import Fault, Step, as_events, as_message, encode_events
from tests.effects.messages_api.harness import (
    WHOLE_TURN,
    http_answer,
    read_request,
    reset,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

MESSAGE = as_message(WHOLE_TURN)


def compact_stream(line_end: str) -> bytes:
    """Thinking, text and two tool calls in few bytes, without what servers may leave out."""
    lines = []
    for event in as_events(WHOLE_TURN):
        kept = {"type": "message_start", "message": {"id": "m1"}} if "message" in event else event
        lines.append(f"data:{json.dumps(kept, ensure_ascii=False, separators=(',', ':'))}{line_end * 2}")
    return "".join(lines).encode()


def cutting_server(stream: bytes, framing: str) -> Callable[[socket.socket], None]:
    """Sends one byte more of the stream at every connection, beginning with none."""
    cuts: Iterator[int] = iter(range(len(stream) + 1))

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        cut = stream[: next(cuts)]
        if framing == "chunked":
            opening = b"%x\r\n" % len(stream)
            sock.sendall(http_answer(opening + cut, headers="transfer-encoding: chunked\r\n"))
        else:
            sock.sendall(http_answer(cut))
        if framing == "reset":
            reset(sock)

    return serve


@pytest.mark.parametrize(("framing", "line_end"), [("close", "\n"), ("chunked", "\r\n"), ("reset", "\r\n")])
def test_a6_a7_a_cut_at_any_byte_is_no_answer(raw_server, rig, framing, line_end) -> None:
    stream = compact_stream(line_end)
    server = raw_server(cutting_server(stream, framing))
    client = rig(server)
    for _ in range(len(stream)):
        with pytest.raises(StreamTransient):
            client.send()
    assert client.send().content == MESSAGE["content"]
    assert server.connections == len(stream) + 1  # nothing below `send_message` asked again


def test_a7_a_cut_inside_carriage_returns_is_no_answer(raw_server, rig) -> None:
    stream = compact_stream("\r")
    streams = iter([stream[:-2], stream[:-1], stream])

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(http_answer(next(streams)))

    client = rig(raw_server(serve))
    for _ in range(2):
        with pytest.raises(StreamTransient):
            client.send()
    assert client.send().content == MESSAGE["content"]


@pytest.mark.parametrize("framing", ["length", "close", "chunked", "reset"])
def test_every_framing_of_a_whole_answer_is_accepted(serve, rig, framing) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(framing=framing))))
    answer = client.send()
    assert answer.message == {**answer.message, **MESSAGE, "model": "claude-test"}


def test_a7_a_reset_after_message_stop_is_ignored(raw_server, rig) -> None:
    def serve(sock: socket.socket) -> None:
        read_request(sock)
        size = b"%x\r\n" % (len(stream) + 100)  # more was promised than ever comes
        sock.sendall(http_answer(size + stream, headers="transfer-encoding: chunked\r\n"))
        reset(sock)

    stream = encode_events(as_events(WHOLE_TURN))
    client = rig(raw_server(serve))
    assert client.send().calls == (
        ToolCall("t1", "Read", {"file_path": "ä.py"}),
        ToolCall("t2", "Bash", {"command": "printf '🙂'"}),
    )
    assert not client.events.of(ResponseDiscarded)


def test_a6_an_answer_without_message_stop_is_discarded_once(serve, rig) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(omit_message_stop=True))))
    with pytest.raises(StreamTransient, match="before message_stop"):
        client.send()
    assert [event.message_id for event in client.events.of(ResponseDiscarded)] == ["m1"]


def test_a6_an_answer_cut_before_message_start_discards_nothing(serve, rig) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(cut_after_events=0, framing="close"))))
    with pytest.raises(StreamTransient, match="before message_start"):
        client.send()
    assert not client.events.of(ResponseDiscarded)
