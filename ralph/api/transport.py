"""Sends HTTP requests and receives their responses, without interpreting them. Loads the HTTP library, builds the transport for an endpoint, with its TLS context and its proxy, and converts exceptions
of the library into the five errors in `values/errors.py`.

This is the lower half of an `httpx.Client`. The upper half handles redirects, cookies, logins and defaults. Ralph wants
none of these, and each request would take 0.2 ms more.

httpx raises `ConnectError` for refused connections, for DNS errors and for TLS errors. So `network_cause` looks at the causes
of the exception.

A reader thread looks up the name, connects, sends the request and reads the response. It puts the parts of the response
into a mailbox. The main thread waits for these parts with the `Waiter`. It can end the exchange at any time by shutting
down the socket.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import struct
import sys
import threading
import urllib  # noqa: F401 - the stand-in for `urllib.request` is an attribute of it
import zlib
from collections import deque
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.machine.connecting import connect, proxy_for
from ralph.machine.loading import load_late, load_without, load_without_openssl
from ralph.machine.starting import start_job
from ralph.values.errors import AgentError, Api, HttpError, NetworkCause, StreamParse, StreamTransient
from ralph.values.outcome import ShortageError, causes_of, shortage_of
from ralph.values.ports import TIMED_OUT, Mailbox, Waiter

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


# --- An exchange

# The most memory for chunks that are read before the main thread takes them, if a server is faster than ralph.
READ_AHEAD_BYTES = 4 * 1024 * 1024
# Each chunk takes about this much beside its bytes. Without it, a server could send a million of single bytes.
CHUNK_COST_BYTES = 64
# After 60 s of silence the kernel asks whether the other side is still there, three times, 10 s apart.
_SOCKET_OPTIONS = (
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 60),
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 10),
    ("TCP_KEEPCNT", socket.IPPROTO_TCP, 3),
    # The connection ends if the other side acknowledges no sent bytes for this many milliseconds.
    ("TCP_USER_TIMEOUT", socket.IPPROTO_TCP, 90_000),
    ("TCP_NODELAY", socket.IPPROTO_TCP, 1),
)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# The maximum number of bytes that are read after a complete answer, so that the connection can be reused. It is
# enough for the last chunk and some pings.
MOST_REST_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32
_GZIP = b"\x1f"
_CODINGS = frozenset(
    {"gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress", "dcb", "dcz", "exi", "pack200-gzip"}
)
"""The codings of IANA's registry. Any other word names none."""
ENOUGH_BYTES = 9
"""That many bytes without white space around them tell what a body is."""
STREAM_START = rb"(?:\xef\xbb\xbf)?\s*(?:event|data|id|retry)?:"
OBJECT_START = rb"(?:\xef\xbb\xbf)?\s*[{]"
"""The beginning of an event stream and of a JSON object, after a byte order mark. No compressed answer begins so."""


class Connected(Struct, frozen=True):
    """The connection is open, and the request will be sent next."""

    is_new: bool


class ResponseHead(Struct, frozen=True):
    status: int
    headers: httpx.Headers


class Failed(Struct, frozen=True):
    """The request failed, or the connection broke before the response was complete. `error` is the HTTP library's
    exception.
    """

    error: Exception
    was_idle: bool = False
    """True if an earlier exchange has opened the connection, and nothing of the answer had arrived on it."""


class BodyEnd(Struct, frozen=True):
    """The body was read completely."""


Item = Connected | ResponseHead | bytes | Failed | BodyEnd


class Wire:
    """Runs at most one exchange at a time over a transport. It also holds the socket of the newest connection."""

    def __init__(self, transport: httpx.BaseTransport, waiter: Waiter, *, tells_late: bool = False) -> None:
        """If `tells_late` is True, an exchange on an open connection may put `Connected` into its mailbox only
        after the request is sent, not when sending begins. The main thread then finds it at the latest when the
        time for connecting is up.
        """
        self.transport = transport
        self.tells_late = tells_late
        self.open_socket: socket.socket | None = None
        """The socket of the newest connection, or None before the first one. The reader thread sets it."""
        self.stream: Any = None
        self._waiter = waiter
        self._current: Exchange | None = None

    def start(self, request: httpx.Request) -> Exchange:
        """Sends a request, after ending the previous exchange. Raises ShortageError if no thread can be started."""
        if self._current is not None:
            self._current.abort()
        self._current = Exchange(self, request, self._waiter)
        return self._current

    def close(self) -> None:
        if self._current is not None:
            self._current.abort()


class Exchange:
    """One HTTP request and its response. The constructor starts a thread that sends the request. It raises
    ShortageError if no thread can be started.

    `next_item` returns a Connected, a ResponseHead, pieces of the body and a BodyEnd, in this order. A piece
    contains all bytes that have arrived, but at most 64 KiB. At any point, `next_item` may return a Failed, and
    nothing follows it.
    """

    def __init__(self, wire: Wire, request: httpx.Request, waiter: Waiter) -> None:
        self._wire = wire
        self._request = request
        self._waiter = waiter
        self._mailbox: Mailbox = waiter.mailbox()
        self._arrived: deque[Item] = deque()
        """The items that the reader thread has received, in order. For any number of items, the mailbox gets one
        entry, which wakes the main thread."""
        self._is_told = False
        self._is_connection_new = False
        self._was_idle = False
        self._read_bytes = 0
        self._taken_bytes = 0
        self._has_room = threading.Event()
        """Set when the main thread has taken chunks. If too many are waiting, the reader thread waits for this
        event."""
        self._is_unwanted = False
        self._is_aborted = False
        self._has_ended = False
        request.extensions["trace"] = self._trace
        self._thread = start_job(self._fetch, name="ralph-exchange")

    def next_item(self, until_s: float | None, waiting_for: str) -> Any:
        """Waits for the next `Item` and returns it. Returns `TIMED_OUT` if no item arrives before `until_s`."""
        while True:
            word = self._waiter.wait(self._mailbox, until_s=until_s, waiting_for=waiting_for)
            if word is TIMED_OUT:
                item = self._taken()  # a head waits for the body, whose time may be up
                return TIMED_OUT if item is None else item
            self._is_told = False  # before anything is taken, so that what comes meanwhile is told again
            item = self._taken()
            if self._arrived:
                self._tell()
            if item is not None:
                return item

    def _taken(self) -> Item | None:
        item = self._arrived.popleft() if self._arrived else None
        if not isinstance(item, bytes):
            return item
        parts, size = [item], len(item)
        while (
            self._arrived
            and isinstance(chunk := self._arrived[0], bytes)
            and size + len(chunk) <= PIECE_BYTES
        ):
            parts.append(chunk)
            size += len(chunk)
            self._arrived.popleft()
        self._taken_bytes += size + CHUNK_COST_BYTES * len(parts)
        if not self._has_room.is_set():
            self._has_room.set()
        return item if len(parts) == 1 else b"".join(parts)

    def _put(self, item: Item) -> None:
        self._arrived.append(item)
        self._tell()

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._mailbox.put(True)

    def _hand_over(self, chunk: bytes) -> None:
        """Gives a chunk to the main thread. Waits first while too many earlier chunks are waiting to be taken."""
        while self._read_bytes - self._taken_bytes > READ_AHEAD_BYTES and not self._is_unwanted:
            self._has_room.clear()
            # Looked at again, because the main thread may have taken chunks, or left, just before the line above.
            if self._read_bytes - self._taken_bytes > READ_AHEAD_BYTES and not self._is_unwanted:
                self._has_room.wait()
        self._read_bytes += len(chunk) + CHUNK_COST_BYTES
        self._put(chunk)

    def leave(self) -> None:
        """Ends the exchange after a complete answer.

        The reader thread reads and discards the rest of the body, up to a limit, so that the connection can be used
        again, and ignores errors. If it is still reading when the next exchange begins, it is stopped.
        """
        self._is_unwanted = True
        self._mailbox.close()
        self._arrived.clear()  # nobody takes these chunks, up to `READ_AHEAD_BYTES`, before the next exchange
        self._has_room.set()

    def abort(self) -> None:
        """Stops the exchange at any point.

        While the reader thread looks up a name or connects, it cannot be stopped. It continues in the background,
        at most for the connect timeout, and closes the connection as soon as it has connected.
        """
        self._is_aborted = True
        self.leave()
        # If the body was read to its end, the next request can use the connection, so the socket stays open.
        if self._thread.is_alive() and not self._has_ended and self._wire.open_socket is not None:
            _shut_down(self._wire.open_socket)

    def _fetch(self) -> None:
        try:
            response = self._wire.transport.handle_request(self._request)
            try:
                self._arrived.append(ResponseHead(response.status_code, response.headers))
                if not response.is_success:
                    self._tell()  # its status matters more than its body
                self._read_body(response)
            finally:
                response.close()
        except Exception as error:  # noqa: BLE001 - the main thread decides what any error means
            self._put(Failed(error, self._was_idle and not self._wire.stream.has_received))

    def _read_body(self, response: httpx.Response) -> None:
        rest_bytes = 0
        for chunk in decoded_body(response):
            if self._is_unwanted:
                rest_bytes += len(chunk)
                # Even a socket that was shut down may still deliver bytes that the server has sent.
                if self._is_aborted or rest_bytes > MOST_REST_BYTES:
                    return
            else:
                self._hand_over(chunk)
        if _holds_more_than_its_answer(response) and self._wire.open_socket is not None:
            _shut_down(self._wire.open_socket)
        self._has_ended = True
        self._put(BodyEnd())

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Takes the socket from the trace events of httpcore, in the reader thread. Before the response arrives,
        there is no other way to get the socket.
        """
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            stream = info["return_value"]
            own = stream.get_extra_info("socket")
            if event.endswith("connect_tcp.complete"):
                self._is_connection_new = True
                _keep_honest(own)
            if not self._is_aborted:
                self._wire.open_socket, self._wire.stream = own, stream
            if self._is_aborted:  # checked again, because the abort may have come after the check above
                _shut_down(own)
        elif event.endswith("send_request_headers.started") and info["request"].method != b"CONNECT":
            # After the CONNECT request to a proxy, the TLS handshake with the server still follows.
            if not self._is_connection_new:
                self._was_idle, self._wire.stream.has_received = True, False
            self._arrived.append(Connected(self._is_connection_new))
            # Both threads need the interpreter now, so the main thread is woken later if it may be.
            if self._is_connection_new or not self._wire.tells_late:
                self._tell()
        elif event.endswith("receive_response_headers.started") and info["request"].method != b"CONNECT":
            self._tell()


def _holds_more_than_its_answer(response: httpx.Response) -> bool:
    """Whether more bytes arrived after the end of the response.

    The next request on the connection would take them for its own response, so the connection must not be used
    again. Only private fields of the HTTP library show these bytes. True if these fields cannot be read.
    """
    stream: Any = response.stream
    try:
        while not hasattr(stream, "_connection"):
            stream = stream._httpcore_stream if hasattr(stream, "_httpcore_stream") else stream._stream  # noqa: SLF001 - no other way
        trailing: bytes = stream._connection._h11_state.trailing_data[0]  # noqa: SLF001 - no other way
    except AttributeError:
        return True
    return bool(trailing)


def _keep_honest(sock: socket.socket) -> None:
    """Sets TCP options: the kernel then notices a dead connection, and does not delay sending."""
    for name, level, value in _SOCKET_OPTIONS:
        if hasattr(socket, name):
            sock.setsockopt(level, getattr(socket, name), value)


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side has closed it already
        # When the socket is closed later, this option resets the connection, which a server that is still sending
        # notices at once. After an ordinary close, the server could wait a minute for room in its send buffer.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        # The shutdown method of SSLSocket would also remove TLS while the reader thread uses it.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def codings_of(headers: httpx.Headers) -> list[str]:
    """The codings that `content-encoding` names, without words that name none, such as `identity`, `none` and `utf-8`."""
    words = headers.get("content-encoding", "").lower().split(",")
    return [word for word in (one.partition(";")[0].strip() for one in words) if word in _CODINGS]


def decoded_body(response: httpx.Response) -> Iterator[bytes]:
    """Yields the body of a response in pieces of at most 64 KiB.

    Ralph requests no compression. If the server used gzip or deflate all the same, the body is decompressed, unless
    it is text in spite of the named coding. Raises httpx.DecodingError for another coding, and for a body that was
    compressed more than once, of which a few bytes can become gigabytes. Raises the errors of reading.
    """
    codings, chunks = codings_of(response.headers), response.iter_raw()
    if not codings:
        return chunks
    first = b""
    while len(first) < ENOUGH_BYTES and (chunk := next(chunks, b"")):
        first += chunk
    chunks = chain((first,), chunks)
    if re.match(STREAM_START + b"|" + OBJECT_START, first):
        return chunks
    if codings in (["gzip"], ["x-gzip"], ["deflate"]):
        # Some servers leave out the header of zlib, whose first two bytes are a multiple of 31.
        is_bare = codings == ["deflate"] and int.from_bytes(first[:2], "big") % 31 > 0
        return _inflated(chunks, -zlib.MAX_WBITS if is_bare and first[:1] != _GZIP else _ZLIB_OR_GZIP)
    named = response.headers["content-encoding"][:40]
    raise httpx.DecodingError(f"content-encoding {named!r}, which was not asked for")


def _inflated(chunks: Iterator[bytes], wbits: int) -> Iterator[bytes]:
    """Decompresses a body. It may consist of several members (RFC 1952). Bytes that begin no member are ignored."""
    inflater = zlib.decompressobj(wbits)
    try:
        for chunk in chunks:
            rest = chunk
            while rest and not (inflater.eof and rest[:1] != _GZIP):
                if inflater.eof:
                    inflater = zlib.decompressobj(wbits)
                yield inflater.decompress(rest, PIECE_BYTES)
                rest = inflater.unconsumed_tail or inflater.unused_data
        if not inflater.eof:
            raise httpx.DecodingError("the compressed body ends too early")
    except zlib.error as error:
        raise httpx.DecodingError(str(error)) from error
