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

if TYPE_CHECKING:
    import ssl


class EndpointRoute(Struct, frozen=True):
    url: httpx.URL
    proxy: httpx.Proxy | None
    tls: ssl.SSLContext | None
    """The TLS context. None if neither the endpoint nor the proxy uses TLS."""


def route_to(base_url: str, ca_file: str | None, *, is_loopback: bool) -> EndpointRoute:
    """Chooses the proxy and the TLS context for a base URL.

    A loopback address never uses a proxy. `ca_file` is a file with the certificates of the authorities to trust. None
    means the usual authorities. Raises OSError (which includes `ssl.SSLError`) if that file cannot be used, and
    ValueError if the base URL or the proxy cannot be used.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{base_url} is no usable URL: {error}") from error
    proxy = None if is_loopback else _proxy_for(url)
    return EndpointRoute(url, _checked_proxy(proxy) if proxy else None, _tls_context(url, proxy, ca_file))


def build_transport(base_url: str, ca_file: str | None, *, is_loopback: bool) -> httpx.BaseTransport:
    """Makes a transport, which sends requests as they are and always verifies certificates. Raises the errors of
    `route_to`.
    """
    route = route_to(base_url, ca_file, is_loopback=is_loopback)
    with load_lightly():  # httpx imports `ssl` and `certifi` even if there is no TLS context
        return httpx.HTTPTransport(
            # httpx hands None on to httpcore, which uses it for plain http alone and needs no context there.
            verify=route.tls,  # type: ignore[arg-type]  # httpx's annotation leaves None out
            proxy=route.proxy,
            # Ralph sends one request at a time. A second connection exists only while an old one is being shut down.
            limits=httpx.Limits(max_keepalive_connections=1, keepalive_expiry=30),
        )


def _checked_proxy(url: str) -> httpx.Proxy:
    """Parses the URL of a proxy.

    Raises ValueError if the URL cannot be used. The error does not contain the URL, which may contain a password.
    """
    try:
        proxy = httpx.Proxy(url)
    except (ValueError, httpx.InvalidURL):
        raise ValueError("the proxy in the environment must be an http:// or https:// URL") from None
    if proxy.url.scheme not in ("http", "https"):
        raise ValueError(f"proxies of the kind {proxy.url.scheme}:// are not supported")
    return proxy


def _proxy_for(url: httpx.URL) -> str | None:
    """The URL of the proxy for `url` according to the environment variables HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and
    NO_PROXY. None if there is no proxy.
    """
    if sys.platform != "darwin" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.request  # noqa: PLC0415 - few machines have a proxy

    if urllib.request.proxy_bypass(url.host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _tls_context(url: httpx.URL, proxy: str | None, ca_file: str | None) -> ssl.SSLContext | None:
    is_plain = url.scheme != "https" and not (proxy or "").startswith("https:")
    return None if is_plain else trusting(ca_file)


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """Makes a TLS context that trusts the certificates in `ca_file`. If `ca_file` is None, it trusts the usual
    authorities.
    """
    import ssl  # noqa: PLC0415 - 5 MB of OpenSSL, which plain http does not need

    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    import certifi  # noqa: PLC0415 - 200 KB of certificates, which plain http does not need

    return ssl.create_default_context(cafile=certifi.where())
