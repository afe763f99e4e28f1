"""Loads the HTTP library, and builds the transport for an endpoint, with its TLS context and its proxy.

This is the lower half of an `httpx.Client`. The upper half handles redirects, cookies, logins and defaults. Ralph wants
none of these, and each request would take 0.2 ms more.
"""

from __future__ import annotations

import urllib  # noqa: F401 - the stand-in for `urllib.request` is an attribute of it
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.loading import load_late, load_without, load_without_openssl
from ralph.machine.network.proxies import proxy_for

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

# --- httpx, loaded without what most requests need not
# Loads httpx and httpx-sse without modules that only some requests need, and without OpenSSL, which only TLS needs.
# The other modules import them from here.


_LATE = {
    "certifi": "",
    "email": "",
    "email.message": "",
    "http.cookiejar": "Cookie CookieJar",
    "httpcore._async": "AsyncConnectionInterface AsyncConnectionPool AsyncHTTP11Connection AsyncHTTP2Connection "
    "AsyncHTTPConnection AsyncHTTPProxy AsyncSOCKSProxy",
    "idna": "",
    "mimetypes": "",
    "urllib.request": "Request getproxies parse_http_list",
}
"""Modules that the libraries load for cookies, logins, forms, coroutines, and names of hosts beyond ASCII."""
_NEVER = (
    "anyio",
    "httpcore._backends.anyio",
    "httpcore._backends.trio",
    "httpcore._sync.http2",
    "httpcore._sync.socks_proxy",
)
"""Modules that httpcore does without if they are missing."""


@contextmanager
def load_lightly() -> Iterator[None]:
    """Also for what httpx loads later: httpcore comes with its first transport."""
    with load_without(*_NEVER), load_late(_LATE), load_without_openssl():
        yield


with load_lightly():
    import httpx
    import httpx_sse

__all__ = ("httpx", "httpx_sse")

# --- The transport


class EndpointRoute(Struct, frozen=True):
    url: httpx.URL
    tls: ssl.SSLContext | None
    proxy: httpx.Proxy | None
    proxy_in_words: str


def route_to(base_url: str, ca_file: str | None) -> EndpointRoute:
    """Chooses the proxy and the TLS context for a base URL.

    `ca_file` is a file with the certificates of the authorities to trust. None means the usual authorities. Raises
    OSError (which includes `ssl.SSLError`) if that file cannot be used, and ValueError if the base URL or the proxy
    cannot be used.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{base_url} is not a usable URL: {error}") from error
    named = proxy_for(base_url)
    try:
        proxy = None if named is None else httpx.Proxy(named.url.plain)
    except (ValueError, httpx.InvalidURL):
        raise ValueError(f"the proxy of {named and named.name} must be an http:// or https:// URL") from None
    tls = None
    if "https" in (url.scheme, proxy and proxy.url.scheme):
        from ralph.machine.network.trust import trusting  # noqa: PLC0415 - plain http needs no TLS

        tls = trusting(ca_file)
    if proxy is not None and proxy.url.scheme == "https":
        proxy.ssl_context = tls
    return EndpointRoute(url, tls, proxy, str(named or ""))


def build_transport(base_url: str, ca_file: str | None) -> httpx.BaseTransport:
    """Makes a transport, which sends requests as they are and always verifies certificates. Raises the errors of
    `route_to`.
    """
    route = route_to(base_url, ca_file)
    with load_lightly():  # httpx imports `ssl` and `certifi` even if there is no TLS context
        transport = httpx.HTTPTransport(
            # httpx hands None on to httpcore, which uses it for plain http alone and needs no context there.
            verify=route.tls,  # type: ignore[arg-type]  # httpx's annotation leaves None out
            proxy=route.proxy,
            # Ralph sends one request at a time. A second connection exists only while an old one is being shut down.
            limits=httpx.Limits(max_keepalive_connections=1, keepalive_expiry=30),
        )
        from ralph.api.connector import Connector  # noqa: PLC0415 - it loads httpcore

    transport._pool._network_backend = Connector()  # type: ignore[assignment]  # noqa: SLF001 - httpx has no parameter for it
    return transport
