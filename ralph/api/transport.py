"""Builds the HTTP transport for an endpoint, with its TLS context and its proxy.

This is the lower half of an `httpx.Client`. The upper half handles redirects, cookies, logins and defaults. Ralph wants
none of these, and each request would take 0.2 ms more.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.api.http_library import httpx, load_lightly
from ralph.machine.network.connecting import connect
from ralph.values.endpoint import is_loopback

if TYPE_CHECKING:
    import ssl

    from httpcore import NetworkStream


class ProxyRoute(Struct, frozen=True):
    proxy: httpx.Proxy
    name: str
    """The variable that names the proxy."""

    def __str__(self) -> str:
        return (
            f"the proxy {str(self.proxy.url).rstrip('/')} ({self.name})"  # httpx has taken the password out
        )


class EndpointRoute(Struct, frozen=True):
    url: httpx.URL
    proxy: ProxyRoute | None
    tls: ssl.SSLContext | None
    """The TLS context. None if neither the endpoint nor the proxy uses TLS."""


def route_to(base_url: str, ca_file: str | None) -> EndpointRoute:
    """Chooses the proxy and the TLS context for a base URL.

    A loopback address never uses a proxy. `ca_file` is a file with the certificates of the authorities to trust. None
    means the usual authorities. Raises OSError (which includes `ssl.SSLError`) if that file cannot be used, and
    ValueError if the base URL or the proxy cannot be used.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{base_url} is no usable URL: {error}") from error
    proxy = None if is_loopback(base_url) else _proxy_for(url)
    has_tls = url.scheme == "https" or (proxy is not None and proxy.proxy.url.scheme == "https")
    return EndpointRoute(url, proxy, trusting(ca_file) if has_tls else None)


def proxy_in_words(base_url: str) -> str:
    """The proxy for a base URL as messages name it. Empty if there is none. Raises no errors."""
    try:
        return "" if is_loopback(base_url) else str(_proxy_for(httpx.URL(base_url)) or "")
    except (ValueError, httpx.InvalidURL):
        return ""


def build_transport(base_url: str, ca_file: str | None) -> httpx.BaseTransport:
    """Makes a transport, which sends requests as they are and always verifies certificates. Raises the errors of
    `route_to`.
    """
    route = route_to(base_url, ca_file)
    with load_lightly():  # httpx imports `ssl` and `certifi` even if there is no TLS context
        transport = httpx.HTTPTransport(
            # httpx hands None on to httpcore, which uses it for plain http alone and needs no context there.
            verify=route.tls,  # type: ignore[arg-type]  # httpx's annotation leaves None out
            proxy=None if route.proxy is None else route.proxy.proxy,
            # Ralph sends one request at a time. A second connection exists only while an old one is being shut down.
            limits=httpx.Limits(max_keepalive_connections=1, keepalive_expiry=30),
        )
    transport._pool._network_backend = _Connector()  # type: ignore[assignment]  # noqa: SLF001 - httpx has no parameter for it
    return transport


class _Connector:
    """Connects for the HTTP library, whose own code gives a silent first address of a host all the time."""

    def connect_tcp(self, host: str, port: int, timeout: float | None, **_: object) -> NetworkStream:
        from httpcore._backends.sync import SyncStream  # noqa: PLC0415 - it comes with the first transport

        return SyncStream(connect(host, port, timeout))


def _proxy_for(url: httpx.URL) -> ProxyRoute | None:
    """The proxy for `url` according to the environment variables HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY. None
    if there is no proxy.

    Raises ValueError if it cannot be used. The error does not contain its URL, which may contain a password.
    """
    if sys.platform != "darwin" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.request  # noqa: PLC0415 - few machines have a proxy

    proxies = urllib.request.getproxies()
    kind = url.scheme if proxies.get(url.scheme) else "all"
    named = proxies.get(kind)
    if not named or urllib.request.proxy_bypass(url.host):
        return None
    variables = (f"{kind}_proxy", f"{kind.upper()}_PROXY")
    name = next((each for each in variables if os.environ.get(each)), "this machine's settings")
    try:
        proxy = httpx.Proxy(named if "://" in named else f"http://{named}")
    except (ValueError, httpx.InvalidURL):
        raise ValueError(f"the proxy of {name} must be an http:// or https:// URL") from None
    if proxy.url.scheme not in ("http", "https"):
        raise ValueError(f"proxies of the kind {proxy.url.scheme}:// are not supported: correct {name}")
    return ProxyRoute(proxy, name)


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """Makes a TLS context that trusts the certificates in `ca_file`. If `ca_file` is None, it trusts the usual
    authorities.
    """
    import ssl  # noqa: PLC0415 - 5 MB of OpenSSL, which plain http does not need

    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    import certifi  # noqa: PLC0415 - 200 KB of certificates, which plain http does not need

    return ssl.create_default_context(cafile=certifi.where())
