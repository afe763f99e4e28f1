"""Fixtures that make clients and servers, and close them after the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine import connecting
from ralph.values.servers import ANTHROPIC
from tests.api.answers.pieces import PieceClient
from tests.api.harness import RawServer, Rig, http_answer, read_request
from tests.services.silent_address import full_backlog

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _no_chosen_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each test give a name other addresses."""
    monkeypatch.setattr(connecting, "_CHOSEN", {})


@pytest.fixture
def rig() -> Iterator[Callable[..., Rig]]:
    """Makes a client of a server. The server is an object with a `base_url`, or the URL itself."""
    rigs: list[Rig] = []

    def build(server: Any, **fields: Any) -> Rig:
        rigs.append(Rig(getattr(server, "base_url", server), **fields))
        return rigs[-1]

    yield build
    for one in rigs:
        one.close()


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest) -> Iterator[PieceClient]:
    """A client that receives answers in pieces, for all tests of a module. `SPEAKS` of the module is the server's API."""
    made = PieceClient(getattr(request.module, "SPEAKS", ANTHROPIC))
    yield made
    made.rig.close()


@pytest.fixture
def scenario_options() -> dict[str, Any]:
    """The requests are no more than the client under test needs."""
    return {"validate": False}


@pytest.fixture
def raw_server() -> Iterator[Callable[..., RawServer]]:
    """Starts a server that calls a function for each connection, or answers each request with these bytes."""
    servers: list[RawServer] = []

    def start(serve: Callable[[socket.socket], None] | bytes, port: int = 0) -> RawServer:
        def answer(sock: socket.socket) -> None:
            server.requests.append(read_request(sock))
            assert isinstance(serve, bytes)
            sock.sendall(serve)

        server = RawServer(answer if isinstance(serve, bytes) else serve, port)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def answering(raw_server: Callable[..., RawServer], rig: Callable[..., Rig]) -> Callable[..., Rig]:
    """Makes a client whose server answers every request with status 200 and this body. The end of the connection
    ends the body.
    """

    def build(body: bytes, content_type: str = "text/event-stream", **fields: Any) -> Rig:
        return rig(raw_server(http_answer(body, content_type)), **fields)

    return build


@pytest.fixture
def silent_url() -> Iterator[str]:
    """The URL of a port where connecting neither succeeds nor fails."""
    with full_backlog() as (host, port):
        yield f"http://{host}:{port}"
