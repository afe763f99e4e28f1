"""One request on the wire: a reader thread that turns a blocking HTTP call into mailbox items.

The thread resolves, connects, sends and reads; the main thread waits in the `Waiter` and can end it at any
moment by shutting the socket down. Nothing here interprets an answer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import zlib
from typing import TYPE_CHECKING, Any

import httpx
from msgspec import Struct

from ralph.machine.starting import start_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.values.ports import Mailbox, Waiter

# The most chunks read ahead of the main thread, of at most 64 KiB each: bounds memory when a server is faster
# than ralph.
READ_AHEAD_CHUNKS = 64
# After 60 s of silence the kernel asks whether the other side is still there, three times, 10 s apart.
_SOCKET_OPTIONS = (
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 60),
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 10),
    ("TCP_KEEPCNT", socket.IPPROTO_TCP, 3),
    # Bytes that nobody acknowledges for this long end the connection; milliseconds.
    ("TCP_USER_TIMEOUT", socket.IPPROTO_TCP, 90_000),
    ("TCP_NODELAY", socket.IPPROTO_TCP, 1),
)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# The most bytes behind a complete answer: enough for its last chunk and some pings, too few to read in vain.
MOST_REST_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32


class Connected(Struct, frozen=True):
    """The connection is open, new or reused; the request is about to be sent."""


class ResponseHead(Struct, frozen=True):
    status: int
    headers: httpx.Headers


class Failed(Struct, frozen=True):
    error: Exception


class BodyEnd(Struct, frozen=True):
    """The body was read to its end."""


Item = Connected | ResponseHead | bytes | Failed | BodyEnd


class Wire:
    """An HTTP client with at most one exchange at a time, and the socket of that exchange."""

    def __init__(self, http: httpx.Client, waiter: Waiter) -> None:
        self.http = http
        self.open_socket: socket.socket | None = None
        self._waiter = waiter
        self._current: Exchange | None = None

    def start(self, request: httpx.Request) -> Exchange:
        if self._current is not None:
            self._current.abort()
        self._current = Exchange(self, request, self._waiter)
        return self._current

    def close(self) -> None:
        if self._current is not None:
            self._current.abort()


class Exchange:
    """One request, which is sent as soon as the object is made. `next_item` returns Connected, ResponseHead, body
    chunks (decoded) and BodyEnd, in this order, or Failed at any point. Raises ShortageError if the machine has no
    thread left.
    """

    def __init__(self, wire: Wire, request: httpx.Request, waiter: Waiter) -> None:
        self._wire = wire
        self._request = request
        self._waiter = waiter
        self._mailbox: Mailbox = waiter.mailbox()
        self._read_ahead = threading.Semaphore(READ_AHEAD_CHUNKS)
        self._unwanted = threading.Event()
        self._aborted = threading.Event()
        self._has_ended = threading.Event()
        request.extensions["trace"] = self._trace
        self._thread = start_thread(self._fetch, name="ralph-exchange")

    def next_item(self, until_s: float | None, waiting_for: str) -> Any:
        """The next `Item`, or `TIMED_OUT`."""
        item = self._waiter.wait(self._mailbox, until_s=until_s, waiting_for=waiting_for)
        if isinstance(item, bytes):
            self._read_ahead.release()
        return item

    def leave(self) -> None:
        """Leaves a complete answer: the thread reads to the end of the body, so that the connection can be reused.
        Everything that still arrives is dropped, errors included. If the thread is still reading when the next exchange
        begins, that exchange ends it.
        """
        self._unwanted.set()
        self._mailbox.close()
        self._read_ahead.release()

    def abort(self) -> None:
        """Ends the thread wherever it is. A name lookup or an unfinished connect cannot be ended: its thread is left
        behind and does no harm. The request's own connect timeout ends an unfinished connect.
        """
        self._aborted.set()
        self.leave()
        # A body that was read to its end leaves a connection that the next request can use.
        if self._thread.is_alive() and not self._has_ended.is_set() and self._wire.open_socket is not None:
            _shut_down(self._wire.open_socket)

    def _fetch(self) -> None:
        try:
            response = self._wire.http.send(self._request, stream=True)
            try:
                self._mailbox.put(ResponseHead(response.status_code, response.headers))
                self._read_body(response)
            finally:
                response.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the main thread decides
            self._mailbox.put(Failed(error))

    def _read_body(self, response: httpx.Response) -> None:
        """Reads to the end, unless the exchange is aborted or too much follows a complete answer."""
        rest_bytes = 0
        for chunk in decoded_body(response):
            if self._unwanted.is_set():
                rest_bytes += len(chunk)
                # A socket that was shut down still delivers later bytes of the server.
                if self._aborted.is_set() or rest_bytes > MOST_REST_BYTES:
                    return
            else:
                self._read_ahead.acquire()
                self._mailbox.put(chunk)
        if _holds_more_than_its_answer(response) and self._wire.open_socket is not None:
            _shut_down(self._wire.open_socket)
        self._has_ended.set()
        self._mailbox.put(BodyEnd())

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """The trace hook of httpcore, called in the reader thread. Before there is an answer it is the only access to
        the socket.
        """
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            own = info["return_value"].get_extra_info("socket")
            if event.endswith("connect_tcp.complete"):
                _keep_honest(own)
            if not self._aborted.is_set():
                self._wire.open_socket = own
            if self._aborted.is_set():  # before, or between the two lines above
                _shut_down(own)
        elif event.endswith("send_request_headers.started") and info["request"].method != b"CONNECT":
            # A tunnel through a proxy is no connection yet: TLS with the server follows.
            self._mailbox.put(Connected())


def _holds_more_than_its_answer(response: httpx.Response) -> bool:
    """Whether bytes follow the end of the answer. A later request on this connection would take them for its answer.

    Only the HTTP library's private state shows this. If that state cannot be read, returns True, and the connection is
    not used again.
    """
    stream: Any = response.stream
    try:
        while not hasattr(stream, "_connection"):
            stream = stream._httpcore_stream if hasattr(stream, "_httpcore_stream") else stream._stream  # noqa: SLF001 - as said
        trailing: bytes = stream._connection._h11_state.trailing_data[0]  # noqa: SLF001 - as said
    except AttributeError:
        return True
    return bool(trailing)


def _keep_honest(sock: socket.socket) -> None:
    """Turns on TCP keepalive, so that the kernel notices a dead connection. This includes connections to proxies."""
    for name, level, value in _SOCKET_OPTIONS:
        if hasattr(socket, name):
            sock.setsockopt(level, getattr(socket, name), value)


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side has closed it already
        # Its close then resets the connection: a server in the middle of sending notices at once, where after an
        # ordinary close it could wait a minute for room that never comes.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        # The plain socket's method: an SSLSocket's own would pull TLS from under the reading thread.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def decoded_body(response: httpx.Response) -> Iterator[bytes]:
    """The body in pieces of at most 64 KiB. It is decompressed if the server compressed it once, which no request asks
    for.

    Refuses several layers of compression and other encodings, because a few bytes of them can stand for gigabytes.
    Raises httpx.DecodingError, and the errors of reading.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in {"", "identity"}:
        return response.iter_raw()
    if encoding in {"gzip", "x-gzip", "deflate"}:
        return _inflated(response.iter_raw())
    raise httpx.DecodingError(f"content-encoding {encoding[:40]!r}, which was not asked for")


def _inflated(chunks: Iterator[bytes]) -> Iterator[bytes]:
    inflater = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        for chunk in chunks:
            rest = chunk
            while rest:
                yield inflater.decompress(rest, PIECE_BYTES)
                rest = inflater.unconsumed_tail
        if not inflater.eof:
            raise httpx.DecodingError("the compressed body ends too early")
    except zlib.error as error:
        raise httpx.DecodingError(str(error)) from error
