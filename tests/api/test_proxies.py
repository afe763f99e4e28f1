"""Proxies from the environment: they are used or bypassed, and the status of a refusal is kept (A24)."""

from __future__ import annotations

import socket
import ssl

import pytest

from ralph.agent.run_end import hints_for
from ralph.api.transport import build_transport
from ralph.conversation.target import Target
from ralph.values.errors import Api, ErrorClass, HttpError, NetworkCause, classify_error
from ralph.values.events import ClockFired, RequestSent
from ralph.values.limits import ClockLimits
from tests.api.harness import KEY, START, end, http_answer, read_request, sse, text_block
from tests.services.certificates import make_authority

REFUSAL = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 4\r\n\r\nnope"
PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def proxy_env(monkeypatch):
    """Sets proxy variables, and removes all others."""
    for name in PROXY_NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    def set_variables(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(
    ("scheme", "status", "error_class"),
    [
        ("http", 407, ErrorClass.PERMANENT),
        ("https", 407, ErrorClass.PERMANENT),
        ("https", 403, ErrorClass.PERMANENT),
        ("https", 502, ErrorClass.TRANSIENT),
    ],
)
def test_a24_what_a_proxy_answers_is_a_status(
    raw_server, rig, proxy_env, scheme, status, error_class
) -> None:
    proxy = raw_server(f"HTTP/1.1 {status} No\r\ncontent-length: 4\r\n\r\nnope".encode())
    proxy_env(**{f"{scheme}_proxy": proxy.base_url})
    with pytest.raises(HttpError) as caught:
        rig(f"{scheme}://api.example.test").send()
    assert caught.value.status == status
    assert classify_error(caught.value) is error_class
    if scheme == "https":
        assert KEY[1].encode() not in proxy.requests[0], "the key went to the proxy in the clear"


def test_a24_plain_http_goes_through_a_forward_proxy(raw_server, rig, proxy_env) -> None:
    proxy = raw_server(http_answer(sse(START, *text_block(0, "by proxy"), *end())))
    proxy_env(http_proxy=proxy.base_url.replace("//", "//user:pass@"))
    assert rig("http://api.example.test").send().text == "by proxy"
    assert proxy.requests[0].startswith(b"POST http://api.example.test/v1/messages HTTP/1.1\r\n")
    assert b"basic dxnlcjpwyxnz" in proxy.requests[0].lower()


def test_a_proxy_that_speaks_tls_is_trusted_like_the_endpoint(raw_server, rig, proxy_env, tmp_path) -> None:
    authority, leaf = make_authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf)

    def serve(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as secure:
            read_request(secure)
            secure.sendall(http_answer(sse(START, *text_block(0, "by proxy"), *end())))

    proxy_env(HTTP_PROXY=f"https://localhost:{raw_server(serve).port}")
    with pytest.raises(Api) as caught:
        rig("http://api.example.test").send()
    assert caught.value.cause is NetworkCause.CERTIFICATE
    assert rig("http://api.example.test", ca_file=str(authority)).send().text == "by proxy"


def test_a24_a_proxy_without_a_scheme_is_an_http_proxy(raw_server, rig, proxy_env) -> None:
    proxy = raw_server(REFUSAL)
    proxy_env(ALL_PROXY=f"127.0.0.1:{proxy.port}")
    with pytest.raises(HttpError):
        rig("https://api.example.test").send()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
@pytest.mark.parametrize("through_proxy", [False, True], ids=["direct", "proxy"])
def test_a11_a_connection_asks_whether_the_other_side_is_still_there(
    raw_server, rig, proxy_env, through_proxy
) -> None:
    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(http_answer(sse(START, *text_block(0, "ok"), *end())))
        sock.recv(1)  # the connection stays

    server = raw_server(serve)
    proxy_env(http_proxy=server.base_url)
    client = rig("http://api.example.test") if through_proxy else rig(server)
    options: list[tuple[int, int, int]] = []

    def look(event: object) -> None:
        if isinstance(event, RequestSent):
            return  # the thread connects in the meantime
        sock = client.api._wire.open_socket
        options.append(
            (
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
            )
        )

    client.events.emit = look
    client.send()
    assert set(options) == {(1, 60, 90_000)}


def test_the_connect_clock_covers_tls_behind_a_proxy(raw_server, rig, proxy_env) -> None:
    def tunnel_to_nowhere(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        while sock.recv(65536):
            pass  # the handshake is never answered

    proxy_env(https_proxy=raw_server(tunnel_to_nowhere).base_url)
    client = rig("https://api.example.test", limits=ClockLimits(connect_s=0.2, response_s=5))
    with pytest.raises(Api) as caught:
        client.send()
    assert caught.value.cause is NetworkCause.TIMEOUT
    assert client.events.of(ClockFired) == [ClockFired("connect", 0.2)]


@pytest.mark.parametrize(
    ("variable", "scheme"), [("HTTPS_PROXY", "https"), ("http_proxy", "http"), ("ALL_PROXY", "https")]
)
def test_a_proxy_that_cannot_be_reached_is_named_with_its_variable_and_without_its_password(
    rig, proxy_env, variable, scheme
) -> None:
    proxy_env(**{variable: "http://me:secret@127.0.0.1:1"})
    with pytest.raises(Api) as caught:
        rig(f"{scheme}://api.example.test").send()
    assert caught.value.cause is NetworkCause.REFUSED
    assert f"(api.example.test through the proxy http://127.0.0.1:1 ({variable}))" in str(caught.value)
    (hint,) = hints_for(caught.value, Target("m", "m", "https://api.example.test"), "K")
    assert f"the proxy http://127.0.0.1:1 ({variable})" in hint
    assert "secret" not in f"{caught.value}{hint}"


def test_a_base_url_that_cannot_be_used_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"999\.1\.1\.1"):
        build_transport("http://999.1.1.1", None)
