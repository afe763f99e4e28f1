"""Answers with a status other than 2xx: their fields are kept, their bodies are limited, and redirects are not
followed (A13, A14, A18, A19).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ralph.api import reception
from ralph.api.reception import ERROR_BODY_BYTES
from ralph.mock_api import Fault
from ralph.values.errors import ErrorClass, HttpError, classify_error
from ralph.values.limits import ClockLimits
from ralph.values.ports import SignalReceived
from tests.api.harness import KEY, await_no_exchange, failure, http_answer, read_request
from tests.rows import every_row

if TYPE_CHECKING:
    import socket


@every_row("status", [301, 302, 303, 307, 308])
def test_a13_a_redirect_is_not_followed_and_takes_no_key_along(serve, rig, status) -> None:
    elsewhere = serve()
    location = f"{elsewhere.base_url}/v1/messages?key={KEY[1]}"
    error = failure(rig(serve(Fault(status=status, headers={"location": location}, body="moved"))))
    assert error.status == status
    assert elsewhere.base_url in str(error)
    assert KEY[1] not in str(error)
    assert classify_error(error) is ErrorClass.PERMANENT
    assert elsewhere.request_count == 0


@every_row("location", ["http://[", "https://h:port/", "http://a\x01b/", "//", ""])
def test_a13_a_redirect_to_nonsense_is_permanent_too(rig, raw_server, location) -> None:
    answer = http_answer(b"", "text/html", "302 Found", f"location: {location}\r\n")
    error = failure(rig(raw_server(answer)))
    assert error.status == 302
    assert classify_error(error) is ErrorClass.PERMANENT


@every_row("body", ["<html><title>Bad Gateway</title></html>", "", "{", "\ufffd", "[1]"])
def test_a14_a_gateways_page_is_no_reason_to_stop(serve, rig, body) -> None:
    error = failure(rig(serve(Fault(status=502, body=body))))
    assert (error.status, error.body, error.error_type, error.message) == (502, body, None, None)
    assert classify_error(error) is ErrorClass.TRANSIENT


def test_a14_a_huge_body_is_cut_at_64_kib_and_not_waited_for(serve, rig, monkeypatch) -> None:
    monkeypatch.setattr(reception, "ERROR_BODY_S", 1e6)
    server = serve(Fault(status=503, huge_body_bytes=10**15))
    error = failure(rig(server, limits=ClockLimits(response_s=0)))
    assert len(error.body) == ERROR_BODY_BYTES == 65536
    assert await_no_exchange()


@pytest.mark.parametrize(("response_s", "error_body_s"), [(0.4, 1e6), (0, 0.4)])
def test_a14_a_body_that_never_comes_is_not_waited_for_long(
    raw_server, rig, monkeypatch, response_s, error_body_s
) -> None:
    monkeypatch.setattr(reception, "ERROR_BODY_S", error_body_s)
    limits = ClockLimits(bytes_idle_s=0, progress_idle_s=0, response_s=response_s)

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\nhalf")
        sock.recv(1)

    error = failure(rig(raw_server(serve), limits=limits))
    assert (error.status, error.body) == (503, "half")


def test_a_run_that_is_stopped_while_an_errors_body_comes_still_knows_the_status(raw_server, rig) -> None:
    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 401 No\r\ncontent-length: 9\r\n\r\nhalf")
        threading.Timer(
            0.2, client.waiter.inbox.note_signal, [15]
        ).start()  # the status has been seen by then
        sock.recv(1)

    client = rig(raw_server(serve))
    with pytest.raises(SignalReceived) as caught:
        client.send()
    assert isinstance(caught.value.__cause__, HttpError)
    assert caught.value.__cause__.status == 401
    assert await_no_exchange()


def test_cookies_are_neither_kept_nor_sent(raw_server, rig) -> None:
    server = raw_server(http_answer(b"", status="503 Busy", headers="set-cookie: a=b; path=/\r\n"))
    client = rig(server)
    for _ in range(2):
        failure(client)
    assert b"cookie" not in server.requests[1].lower()


def test_a14_a_broken_body_does_not_hide_the_status(serve, rig) -> None:
    fault = Fault(status=503, body="x" * 1000, cut_after_bytes=10, headers={"retry-after": "7"})
    error = failure(rig(serve(fault)))
    assert (error.status, error.retry_after, error.body) == (503, 7.0, "x" * 10)


def test_a18_a19_an_error_keeps_its_fields(serve, rig) -> None:
    server = serve(Fault(status=529, message="because"))
    error = failure(rig(server))
    assert (error.status, error.error_type, error.message) == (529, "overloaded_error", "because")
    assert error.request_id == "req_mock_000000"
    assert str(error) == "HTTP 529 overloaded_error: because (request req_mock_000000)"
    assert server.request_count == 1


@every_row(("value", "says"), [("true", True), ("FALSE", False), ("maybe", None), ("", None)])
def test_x_should_retry_is_read(serve, rig, value, says) -> None:
    assert failure(rig(serve(Fault(status=400, headers={"x-should-retry": value})))).should_retry is says


def test_an_error_that_repeats_the_key_is_redacted(serve, rig) -> None:
    fault = Fault(status=401, message=f"bad key {KEY[1]}", headers={"request-id": f"for-{KEY[1]}"})
    error = failure(rig(serve(fault)))
    assert (error.message, error.request_id) == ("bad key [redacted]", "for-[redacted]")
    assert KEY[1] not in error.body


def test_a_key_that_json_escapes_break_apart_is_redacted(serve, rig) -> None:
    key = "".join(f"\\u{ord(char):04X}" for char in KEY[1])
    body = f'{{"error": {{"type": "{key}", "message": "bad key {key}"}}, "request_id": "{key}"}}'
    error = failure(rig(serve(Fault(status=401, body=body))))
    assert (error.message, error.error_type) == ("bad key [redacted]", "[redacted]")
    assert KEY[1] not in str(error)


def test_an_error_leaves_the_connection_usable(raw_server, rig) -> None:
    answer = b"HTTP/1.1 529 Overloaded\r\ncontent-length: 2\r\n\r\n{}"

    def serve(sock) -> None:
        while read_request(sock):
            sock.sendall(answer)

    server = raw_server(serve)
    client = rig(server)
    for _ in range(3):
        assert failure(client).status == 529
        assert await_no_exchange()
    assert server.connections == 1
