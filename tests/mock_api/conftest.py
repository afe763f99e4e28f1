"""Fixtures for servers, which are closed after the test, and for a client that sees every byte and how the
connection ended.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.patience import within_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ralph.mock_api import MockApi


REQUEST = {"model": "claude-test", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
HEADERS = "content-type: application/json\r\nanthropic-version: 2023-06-01\r\nx-api-key: k-secret\r\n"


@dataclass(frozen=True)
class Reply:
    """All bytes that a raw client received until the connection ended."""

    data: bytes
    ended: str
    """How the connection ended: `eof`, `reset` or `timeout`."""

    @property
    def head(self) -> str:
        return self.data.partition(b"\r\n\r\n")[0].decode("latin-1")

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]

    @property
    def status(self) -> int:
        return int(self.head.split(" ")[1])

    @property
    def chunks(self) -> tuple[bytes, bool]:
        """The body without its chunk framing, and whether the final chunk was received."""
        rest = self.body
        pieces: list[bytes] = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            if int(size, 16) == 0:
                return b"".join(pieces), True
            pieces.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        return b"".join(pieces), False


def encode_request(payload: Any, *, headers: str = HEADERS) -> bytes:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return (
        f"POST /v1/messages HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(body)}\r\n\r\n".encode()
        + body
    )


def read_to_the_end(sock: socket.socket, *, silent_after: bytes | None = None) -> Reply:
    """Reads until the connection ends. A server that falls silent when it has sent `silent_after` is given 0.1 s then."""
    data = b""
    try:
        while True:
            if silent_after is not None and data.endswith(silent_after):
                sock.settimeout(0.1)
            if not (piece := sock.recv(65536)):
                return Reply(data, "eof")
            data += piece
    except ConnectionResetError:
        return Reply(data, "reset")
    except TimeoutError:
        return Reply(data, "timeout")


@pytest.fixture
def connect() -> Iterator[Callable[..., socket.socket]]:
    """Opens a raw connection to a server."""
    sockets: list[socket.socket] = []

    def open_connection(server: MockApi) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=within_s(20))
        sockets.append(sock)
        return sock

    yield open_connection
    for sock in sockets:
        sock.close()


@pytest.fixture
def ask(connect: Callable[..., socket.socket]) -> Callable[..., Reply]:
    """Sends one request on a new connection, and returns everything that came back (`read_to_the_end`)."""

    def send(
        server: MockApi,
        *,
        stream: bool = True,
        silent_after: bytes | None = None,
        close: bool = True,
        **changes: Any,
    ) -> Reply:
        sock = connect(server)
        headers = HEADERS + ("connection: close\r\n" if close else "")
        sock.sendall(encode_request({**REQUEST, "stream": stream, **changes}, headers=headers))
        return read_to_the_end(sock, silent_after=silent_after)

    return send


@pytest.fixture
def raw_request() -> Callable[..., bytes]:
    return encode_request


@pytest.fixture(scope="session")
def anthropic() -> Any:
    """The official SDK. It is a fixture because importing it takes seconds."""
    import anthropic

    return anthropic
