"""Finds the proxy for a URL, and connects to the address of a host that answers first, as in Happy Eyeballs (RFC 8305). Keeps to an
address of this machine.

A name such as `localhost` has two addresses, and a server often listens at one of them only. A command of the model can listen
at the other one. So an address of this machine that has answered is the only one that this process uses from then on.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import sys
import time
from collections import deque
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct

from ralph.values.credentials import Secret
from ralph.values.servers import host_in, is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    AddressInfo = tuple[Any, ...]
    """One result of `socket.getaddrinfo`: family, kind, protocol, canonical name, address."""

AUTHORITIES = ("SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""The variables that name further authorities. SSL_CERT_FILE is a setting, which replaces all others."""
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


USUAL_PORTS = {"http": 80, "https": 443}


class NamedProxy(Struct, frozen=True):
    url: Secret[str]
    """The URL, with user and password if there are any."""
    name: str
    """The variable that names the proxy."""

    def __str__(self) -> str:
        parts = urlsplit(self.url.plain)
        return f"the proxy {parts.scheme}://{parts.netloc.rpartition('@')[2]} ({self.name})"


def proxy_for(url: str, environment: Mapping[str, str] = os.environ) -> NamedProxy | None:
    """The proxy for a URL according to HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, or on macOS, if there is no such
    variable, to the system's settings. None for an address of this machine, or if there is no proxy.

    Raises ValueError if the URL or the proxy cannot be used. The error does not contain the proxy's URL.
    """
    if is_loopback(url):
        return None
    parts = urlsplit(url)
    if sys.platform == "darwin" and not any(name.lower().endswith("_proxy") for name in environment):
        import urllib.request  # noqa: PLC0415 - few machines have a proxy

        is_bypassed = urllib.request.proxy_bypass(parts.hostname or "")
        named = "" if is_bypassed else urllib.request.getproxies().get(parts.scheme, "")
        name = "this machine's settings"
    else:
        named, name = _of_environment(parts.scheme, environment)
        exempt = environment.get(_variable("no", environment), "")
        if named and is_exempt(parts.hostname or "", parts.port or USUAL_PORTS.get(parts.scheme, 0), exempt):
            return None
    return _usable(named if "://" in named else f"http://{named}", name) if named else None


def proxy_in_words(url: str, environment: Mapping[str, str] = os.environ) -> str:
    """The proxy for a URL as messages name it. Empty if there is none. Raises no errors."""
    try:
        return str(proxy_for(url, environment) or "")
    except ValueError:
        return ""


def choose_address(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The only address that this process uses for the proxy of a URL, or without a proxy for its host, from now on.

    Must be called before the first command of the model, which could listen at another address of the same name. None if there
    is nothing to choose, and for https, where the server proves its name. Raises no errors.
    """
    try:
        named = proxy_for(url, environment)
        first = url if named is None else named.url.plain
        parts = urlsplit(first)
        port = parts.port or USUAL_PORTS["http"]
    except ValueError:
        return None
    # No other name is looked up, which can take long.
    is_name = is_loopback(first) and host_in(first).endswith("localhost")
    return chosen_address(host_in(first), port) if is_name and parts.scheme == "http" else None


def is_exempt(host: str, port: int, exemptions: str) -> bool:
    """Whether a list in the form of NO_PROXY names a host.

    Commas and spaces separate its entries: a name, which stands for all names below it too (`example.com`, `.example.com`,
    `*.example.com`), an address, a network (`10.0.0.0/8`, `fd00::/8`), each also with a port (`host:8443`, `[::1]:8443`), or a
    pattern (`*`, `192.168.*`). Other entries count for nothing, as in curl.
    """
    host = host.lower().rstrip(".")
    return any(_names(entry, host, port) for entry in re.split(r"[\s,]+", exemptions.lower()))


def _names(entry: str, host: str, port: int) -> bool:
    name, named_port = entry, ""
    if entry.count(":") == 1 or "]:" in entry:
        name, _, named_port = entry.rpartition(":")
    name = re.sub(r"[\[\]]", "", name)
    if not name or named_port not in ("", str(port)):
        return False
    try:
        address = ip_address(host)
        # An IPv4 address may be inside an IPv6 one.
        return (getattr(address, "ipv4_mapped", None) or address) in ip_network(name, strict=False)
    except ValueError:
        above = name.removeprefix("*").strip(".")
        return fnmatchcase(host, name) or (above != "" and f".{host}".endswith(f".{above}"))


def _of_environment(scheme: str, environment: Mapping[str, str]) -> tuple[str, str]:
    for kind in (scheme, "all"):
        name = _variable(kind, environment)
        # In a CGI script, HTTP_PROXY is the header `Proxy` of somebody's request.
        if environment.get(name) and not (name == "HTTP_PROXY" and "REQUEST_METHOD" in environment):
            return environment[name], name
    return "", ""


def _variable(kind: str, environment: Mapping[str, str]) -> str:
    """The name of a variable about proxies. The one in small letters counts first, even if it is empty."""
    small = f"{kind}_proxy"
    return small if small in environment else small.upper()


def _usable(url: str, name: str) -> NamedProxy:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host:
        raise ValueError(f"the proxy of {name} must be an http:// or https:// URL") from None
    if parts.scheme not in USUAL_PORTS:
        raise ValueError(f"proxies of the kind {parts.scheme}:// are not supported: correct {name}")
    return NamedProxy(Secret(url), name)
