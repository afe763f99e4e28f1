"""The route to an endpoint, with TLS and proxies, and the HTTP client that takes it. It is built once per
endpoint.
"""

from __future__ import annotations

import ssl
import urllib.request
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx
from msgspec import Struct


class EndpointRoute(Struct, frozen=True):
    url: httpx.URL
    proxy: httpx.Proxy | None
    tls: ssl.SSLContext


def route_to(base_url: str, ca_file: str | None, *, is_loopback: bool) -> EndpointRoute:
    """The route to a base URL. A loopback address never goes through a proxy. `ca_file` replaces the built-in
    certificates.

    Raises OSError (`ssl.SSLError` included) for an unusable CA file, and ValueError for an unusable base URL or
    proxy.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{base_url} is no usable URL: {error}") from error
    proxy = None if is_loopback else _proxy_for(url)
    return EndpointRoute(url, _checked_proxy(proxy) if proxy else None, _tls_context(url, proxy, ca_file))


def build_http_client(base_url: str, ca_file: str | None, *, is_loopback: bool) -> httpx.Client:
    """A client without timeouts (ralph's own clocks end a wait) that follows no redirect.

    There is no way to switch verification off. Raises like `route_to`.
    """
    route = route_to(base_url, ca_file, is_loopback=is_loopback)
    transport = _Transport(
        verify=route.tls,
        proxy=route.proxy,
        # One request at a time; a second connection only while an old one is being given up.
        limits=httpx.Limits(max_keepalive_connections=1, keepalive_expiry=30),
    )
    return httpx.Client(
        transport=transport,
        timeout=None,  # noqa: S113 - see above
        follow_redirects=False,
        trust_env=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none is kept, so none is sent
    )


class _Transport(httpx.HTTPTransport):
    """Drops a `Location` that cannot be parsed: httpx parses it even without following it, and would report
    garbage.
    """

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if response.has_redirect_location:
            try:
                httpx.URL(response.headers["location"])
            except httpx.InvalidURL:
                del response.headers["location"]
        return response


def _checked_proxy(url: str) -> httpx.Proxy:
    """The proxy of a URL. Raises ValueError, without the URL: it may hold a password."""
    try:
        proxy = httpx.Proxy(url)
    except (ValueError, httpx.InvalidURL):
        raise ValueError("the proxy in the environment must be an http:// or https:// URL") from None
    if proxy.url.scheme not in ("http", "https"):
        raise ValueError(f"proxies of the kind {proxy.url.scheme}:// are not supported")
    return proxy


def _proxy_for(url: httpx.URL) -> str | None:
    """The proxy from HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, by the usual rules."""
    if urllib.request.proxy_bypass(url.host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _tls_context(url: httpx.URL, proxy: str | None, ca_file: str | None) -> ssl.SSLContext:
    if url.scheme != "https" and not (proxy or "").startswith("https:"):
        # Plain http needs no certificates. This context trusts nobody, should it be used after all.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return trusting(ca_file)


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """A TLS context that trusts `ca_file`; None: the usual authorities."""
    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    import certifi  # noqa: PLC0415 - 200 KB of certificates, not for plain http

    return ssl.create_default_context(cafile=certifi.where())
