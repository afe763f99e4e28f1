"""Loads httpx and httpx-sse without modules that only some requests need, and without OpenSSL, which only TLS
needs. The other modules import them from here.
"""

from __future__ import annotations

import urllib  # noqa: F401 - the stand-in for `urllib.request` is an attribute of it
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ralph.machine.loading import load_late, load_without, load_without_openssl

if TYPE_CHECKING:
    from collections.abc import Iterator

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
