"""Decides which hosts a command may reach through the proxy (`proxy.py`). No I/O happens here.

The user's list holds host names (`example.org`), wildcards (`*.example.org`, without `example.org` itself), and addresses or
networks (`10.0.0.0/8`). An entry with a port (`example.org:8443`) allows only that port; one without allows 443 and 80. A
name may resolve to a private address only if that address is on the list too.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address
    Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PORTS = (443, 80)
"""The ports of https and http. An entry of the list allows these two unless it names another port."""
# RFC 1035: at most 253 characters. Underscores occur in real names.
_HOST = r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*"
# The C library reads a name whose last label is a number as an address: 127.1, 0x7f000001, 2130706433.
_NUMBER = r"(0x[0-9a-f]*|[0-9]+)"
# RFC 6052: the last 32 bits of such an address are an IPv4 address.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class AllowedHost(Struct, frozen=True):
    name: str
    """The name in lower case. It begins with a dot if all names below it are allowed."""
    port: int | None = None
    """The only allowed port. None means that the ports in `PORTS` are allowed."""

    @property
    def entry(self) -> str:
        """The entry of a list that means this host."""
        name = f"*{self.name}" if self.name.startswith(".") else self.name
        return name if self.port is None else f"{name}:{self.port}"

    def has(self, host: str, port: int) -> bool:
        is_name = host.endswith(self.name) if self.name.startswith(".") else host == self.name
        return is_name and (port in PORTS if self.port is None else port == self.port)


class AllowedHosts(Struct, frozen=True):
    hosts: tuple[AllowedHost, ...]
    networks: tuple[Network, ...] = ()
    """Private addresses to which listed names may resolve."""

    def why_not(self, host: str, port: int) -> str:
        """The reason why a command may not reach a host, or "" if it may. `host` is the text that the command wrote."""
        name = plain_name(host)
        if is_address(name):
            return "it is an address, and only names of hosts are allowed"
        if not re.fullmatch(_HOST, name):
            return "it is not the name of a host"
        if any(one.has(name, port) for one in self.hosts):
            return ""
        if any(one.has(name, one.port or PORTS[0]) for one in self.hosts):
            return f"port {port} is not allowed"
        return "it is not on the list of hosts"

    def may_be_at(self, address: str) -> bool:
        """Whether an allowed name may resolve to `address`. The owner of a name could choose a private one: it must be listed."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        private = (one for one in _meant_by(found) if not one.is_global or one.is_multicast)
        return all(any(one in network for network in self.networks) for one in private)


def _meant_by(address: Address) -> list[Address]:
    """The addresses to check for one: itself, and the IPv4 address in it. Of an IPv4-mapped address, only the latter."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    inside: list[Address | None] = [address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        inside.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return [address, *(one for one in inside if one is not None)]


def plain_name(host: str) -> str:
    """The host name in a form that can be compared: in lower case and without a final dot."""
    return host.lower().removesuffix(".")


def is_address(name: str) -> bool:
    """Whether a text is an IP address. This includes unusual forms that only the C library accepts."""
    return name.startswith("[") or ":" in name or re.fullmatch(_NUMBER, name.rpartition(".")[2]) is not None


def allowed_hosts(entries: Iterable[str]) -> AllowedHosts:
    """Parses the user's list. Raises ValueError for an entry that is neither the name of a host nor an address nor a network."""
    hosts: list[AllowedHost] = []
    networks: list[Network] = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry))
        except ValueError:
            hosts.append(_allowed_host(entry))
    return AllowedHosts(tuple(hosts), tuple(networks))


def _allowed_host(entry: str) -> AllowedHost:
    name, colon, port = entry.partition(":")
    plain = plain_name(name)
    below = plain.removeprefix("*.")
    if not re.fullmatch(_HOST, below) or is_address(below):
        raise ValueError(f"{entry!r} is neither the name of a host nor an address")
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{entry!r} has no valid port")
    return AllowedHost(f".{below}" if below != plain else below, int(port) if colon else None)
