"""Connects to the address of a host that answers first, as in Happy Eyeballs (RFC 8305), and keeps to an address of this machine.

A name such as `localhost` has two addresses, and a server often listens at one of them only. A command of the model can listen
at the other one. So an address of this machine that has answered is the only one that this process uses from then on.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections import deque
from ipaddress import ip_address
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    AddressInfo = tuple[Any, ...]
    """One result of `socket.getaddrinfo`: family, kind, protocol, canonical name, address."""

ATTEMPT_DELAY_S = 0.25
"""The seconds that an address has for itself before the next one is tried beside it (RFC 8305, section 5)."""
_CHOICE_S = 1.0
_CHOSEN: dict[tuple[str, int], tuple[Any, ...]] = {}
"""The addresses of this machine that have answered, by host and port."""


def connect(host: str, port: int, within_s: float | None) -> socket.socket:
    """Looks up a host and connects to it, as `connect_to_first` does. A name lookup has no time limit. If the host has an address
    of this machine that has answered before, it is the only one.
    """
    name = host.lower().removesuffix("."), port
    found = _found(host, port)
    opened = connect_to_first([one for one in found if one[4] == _CHOSEN.get(name)] or found, within_s)
    with contextlib.suppress(OSError):  # the server has already ended the connection
        address = opened.getpeername()
        if address[0] == opened.getsockname()[0] or ip_address(address[0]).is_loopback:
            _CHOSEN[name] = address
    return opened


def chosen_address(host: str, port: int) -> str | None:
    """The only address that this process uses for a name of this machine, chosen by connecting. None if the name has only one,
    or if none answers.
    """
    name = host.lower().removesuffix("."), port
    if name not in _CHOSEN:
        with contextlib.suppress(OSError):
            if len(_found(host, port)) > 1:
                connect(host, port, _CHOICE_S).close()
    return str(_CHOSEN[name][0]) if name in _CHOSEN else None


def _found(host: str, port: int) -> list[AddressInfo]:
    """The addresses of a host. A server at only one address of this machine is more often at the one of IPv4."""
    # For a text, Python loads a table of all letters (IDNA).
    name = host.encode() if host.isascii() else host
    found: list[AddressInfo] = list(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
    return sorted(found, key=lambda one: one[4][0] == "::1")


def connect_to_first(addresses: Sequence[AddressInfo], within_s: float | None) -> socket.socket:
    """Connects to one of the addresses, and returns the socket: blocking, without a timeout and without delay (TCP_NODELAY).

    An address that refuses is followed by the next one at once, and one that is silent after `ATTEMPT_DELAY_S`, in addition.
    The families take turns. Raises TimeoutError if no address has answered after `within_s` seconds (None: no limit), or the
    OSError of the address that failed last, but none of the addresses to which this machine has no way if another one refused.
    """
    waiting = deque(by_turns(addresses))
    tried: dict[int, socket.socket] = {}
    watched = select.poll()
    failure: OSError | None = None
    next_s = time.monotonic()
    ends_s = None if within_s is None else next_s + within_s
    try:
        while waiting or tried:
            now_s = time.monotonic()
            if ends_s is not None and now_s >= ends_s:
                raise TimeoutError("timed out")
            if waiting and now_s >= next_s:
                next_s = now_s + ATTEMPT_DELAY_S
                try:
                    _begin(waiting.popleft(), tried, watched)
                except OSError as error:
                    failure, next_s = failure or error, now_s
                    continue
            until_s = [one for one in (ends_s, next_s if waiting else None) if one is not None]
            wait_ms = max(0.0, min(until_s) - now_s) * 1000 + 1 if until_s else None
            for number, _ in watched.poll(wait_ms):
                watched.unregister(number)
                opened = tried.pop(number)
                code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not code:
                    opened.setblocking(True)
                    # The head and the body of a request are written one after the other: neither waits for the other's answer.
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return opened
                opened.close()
                failure, next_s = OSError(code, os.strerror(code)), now_s
    finally:
        for other in tried.values():
            other.close()
    raise failure or OSError("the name has no address")


def _begin(info: AddressInfo, tried: dict[int, socket.socket], watched: select.poll) -> None:
    family, kind, protocol, _, address = info
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            opened.connect(address)
    except OSError:
        opened.close()
        raise
    tried[opened.fileno()] = opened
    watched.register(opened, select.POLLOUT)


def by_turns(addresses: Sequence[AddressInfo]) -> list[AddressInfo]:
    """The addresses in their order, but with the families by turns."""
    families: dict[Any, list[AddressInfo]] = {}
    for one in addresses:
        families.setdefault(one[0], []).append(one)
    return [one for row in zip_longest(*families.values()) for one in row if one is not None]
