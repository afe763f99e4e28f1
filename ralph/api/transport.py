"""Loads the HTTP library, builds the transport for an endpoint, with its TLS context and its proxy, and converts exceptions
of the library into the five errors in `values/errors.py`.

This is the lower half of an `httpx.Client`. The upper half handles redirects, cookies, logins and defaults. Ralph wants
none of these, and each request would take 0.2 ms more.

httpx raises `ConnectError` for refused connections, for DNS errors and for TLS errors. So `network_cause` looks at the causes
of the exception.
"""

from __future__ import annotations

import errno
import re
import socket
import sys
import urllib  # noqa: F401 - the stand-in for `urllib.request` is an attribute of it
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.connecting import connect, proxy_for
from ralph.machine.loading import load_late, load_without, load_without_openssl
from ralph.values.errors import AgentError, Api, HttpError, NetworkCause, StreamParse, StreamTransient
from ralph.values.outcome import ShortageError, causes_of, shortage_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from httpcore import NetworkStream

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
    from httpcore._backends.sync import SyncStream  # there is no public name for it

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
        from ralph.machine.trust import trusting  # noqa: PLC0415 - plain http needs no TLS

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

    transport._pool._network_backend = Connector()  # type: ignore[assignment]  # noqa: SLF001 - httpx has no parameter for it
    return transport


class Connector:
    """Replaces the library's own code, which gives a silent first address of a host all the time."""

    def connect_tcp(self, host: str, port: int, timeout: float | None, **_: object) -> NetworkStream:
        return ObservedStream(connect(host, port, timeout))


class ObservedStream(SyncStream):
    """A connection that knows whether anything has arrived on it."""

    has_received = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        arrived = super().read(max_bytes, timeout)
        self.has_received = self.has_received or bool(arrived)
        return arrived

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> NetworkStream:
        secure = super().start_tls(ssl_context, server_hostname, timeout)
        # For TLS inside of TLS, through a proxy, the library has a class of its own.
        return ObservedStream(secure._sock) if isinstance(secure, SyncStream) else secure  # noqa: SLF001 - it tells in no other way


# --- What a failure means

_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN})
# The error numbers that mean that a name does not exist or has no address. All others are problems of the resolver.
_NO_SUCH_HOST = frozenset(
    {
        socket.EAI_NONAME,
        *(getattr(socket, name, socket.EAI_NONAME) for name in ("EAI_NODATA", "EAI_ADDRFAMILY")),
    }
)
_PROXY_STATUS = r"^(\d{3})\b"


def error_before_answer(
    error: Exception, host: str, redact: Callable[[str], str], *, has_answered: bool = False
) -> AgentError:
    """The error for a failure before the head of the response was read.

    `redact` removes credentials from the library's message. If `has_answered` is True, the host has answered
    before, and a failed name lookup is treated as temporary.
    """
    detail = redact(str(error))
    if isinstance(error, httpx.ProxyError) and (refused := re.match(_PROXY_STATUS, str(error))):
        # If a proxy refuses CONNECT, only the message of the error contains the status.
        return HttpError(int(refused[1]), None, "", message=f"the proxy refused the connection: {detail}")
    cause = network_cause(error)
    if cause is NetworkCause.SHORTAGE:
        return shortage_error(error)
    if cause is NetworkCause.DNS_UNKNOWN_HOST and has_answered:
        cause = NetworkCause.DNS_TEMPORARY
    return Api(cause, detail, host)


def shortage_error(error: BaseException) -> Api:
    """The error for a shortage of a resource, such as memory, on this machine."""
    return Api(NetworkCause.SHORTAGE, str(shortage_of(error) or ShortageError("memory")))


def error_inside_answer(error: Exception, redact: Callable[[str], str]) -> AgentError:
    """The error for a failure while the body of a 2xx response is read: it broke off, or cannot be decompressed."""
    detail = redact(str(error)) or type(error).__name__
    if isinstance(error, httpx.DecodingError):
        return StreamParse(f"the answer's content-encoding is broken: {detail}")
    return StreamTransient(f"the connection broke inside the answer: {detail}")


def network_cause(error: BaseException) -> NetworkCause:
    """The cause of a failure that happened before the head of the response was read.

    The cause is found from the classes and error numbers of the exception and of its own causes. Message texts are
    used only to recognise a shortage on this machine (`values/outcome.py`).
    """
    if isinstance(error, httpx.TimeoutException):
        return NetworkCause.TIMEOUT
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return NetworkCause.BAD_URL
    for cause in causes_of(error):
        found = _os_cause(cause)
        if found is not None:
            return found
    if shortage_of(error) is not None:
        return NetworkCause.SHORTAGE
    if isinstance(error, httpx.LocalProtocolError):
        return NetworkCause.UNSENDABLE
    if isinstance(error, httpx.RemoteProtocolError):
        return NetworkCause.PROTOCOL_GARBAGE
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.CloseError):
        return NetworkCause.RESET
    return NetworkCause.OTHER


def _os_cause(cause: BaseException) -> NetworkCause | None:
    ssl = sys.modules.get("ssl")
    if ssl is not None and isinstance(cause, ssl.SSLError):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return NetworkCause.CERTIFICATE
        # Any other error of TLS: the other side sent an alert, or does not use TLS.
        is_end = isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        return NetworkCause.RESET if is_end else NetworkCause.TLS
    match cause:
        case socket.gaierror() if cause.errno == socket.EAI_MEMORY:
            return NetworkCause.SHORTAGE
        case socket.gaierror():
            is_unknown = cause.errno in _NO_SUCH_HOST
            return NetworkCause.DNS_UNKNOWN_HOST if is_unknown else NetworkCause.DNS_TEMPORARY
        case UnicodeError() if not isinstance(cause, UnicodeDecodeError):  # a name that no host can have
            return NetworkCause.BAD_URL
        case PermissionError():
            return NetworkCause.NOT_PERMITTED
        case TimeoutError():
            return NetworkCause.TIMEOUT
        case ConnectionRefusedError():
            return NetworkCause.REFUSED
        case ConnectionError():
            return NetworkCause.RESET
        case OSError() if cause.errno in _UNREACHABLE:
            return NetworkCause.UNREACHABLE
        case _:
            return None
