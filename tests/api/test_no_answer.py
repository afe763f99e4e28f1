"""Nothing comes back, or nothing that is HTTP. The error must be `Api` with one of ralph's own causes (A1, A2, A4,
A5, and two clocks).
"""

from __future__ import annotations

import socket
import threading
import time

import pytest

from ralph.mock_api import Fault, Turn
from ralph.values.errors import Api, ErrorClass, NetworkCause, classify_error
from ralph.values.events import ClockFired
from ralph.values.limits import ClockLimits
from tests.api.harness import (
    KEY,
    START,
    Rig,
    await_no_exchange,
    end,
    failure,
    http_answer,
    read_request,
    reset,
    sse,
    text_block,
)
from tests.patience import within_s
from tests.rows import every_row
from tests.services.ports import free_port
from tests.services.silent_address import found, full_backlog


def test_a1_a_refused_connection_is_transient_and_names_the_host(rig, raw_server) -> None:
    port = free_port()
    client = rig(f"http://127.0.0.1:{port}")
    error = failure(client)
    assert error.cause is NetworkCause.REFUSED
    assert error.host == f"127.0.0.1:{port}"
    assert classify_error(error) is ErrorClass.TRANSIENT


@pytest.mark.parametrize(
    ("code", "cause", "error_class"),
    [
        (socket.EAI_AGAIN, NetworkCause.DNS_TEMPORARY, ErrorClass.TRANSIENT),
        (socket.EAI_NONAME, NetworkCause.DNS_UNKNOWN_HOST, ErrorClass.PERMANENT),
    ],
)
def test_a2_a_failed_name_lookup_is_told_by_its_code(rig, monkeypatch, code, cause, error_class) -> None:
    def lookup(*_args: object, **_named: object) -> None:
        raise socket.gaierror(code, "the resolver's own words")

    client = rig("http://api.example.test")
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    error = failure(client)
    assert error.cause is cause
    assert error.host == "api.example.test"
    assert "the resolver's own words" in error.detail
    assert classify_error(error) is error_class


@every_row("at_accept", [True, False])
@every_row("ends", [{"reset_before_headers": True}, {"close_before_headers": True}])
def test_a4_an_end_before_any_byte_is_transient(serve, rig, ends, at_accept) -> None:
    error = failure(rig(serve(Fault(at_accept=at_accept, **ends))))
    assert error.cause in {NetworkCause.RESET, NetworkCause.PROTOCOL_GARBAGE}
    assert classify_error(error) is ErrorClass.TRANSIENT


def test_a5_a_reset_inside_the_headers_is_transient_at_every_byte(raw_server, rig) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    cuts = iter(range(1, len(head)))

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(head[: next(cuts)])
        reset(sock)

    client = rig(raw_server(serve))
    for _ in range(1, len(head)):
        assert classify_error(failure(client)) is ErrorClass.TRANSIENT


@every_row(
    "garbage", [b"\x00\xff\xfe\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"\r\n" * 3]
)
def test_a5_garbage_for_a_status_line_is_transient(serve, rig, garbage) -> None:
    error = failure(rig(serve(Fault(garbage=garbage))))
    assert error.cause is NetworkCause.PROTOCOL_GARBAGE
    assert classify_error(error) is ErrorClass.TRANSIENT


def test_the_first_byte_clock_ends_a_silent_server(serve, rig) -> None:
    limits = ClockLimits(first_byte_s=0.2, response_s=5)
    client = rig(serve(Fault(stall_before_headers_s=30, status=500), Turn("ok")), limits=limits)
    started_s = time.monotonic()
    error = failure(client)
    assert time.monotonic() - started_s >= 0.2
    assert error.cause is NetworkCause.TIMEOUT
    assert client.events.of(ClockFired) == [ClockFired("first byte", 0.2)]
    assert await_no_exchange()
    assert client.send().text == "ok"


@every_row("connect_s", [0, 0.1, 1_000])
def test_on_a_connection_that_was_open_before_the_first_byte_clock_ends_a_silent_server(
    serve, rig, connect_s
) -> None:
    """The clock begins with the request, also if the time for connecting is longer, shorter, or not limited."""
    limits = ClockLimits(connect_s=connect_s, first_byte_s=0.3, response_s=0)
    client = rig(serve(Turn("ok"), Fault(stall_before_headers_s=30, status=500)), limits=limits)
    assert client.send().text == "ok"
    assert await_no_exchange()
    started_s = time.monotonic()
    assert failure(client).cause is NetworkCause.TIMEOUT
    assert time.monotonic() - started_s >= 0.3
    assert client.events.of(ClockFired) == [ClockFired("first byte", 0.3)]


@every_row("connect_s", [0, 1_000])
def test_the_first_byte_clock_ends_a_request_that_nobody_reads(raw_server, rig, connect_s) -> None:
    """On a connection that was open before, and with a body for which the kernel has no room."""
    is_over = threading.Event()

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        answer = sse(START, *text_block(0, "ok"), *end())
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(answer)}\r\n\r\n"
        sock.sendall(head.encode() + answer)
        is_over.wait(within_s())

    client = rig(
        f"http://127.0.0.1:{raw_server(serve).port}",
        limits=ClockLimits(connect_s=connect_s, first_byte_s=0.3, response_s=0),
    )
    try:
        assert client.send().text == "ok"
        assert await_no_exchange()
        with pytest.raises(Api):
            client.send(b"x" * 20_000_000)
        assert client.events.of(ClockFired) == [ClockFired("first byte", 0.3)]
    finally:
        is_over.set()


def test_the_connect_clock_ends_a_connect_that_nobody_accepts(rig, silent_url) -> None:
    client = rig(silent_url, limits=ClockLimits(connect_s=0.2, response_s=5))
    started_s = time.monotonic()
    error = failure(client)
    assert time.monotonic() - started_s >= 0.2
    assert error.cause is NetworkCause.TIMEOUT
    assert client.events.of(ClockFired) == [ClockFired("connect", 0.2)]
    # The thread cannot be ended inside connect(); the request's own timeout does it a little later.
    assert await_no_exchange()


def test_a_url_that_is_none_is_permanent(rig, serve) -> None:
    client = rig(serve())
    broken = Rig("http://ä..b", transport=client.transport)
    error = failure(broken)
    assert error.cause is NetworkCause.BAD_URL
    assert classify_error(error) is ErrorClass.PERMANENT


def test_a_header_that_http_cannot_carry_is_permanent_and_its_value_redacted(rig, serve) -> None:
    error = failure(rig(serve(), headers=(("x-api-key", KEY[1] + "\n"),)))
    assert classify_error(error) is ErrorClass.PERMANENT
    assert KEY[1] not in str(error)


# --- Hosts with several addresses


@pytest.mark.parametrize("through_proxy", [False, True], ids=["direct", "proxy"])
def test_a1_a_silent_address_does_not_hide_the_next_one(raw_server, rig, monkeypatch, through_proxy) -> None:
    server = raw_server(http_answer(sse(START, *text_block(0, "here"), *end())))
    if through_proxy:
        monkeypatch.setenv("http_proxy", "http://two.test:80")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
    client = rig(f"http://{'other' if through_proxy else 'two'}.test")
    with full_backlog() as silent:
        addresses = found(silent, ("127.0.0.1", server.port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: {b"two.test": addresses}[host])
        assert client.send().text == "here"


def test_a1_addresses_that_all_refuse_are_one_refused_connection(rig, monkeypatch) -> None:
    client = rig("http://two.test")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        addresses = found(nobody.getsockname(), nobody.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        with pytest.raises(Api) as caught:
            client.send()
    assert caught.value.cause is NetworkCause.REFUSED
