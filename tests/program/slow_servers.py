"""Functions for `answer_with` that keep a client waiting in different ways."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ralph.mock_api import Turn, as_events, encode_events
from tests.api.harness import http_answer

if TYPE_CHECKING:
    import socket

WHOLE = http_answer(encode_events(as_events(Turn("Here is the whole answer.", id="m2", chunk_chars=0))))
BROKEN = encode_events(as_events(Turn("This half does not count, and more", id="m1", chunk_chars=9)))
HEAD = http_answer(b"")
FIRST_HALF = BROKEN[: BROKEN.index(b"event: content_block_delta", BROKEN.index(b"This half"))]
PING = b'data: {"type": "ping"}\n\n'


def until_the_client_leaves(sock: socket.socket, sends: bytes = b"", every_s: float = 0.05) -> None:
    sock.settimeout(every_s)
    while True:
        with contextlib.suppress(TimeoutError):
            if not sock.recv(1):
                return
        if sends:
            sock.sendall(sends)


def after_half(sock: socket.socket) -> None:
    sock.sendall(HEAD + FIRST_HALF)
    until_the_client_leaves(sock)


def pings(sock: socket.socket) -> None:
    sock.sendall(HEAD + FIRST_HALF)
    until_the_client_leaves(sock, PING)


def flood(sock: socket.socket) -> None:
    """Sends pings without any pause."""
    sock.sendall(HEAD + FIRST_HALF)
    while True:
        sock.sendall(PING * 1000)


def drip(sock: socket.socket) -> None:
    sock.sendall(HEAD + FIRST_HALF)
    until_the_client_leaves(sock, b"x")


def endless(sock: socket.socket) -> None:
    sock.sendall(HEAD + FIRST_HALF)
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "la "}}
    until_the_client_leaves(sock, encode_events([delta]))


def set_clocks(ralph, **seconds: float) -> None:
    lines = [f"{name} = {value}" for name, value in seconds.items()]
    ralph.user_file.write_text(
        "\n".join(["[clocks]", *lines, "[retry]", "policy = 'custom'", "base_delay_s = 0.01"])
    )
