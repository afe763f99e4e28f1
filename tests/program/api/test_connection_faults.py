"""Connections that fail or break off, as a user meets them (A1-A7, A10, A24)."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Step, Turn, as_events, encode_events
from tests.api.harness import RawServer, http_answer, read_request, reset
from tests.program.api.failing_network import FailingNetwork
from tests.program.faulty import APPEND, DONE, HELLO, effects, linux_only, peak_mb, stream
from tests.services.certificates import make_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a1_a_server_that_stays_away_is_asked_five_times_exits_75(ralph) -> None:
    ralph.retry_quickly()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        ran = ralph("hi", "--base-url", f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert ran.code == 75
    assert ran.stderr.count("[error] connection refused") == 5


@pytest.fixture
def network(ralph, tmp_path) -> FailingNetwork:
    return FailingNetwork(ralph, tmp_path)


def at_gateway(ralph, server: RawServer) -> None:
    ralph.environment["ANTHROPIC_BASE_URL"] = f"http://gateway.test:{server.port}"


def test_a2_a_host_that_has_answered_in_this_session_is_waited_for_and_another_is_not_exits_0_or_69(
    ralph, answer_with, network
) -> None:
    """The rule holds in the middle of a run, and in a later run that resumes the session."""
    ralph.retry_quickly()

    def answer_and_go(sock: socket.socket) -> None:
        network.will_fail("lookup", 3)
        sock.sendall(stream(APPEND))

    server = answer_with(answer_and_go, stream(DONE))
    at_gateway(ralph, server)
    ran = ralph("hi")
    assert (ran.code, network.failures_left) == (0, 0), ran.stderr
    assert ran.stderr.count("[error] name lookup failed for now (gateway.test:") == 3
    assert effects(ralph) == ["line"]
    network.will_fail("lookup", 2)
    ran = ralph("-c", "more")
    assert (ran.code, network.failures_left) == (0, 0), ran.stderr
    assert "[retry] Recovered after 2 retries" in ran.stderr
    network.will_fail("lookup", 9)
    ran = ralph("hi")
    assert (ran.code, network.failures_left) == (69, 8), "in another session it has never answered"
    assert "unknown host (gateway.test:" in ran.last_line
    assert "whether this machine is online" in ran.stderr


def test_a2_the_default_endpoint_is_there_whatever_a_resolver_says_exits_75(ralph, network) -> None:
    ralph.retry_quickly()
    network.will_fail("lookup", 9)
    ran = ralph("hi")
    assert (ran.code, network.failures_left) == (75, 4)
    assert "name lookup failed for now (api.anthropic.com)" in ran.last_line


@pytest.fixture
def tls_server(tmp_path, ralph) -> Iterator[Path]:
    """Starts a server with a self-signed certificate. Returns the path of the certificate."""
    certificate = make_certificate(tmp_path, names="DNS:localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve(sock: socket.socket) -> None:
        with suppress(ssl.SSLError), context.wrap_socket(sock, server_side=True) as secure:
            read_request(secure)
            secure.sendall(stream(HELLO))

    server = RawServer(serve)
    ralph.environment["ANTHROPIC_BASE_URL"] = f"https://localhost:{server.port}"
    yield tmp_path / "cert.pem"
    server.close()


def test_a3_a_certificate_that_nobody_signed_is_refused_and_the_way_out_named_exits_69(
    ralph, tls_server
) -> None:
    ran = ralph("hi", code=69)
    assert "certificate not trusted" in ran.last_line
    assert "SSL_CERT_FILE" in ran.stderr
    assert "[retry]" not in ran.stderr


HANDSHAKE_FAILURE = b"\x15\x03\x03\x00\x02\x02\x28"


def test_a3_a_tls_alert_at_the_handshake_is_asked_again_exits_75(ralph) -> None:
    ralph.retry_quickly()

    def refuse(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(HANDSHAKE_FAILURE)

    server = RawServer(refuse)
    ran = ralph("hi", "--base-url", f"https://127.0.0.1:{server.port}")
    server.close()
    assert (ran.code, server.connections) == (75, 5)
    assert ran.stderr.count("[error] TLS handshake failed") == 5


def test_a3_with_its_certificate_in_a_ca_file_the_server_is_trusted_exits_0(ralph, tls_server) -> None:
    ralph.environment["SSL_CERT_FILE"] = str(tls_server)
    assert ralph("hi").code == 0


@pytest.mark.parametrize("is_in_settings", [False, True], ids=["environment", "claude settings"])
def test_a3_with_its_certificate_added_by_a_variable_the_server_is_trusted_exits_0(
    ralph, tls_server, is_in_settings
) -> None:
    variables = {"NODE_EXTRA_CA_CERTS": str(tls_server)}
    if is_in_settings:
        settings = Path(ralph.environment["HOME"], ".claude", "settings.json")
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(json.dumps({"env": variables}))
    else:
        ralph.environment |= variables
    assert ralph("hi").code == 0


@pytest.fixture
def idle_server(ralph) -> Iterator[RawServer]:
    """A server whose first connection carries one answer, and is reset by the next request."""
    turns = iter((APPEND, DONE))

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        body = encode_events(as_events(next(turns)))
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        if read_request(sock):
            reset(sock)

    server = RawServer(serve)
    ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
    yield server
    server.close()


def test_a4_a_kept_connection_that_the_next_request_resets_is_replaced_at_once_exits_0(
    ralph, idle_server
) -> None:
    ran = ralph("hi")
    assert (ran.code, idle_server.connections) == (0, 2), ran.stderr
    assert effects(ralph) == ["line"]
    assert "1 retry, 0.0s waited" in ran.last_line


@linux_only
def test_a10_a_line_of_100_mb_is_refused_in_bounded_memory_exits_69(ralph, answer_with) -> None:
    def flood(sock: socket.socket) -> None:
        sock.sendall(http_answer(b"data: "))
        for _ in range(100):
            sock.sendall(b"x" * 1_000_000)

    answer_with(flood)
    code, mb = peak_mb(ralph, "hi")
    assert code == 69
    assert mb < 100


def test_a24_a_proxy_that_wants_a_password_ends_the_run_exits_77(ralph) -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 4\r\n\r\nnope"

    def refuse(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(refusal)

    proxy = RawServer(refuse)
    ralph.environment["HTTPS_PROXY"] = proxy.base_url
    ran = ralph("hi", "--base-url", "https://api.example.test")
    proxy.close()
    assert (ran.code, proxy.connections) == (77, 1)
    assert "407" in ran.last_line


def test_a6_text_of_a_broken_answer_is_marked_and_never_in_the_result_exits_0(ralph, serve) -> None:
    ralph.retry_quickly()
    half = Step(Turn("Half of it is wrong", id="broken"), Fault(cut_after_events=4, framing="close"))
    serve(half, HELLO)
    ran = ralph("hi", "--output-format", "stream-json", "--include-partial-messages", code=0)
    kinds = [entry.get("subtype") or entry["type"] for entry in ran.objects]
    discarded = kinds.index("response_discarded")
    assert ran.objects[discarded]["message_id"] == "broken"
    assert kinds.index("stream_event") < discarded < kinds.index("assistant")
    said = [entry for entry in ran.objects if entry["type"] in {"assistant", "result"}]
    assert "Half" not in json.dumps(said)
    assert ran.stderr.index("Half of it") < ran.stderr.index("[discarded]") < ran.stderr.index("Hello there.")


@pytest.mark.parametrize(("framing", "events"), [("reset", 4), ("close", 4), ("close", 6)])
def test_a6_in_text_mode_standard_output_holds_the_whole_answer_alone_exits_0(
    ralph, serve, framing, events
) -> None:
    ralph.retry_quickly()
    serve(Step(Turn("Half of it is wrong"), Fault(cut_after_events=events, framing=framing)), HELLO)
    ran = ralph("hi")
    assert (ran.code, ran.stdout) == (0, "Hello there.\n")
    assert "[turn]" not in ran.stderr, "it was no empty answer"
