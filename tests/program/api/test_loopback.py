"""A server on this machine is reached directly, whatever proxy the environment names."""

from __future__ import annotations

import http.server
import socket
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ralph.mock_api import Turn, as_events, encode_events
from tests.program.conftest import KEY
from tests.program.model_answers import calls
from tests.services.two_addresses import IN_A_PROCESS, needs_ipv6, taker

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO = Turn("Hello there.")


@pytest.fixture
def broken_proxy(ralph):
    """Sets every proxy variable to a port where nobody listens."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            ralph.environment |= {name: proxy, name.lower(): proxy}
        ralph.user_file.write_text("[retry]\npolicy = 'off'\n")
        yield


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a24_a_server_on_loopback_is_reached_without_the_proxy_exits_0(
    ralph, serve, broken_proxy, host
) -> None:
    server = serve(HELLO)
    ran = ralph("hi", "--base-url", f"http://{host}:{server.port}")
    assert (ran.code, ran.stdout) == (0, "Hello there.\n"), ran.stderr


class _Greeting(http.server.BaseHTTPRequestHandler):
    body: ClassVar = encode_events(as_events(HELLO))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_elsewhere_is_not_reached_without_the_proxy(ralph, broken_proxy) -> None:
    """Without this test, the tests above could pass although the proxy is never used."""
    ran = ralph("hi", "--base-url", "http://model.example.test", code=75)
    assert "connection refused" in ran.last_line


# --- A name with two addresses, at one of which nobody listens but a command


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    needs_ipv6()
    server = Gateway(("127.0.0.1", 0), _Answering)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Gateway(http.server.ThreadingHTTPServer):
    """A server of the model, or a proxy for one. It ends each connection after its answer, so each request needs another one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.headers: list[Any] = []
        self.turns = [calls(*taker(self.server_port)), HELLO]


class _Answering(_Greeting):
    server: Gateway

    def do_POST(self) -> None:
        self.server.headers.append(self.headers)
        self.body = encode_events(as_events(self.server.turns.pop(0)))  # type: ignore[misc]
        super().do_POST()


@pytest.mark.parametrize("is_proxy", [False, True], ids=["gateway", "proxy"])
def test_a_command_that_listens_at_the_other_address_of_a_name_gets_no_key(ralph, gateway, is_proxy) -> None:
    ralph.run_first(IN_A_PROCESS)
    url = f"http://{{}}two.localhost:{gateway.server_port}"
    if is_proxy:
        ralph.environment["HTTP_PROXY"] = url.format("me:word@")
    ran = ralph("hi", "--base-url", "http://model.example.test" if is_proxy else url.format(""))
    assert not (ralph.cwd / "taken").exists()
    assert (ran.code, ran.stdout) == (0, "Hello there.\n"), ran.stderr
    assert (ralph.cwd / "listening").exists()
    assert [one["x-api-key"] for one in gateway.headers] == [KEY, KEY]
