"""TLS that fails, and settings that make it work (A3). The certificates are made with openssl."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from ralph.api.transport import build_transport
from ralph.values.errors import ErrorClass, NetworkCause, classify_error
from tests.api.harness import (
    START,
    RawServer,
    end,
    failure,
    http_answer,
    read_request,
    reset,
    sse,
    text_block,
)
from tests.services.certificates import make_certificate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def tls_server(raw_server: Callable[..., RawServer]) -> Callable[[Path], str]:
    """Starts a server that answers over TLS with this certificate. Returns its URL."""

    def start(certificate: Path) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)

        def serve(sock: socket.socket) -> None:
            with context.wrap_socket(sock, server_side=True) as secure:
                read_request(secure)
                secure.sendall(http_answer(sse(START, *text_block(0, "secret"), *end())))

        return f"https://127.0.0.1:{raw_server(serve).port}"

    return start


def test_a3_a_certificate_of_another_host_is_permanent(tls_server, rig, tmp_path) -> None:
    certificate = make_certificate(tmp_path, names="DNS:other.test")
    error = failure(rig(tls_server(certificate), ca_file=str(certificate)))
    assert error.cause is NetworkCause.CERTIFICATE


def test_a3_an_expired_certificate_is_permanent(tls_server, rig, tmp_path) -> None:
    certificate = make_certificate(tmp_path, names="IP:127.0.0.1", first_day="200101", last_day="200102")
    error = failure(rig(tls_server(certificate), ca_file=str(certificate)))
    assert error.cause is NetworkCause.CERTIFICATE
    assert "expired" in error.detail


def test_a3_https_to_a_plain_port_is_transient(serve, rig) -> None:
    """An answer that is no TLS is transient, like an invalid status line, because a broken proxy may be replaced
    within a minute.
    """
    error = failure(rig(f"https://127.0.0.1:{serve().port}"))
    assert error.cause is NetworkCause.TLS
    assert classify_error(error) is ErrorClass.TRANSIENT


@pytest.mark.parametrize("end_it", [reset, socket.socket.close])
def test_a3_a_handshake_that_breaks_off_is_transient(raw_server, rig, end_it) -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(65536)
        end_it(sock)

    error = failure(rig(f"https://127.0.0.1:{raw_server(serve).port}"))
    assert error.cause is NetworkCause.RESET
    assert classify_error(error) is ErrorClass.TRANSIENT


def test_a_ca_file_that_cannot_be_used_is_an_os_error(tmp_path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(OSError):  # noqa: PT011 - ssl.SSLError is one, with texts of its own
            build_transport("https://127.0.0.1", str(tmp_path / name))
