"""A name of this machine with two addresses, `two.localhost`, as `localhost` is on most machines, and listeners at one or both."""

from __future__ import annotations

import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine import connecting
from tests.patience import within_s
from tests.services.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

FOUR, SIX = "127.0.0.1", "::1"
NAME = "two.localhost"

IN_A_PROCESS = """
import socket
look_up = socket.getaddrinfo


def both(host, *rest, **named):
    if host not in ("two.localhost", b"two.localhost"):
        return look_up(host, *rest, **named)
    return look_up("::1", *rest, **named) + look_up("127.0.0.1", *rest, **named)


socket.getaddrinfo = both
"""
"""Python code that gives the name its addresses. The one of IPv6 comes first, as from `getaddrinfo` of the system."""

_TAKER = """
import socket
with socket.create_server(("::1", {port}), family=socket.AF_INET6) as listener:
    open("listening", "w").close()
    while True:
        taken = listener.accept()[0]
        open("taken", "ab").write(taken.recv(65536))
        taken.close()
"""


def taker(port: int) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Calls of the model: a command listens at the address of IPv6, and writes what it gets into the file `taken`."""
    listen = f"{sys.executable} -I -c '{_TAKER.format(port=port)}'"
    return (
        ("Bash", {"command": listen, "run_in_background": True}),
        ("Bash", {"command": "until [ -e listening ]; do sleep 0.01; done"}),
    )


def needs_ipv6() -> None:
    try:
        socket.create_server((SIX, 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")


class Listening:
    """Listeners at one port of the addresses."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://{NAME}:{self.port}"
        self._open: dict[str, socket.socket] = {}

    def listen(self, *addresses: str) -> None:
        for address in addresses:
            if address not in self._open:
                family = socket.AF_INET6 if address == SIX else socket.AF_INET
                self._open[address] = socket.create_server((address, self.port), family=family)

    def stop(self, *addresses: str) -> None:
        for address in addresses or [*self._open]:
            self._open.pop(address).close()

    def connected(self, host: str) -> str:
        """The address to which a new connection goes."""
        with connecting.connect(host, self.port, within_s(10)) as opened:
            return str(opened.getpeername()[0])

    @property
    def accepted(self) -> int:
        """The number of connections that wait for somebody to accept them."""
        number = 0
        for listener in self._open.values():
            listener.setblocking(False)
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                continue
            number += 1
        return number


@contextmanager
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    """Gives the name its addresses in this process, which has chosen none of them. `one.localhost` has one."""
    needs_ipv6()

    def look_up(host: bytes, port: int, **_: Any) -> list[tuple[Any, ...]]:
        name = host.decode().lower().partition(".")[0]
        addresses = {"one": [FOUR], "two": [SIX, FOUR], "localhost": [SIX, FOUR]}[name]
        kinds = {FOUR: (socket.AF_INET, (FOUR, port)), SIX: (socket.AF_INET6, (SIX, port, 0, 0))}
        return [
            (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", found)
            for family, found in map(kinds.__getitem__, addresses)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(connecting, "_CHOSEN", {})
    listening = Listening()
    try:
        yield listening
    finally:
        listening.stop()
