"""A connection that was open before the request, and that the server or something on the way has given up."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from ralph.values.errors import Api, NetworkCause
from tests.api.harness import START, Rig, await_no_exchange, end, read_request, reset, sse, text_block
from tests.patience import within_s
from tests.rows import every_row
from tests.services.certificates import make_authority

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.api.harness import RawServer

    End = Callable[[socket.socket], object]

BODY = sse(START, *text_block(0, "ok"), *end())
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
)


def say(said: bytes, then: End, sock: socket.socket) -> None:
    sock.sendall(said)
    then(sock)


TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"
ENDS: list[End] = [reset, socket.socket.close]


@every_row(
    "give_up", [*ENDS, partial(say, TOO_LATE, socket.socket.close), partial(say, TOO_LATE, lambda _: None)]
)
def test_one_that_has_become_readable_is_replaced_before_the_request(
    raw_server: Callable[..., RawServer], rig: Callable[..., Rig], give_up: End
) -> None:
    requests, is_idle = [], threading.Event()

    def serve(sock: socket.socket) -> None:
        requests.append(read_request(sock))
        sock.sendall(ANSWER)
        if len(requests) == 1:
            assert is_idle.wait(within_s())
            give_up(sock)

    server = raw_server(serve)
    client = rig(server)
    assert client.send().text == "ok"
    assert await_no_exchange()
    is_idle.set()
    await_readable(client)
    assert (client.send().text, (server.connections, len(requests))) == ("ok", (2, 2))


def await_readable(client: Rig) -> None:
    watched = select.poll()
    assert client.api._wire.open_socket is not None
    watched.register(client.api._wire.open_socket, select.POLLIN)
    assert watched.poll(within_s() * 1000)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def kept(
    request: pytest.FixtureRequest,
    raw_server: Callable[..., RawServer],
    rig: Callable[..., Rig],
    tmp_path: Path,
) -> Callable[[End], Api]:
    """Sends two requests on one connection, and returns the error of the second, which the server ends in a given way."""

    def failure(end_it: End) -> Api:
        def serve(plain: socket.socket) -> None:
            sock = context.wrap_socket(plain, server_side=True) if context is not None else plain
            read_request(sock)
            sock.sendall(ANSWER)
            assert read_request(sock)
            end_it(sock)

        server = raw_server(serve)
        scheme = "http" if context is None else "https"
        client = rig(f"{scheme}://127.0.0.1:{server.port}", ca_file=authority)
        assert client.send().text == "ok"
        assert await_no_exchange()
        with pytest.raises(Api) as caught:
            client.send()
        assert server.connections == 1
        return caught.value

    context, authority = None, None
    if request.param:
        made, leaf = make_authority(tmp_path)
        context, authority = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), str(made)
        context.load_cert_chain(leaf)
    return failure


@pytest.mark.parametrize("end_it", ENDS, ids=["reset", "end"])
def test_one_that_ends_before_the_answers_first_byte_was_idle(
    kept: Callable[[End], Api], end_it: End
) -> None:
    error = kept(end_it)
    assert (error.cause, error.was_idle) == (NetworkCause.RESET, True)


@pytest.mark.parametrize("end_it", ENDS, ids=["reset", "end"])
def test_one_that_ends_after_a_byte_of_the_answer_was_not_idle(
    kept: Callable[[End], Api], end_it: End
) -> None:
    error = kept(partial(say, b"H", end_it))
    assert error.cause in {NetworkCause.RESET, NetworkCause.PROTOCOL_GARBAGE}
    assert not error.was_idle


def test_garbage_on_it_is_no_reset(kept: Callable[[End], Api]) -> None:
    error = kept(partial(say, b"SSH-2.0-OpenSSH_9.9\r\n", socket.socket.close))
    assert (error.cause, error.was_idle) == (NetworkCause.PROTOCOL_GARBAGE, False)


@pytest.mark.parametrize("end_it", ENDS, ids=["reset", "end"])
def test_a_new_connection_was_not_idle(
    raw_server: Callable[..., RawServer], rig: Callable[..., Rig], end_it: End
) -> None:
    def serve(sock: socket.socket) -> None:
        read_request(sock)
        end_it(sock)

    with pytest.raises(Api) as caught:
        rig(raw_server(serve)).send()
    assert not caught.value.was_idle
