"""Bodies that are larger than they seem, and connections that carry more than was asked for."""

from __future__ import annotations

import functools
import gzip
import json
import struct
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ralph.api import reception
from ralph.api.reception import Reception, ResponseClocks
from ralph.api.transport import BodyEnd, ResponseHead
from ralph.values.errors import HttpError, StreamParse, StreamTransient
from ralph.values.events import Notice
from ralph.values.limits import ClockLimits
from tests.api.harness import (
    START,
    await_no_exchange,
    end,
    http_answer,
    read_request,
    sse,
    text_block,
    tool_block,
)
from tests.fakes import FakeClock, RecordingEvents
from tests.patience import PATIENCE_S
from tests.processes.memory import peak_kib, reset_peak
from tests.rows import every_row

if TYPE_CHECKING:
    import socket


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
WHOLE = sse(START, *text_block(0, "ok"), *end())


def encoded(body: bytes, encoding: str, status: str = "200 OK") -> bytes:
    return http_answer(body, status=status, headers=f"content-encoding: {encoding}\r\n")


GZIP = gzip.compress(WHOLE)
MEMBERS = gzip.compress(WHOLE[:20]) + gzip.compress(WHOLE[20:90]) + gzip.compress(WHOLE[90:])
CODED = {
    "gzip": ("gzip", GZIP),
    "its old name": ("x-gzip", GZIP),
    "with a parameter": ("gzip;q=1", GZIP),
    "beside identity": ("identity, gzip", GZIP),
    "in several members": ("gzip", MEMBERS),
    "with padding": ("gzip", GZIP + bytes(500)),
    "with other bytes after it": ("gzip", GZIP + b"more"),
    "zlib": ("deflate", zlib.compress(WHOLE)),
    "zlib without its header": ("deflate", zlib.compress(WHOLE)[2:-4]),
    "gzip under another name": ("deflate", GZIP),
    "identity": ("identity", WHOLE),
    "no coding: a charset": ("UTF-8", WHOLE),
    "no coding: none": ("none", WHOLE),
    "no coding: binary": ("binary", WHOLE),
    "text that is labelled gzip": ("gzip", WHOLE),
    "text that is labelled br": ("br", WHOLE),
    "a comment that is labelled gzip": ("gzip", b": OPENROUTER PROCESSING\n\n" + WHOLE),
}


@every_row(("encoding", "body"), CODED.values())
def test_a_body_that_was_compressed_unasked_is_read_all_the_same(raw_server, rig, encoding, body) -> None:
    assert rig(raw_server(encoded(body, encoding))).send().text == "ok"


@every_row("size", [1, 2, 7])
def test_members_of_gzip_may_be_cut_anywhere(raw_server, rig, size) -> None:
    def serve(sock: socket.socket) -> None:
        read_request(sock)
        body = encoded(MEMBERS, "gzip")
        for at in range(0, len(body), size):
            sock.sendall(body[at : at + size])

    assert rig(raw_server(serve)).send().text == "ok"


@every_row("encoding", ["br", "gzip, gzip", "zstd"])
def test_other_encodings_are_refused_by_name(raw_server, rig, encoding) -> None:
    with pytest.raises(StreamParse, match="not asked for") as caught:
        rig(raw_server(encoded(GZIP, encoding))).send()
    assert encoding in str(caught.value)


@every_row("body", [b"no gzip at all", b"\x1f\x8b" + WHOLE, GZIP[:-12]])
def test_a_compressed_body_that_is_broken_or_cut_is_an_error(raw_server, rig, body) -> None:
    with pytest.raises((StreamParse, StreamTransient), match=r"content-encoding|before message_stop"):
        rig(raw_server(encoded(body, "gzip"))).send()


@every_row("label", ["text/plain", "application/json", "text/html", "application/octet-stream", ""])
def test_a_stream_under_another_label_is_read_with_a_notice(answering, label) -> None:
    client = answering(WHOLE, label)
    assert client.send().text == "ok"
    [notice] = client.events.of(Notice)
    assert f"labelled its stream as {label or 'no content type'}" in notice.text


@functools.cache
def bomb(layers: int) -> bytes:
    """A hundred million bytes, compressed this number of times."""
    if layers > 1:
        return gzip.compress(bomb(layers - 1))
    packer, zeros = zlib.compressobj(9, wbits=31), b"\0" * 10_000_000
    first, other = (packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    # After a full flush, the same bytes are compressed to the same bytes: once is enough for all other parts.
    checksum = functools.reduce(lambda before, part: zlib.crc32(part, before), [zeros] * 10, 0)
    return first + other * 9 + packer.flush()[:-8] + struct.pack("<II", checksum, 10 * len(zeros))


@linux_only
@every_row(("status", "layers"), [("200 OK", 1), ("200 OK", 3), ("500 No", 3)])
def test_a14_a_bomb_of_a_few_kilobytes_stays_small(raw_server, rig, status, layers) -> None:
    client = rig(raw_server(encoded(bomb(layers), ", ".join(["gzip"] * layers), status)))
    reset_peak()
    before_kib = peak_kib()
    with pytest.raises((StreamParse, StreamTransient, HttpError)):
        client.send()
    assert peak_kib() - before_kib < 60_000
    assert await_no_exchange()


@linux_only
def test_a10_an_answer_that_never_ends_is_refused_before_it_fills_the_memory(raw_server, rig) -> None:
    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(http_answer(sse(START, *text_block(0)[:1])))
        delta = sse(*text_block(0, "x" * 100_000)[1:2])
        while True:
            sock.sendall(delta)

    client = rig(raw_server(serve))
    client.events.emit = lambda _event: None  # the recording sink would keep them all in memory
    reset_peak()
    before_kib = peak_kib()
    with pytest.raises(StreamParse, match="larger than 64 MiB"):
        client.send()
    assert peak_kib() - before_kib < 150_000


def test_a15_a_json_body_that_is_too_long_is_cut_and_refused(raw_server, rig) -> None:
    words = {"type": "text", "text": "x" * (reception.JSON_BODY_BYTES + 1_000_000)}
    body = json.dumps({"type": "message", "content": [words], "stop_reason": "end_turn"}).encode()
    with pytest.raises(StreamParse, match="not an event stream"):
        rig(raw_server(http_answer(body, "application/json"))).send()


def test_a23_a_damaged_tool_input_in_a_json_message_asks_again(raw_server, rig) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "a?b"}}
    message = {"type": "message", "content": [call], "stop_reason": "tool_use"}
    body = json.dumps(message).encode().replace(b"a?b", b"a\xffb")
    with pytest.raises(StreamTransient, match="invalid UTF-8"):
        rig(raw_server(http_answer(body, "application/json"))).send()


def test_a13_a_content_type_that_comes_twice_is_still_one(raw_server, rig) -> None:
    answer = http_answer(WHOLE, headers="content-type: text/event-stream\r\n")
    assert rig(raw_server(answer)).send().text == "ok"


def test_a13_a_key_in_a_content_type_is_not_repeated(answering) -> None:
    with pytest.raises(StreamParse) as caught:
        answering(b"{}", "SK-test-0123456789 sk-test-0123456789").send()
    assert "sk-test-0123456789" not in str(caught.value)


# --- One connection for many requests


def framed(body: bytes, *, chunked: bool = False) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    if chunked:
        return head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    return head + b"content-length: %d\r\n\r\n%s" % (len(body), body)


STALE = sse(START, *tool_block(0, '{"command": "echo stale"}'), *end("tool_use"))


@every_row("chunked", [False, True])
@every_row("behind", [framed(STALE), b"\r\n", b"0\r\n\r\n", b"x"])
def test_bytes_behind_an_answer_never_pass_for_the_next_one(raw_server, rig, chunked, behind) -> None:
    def serve(sock: socket.socket) -> None:
        while read_request(sock):
            sock.sendall(framed(WHOLE, chunked=chunked) + behind)

    server = raw_server(serve)
    client = rig(server)
    for asked in range(1, 4):
        assert client.send().text == "ok"
        assert await_no_exchange()
        assert server.connections == asked, "a connection that holds more than its answer is not used again"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_connection_that_holds_nothing_more_is_used_again(raw_server, rig, chunked) -> None:
    def serve(sock: socket.socket) -> None:
        while read_request(sock):
            sock.sendall(framed(WHOLE, chunked=chunked))

    server = raw_server(serve)
    client = rig(server)
    for _ in range(3):
        assert client.send().text == "ok"
        assert await_no_exchange()
    assert server.connections == 1


def test_a_server_that_continues_after_its_answer_is_left_after_64_kib(raw_server, rig) -> None:
    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(http_answer(WHOLE))
        while True:
            sock.sendall(b": still here\n" * 1000)

    client = rig(raw_server(serve))
    assert client.send().text == "ok"
    assert await_no_exchange()


def test_a_connection_that_is_given_up_is_reset_so_that_the_server_hears_of_it(raw_server, rig) -> None:
    seen: list[type[OSError]] = []
    left, told = threading.Event(), threading.Event()

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(http_answer(b"data: nonsense\n\n"))
        while sock.recv(1):
            pass
        left.wait(PATIENCE_S)
        try:  # after an ordinary close the first byte would still be taken
            sock.sendall(b"x")
        except OSError as error:
            seen.append(type(error))
        told.set()

    client = rig(raw_server(serve))
    with pytest.raises(Exception, match="undecodable JSON"):
        client.send()
    assert await_no_exchange()
    left.set()
    assert told.wait(PATIENCE_S)
    assert seen == [BrokenPipeError]


# --- Pieces of a body in an order that no real server can be made to send


MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


class ArrivedItems:
    """An exchange whose items have all arrived."""

    def __init__(self, *items: Any) -> None:
        self._items = list(items)

    def next_item(self, _until_s: float | None, _waiting_for: str) -> Any:
        return self._items.pop(0)


def test_an_empty_first_piece_does_not_end_a_body() -> None:
    """The header of a gzip body, in a packet of its own, is decompressed to nothing."""
    head = ResponseHead(200, httpx.Headers({"content-type": "application/json"}))
    exchange: Any = ArrivedItems(head, b"", json.dumps(MESSAGE).encode(), BodyEnd())
    clock = FakeClock()
    reception = Reception(
        exchange,
        ResponseClocks(ClockLimits(), clock.now_s()),
        clock,
        events=RecordingEvents(),
        redact=str,
        host="host",
        answered=set(),
    )
    assert reception.receive().content == MESSAGE["content"]
