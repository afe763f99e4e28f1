"""An address at which connecting neither succeeds nor fails."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def full_backlog() -> Iterator[tuple[str, int]]:
    """Opens a port where nobody accepts connections and the queue is full. Yields its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(address)
        yield address
        for sock in waiting:
            sock.close()


def found(*addresses: tuple[str, int]) -> list[tuple[object, ...]]:
    """The result of `socket.getaddrinfo` for a name that leads to these IPv4 addresses."""
    return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for address in addresses]
