"""Finds the proxy for a URL. The API, MCP servers and `ralph doctor` all ask here."""

from __future__ import annotations

import os
import re
import sys
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from ralph.machine.network.connecting import chosen_address
from ralph.values.credentials import Secret
from ralph.values.servers.endpoint import host_in, is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

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
