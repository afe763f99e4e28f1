"""Serves one client: reads HTTP/1.x requests, and sends the answers that the `Responder` plans. Refuses a request that
is too large or whose end cannot be determined.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct

from ralph.mock_api.plan import ConnectionEnding, Fill, Pause, Plan, Send

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from ralph.mock_api.server import Responder

MAX_HEAD_BYTES = 65536  # twice what common servers accept
MAX_BODY_BYTES = 256 * 1024 * 1024  # eight times the API's own limit, so that going over that can be tested


class BadRequestError(Exception):
    """The bytes are no valid request. The connection cannot be used for another one."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpHead(Struct, frozen=True):
    method: str
    target: str
    """The path and the query, as the client sent them."""
    version: str
    headers: dict[str, str]
    """The headers. Their names are in lower case. If a header is repeated, its values are joined by commas."""

    @property
    def keeps_alive(self) -> bool:
        connection = self.headers.get("connection", "").lower()
        return "close" not in connection and self.version != "HTTP/1.0"


def read_head(reader: BinaryIO) -> HttpHead | None:
    """None if the client sends no more requests. Raises BadRequestError, and ConnectionError at an end inside the
    head.
    """
    lines = _head_lines(reader)
    first = next(lines, None)
    if first is None:
        return None
    try:
        method, target, version = first.split(" ")
    except ValueError:
        raise BadRequestError(400, f"not an HTTP request line: {first[:80]!r}") from None
    if not version.startswith("HTTP/1."):
        raise BadRequestError(505, f"not an HTTP/1 request: {version[:20]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequestError(400, f"not a header line: {line[:80]!r}")
        key = name.strip().lower()
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    return HttpHead(method, target, version, headers)


def read_body(reader: BinaryIO, head: HttpHead, send_continue: Callable[[], None]) -> bytes:
    """Reads the body of a request. If the client waits for "100 Continue", calls `send_continue` first."""
    chunked = "chunked" in head.headers.get("transfer-encoding", "").lower()
    length = 0 if chunked else _content_length(head)
    if head.headers.get("expect", "").lower() == "100-continue" and (chunked or length):
        send_continue()
    if chunked:
        return b"".join(_chunks(reader))
    return _read_exactly(reader, length)


def _head_lines(reader: BinaryIO) -> Iterator[str]:
    """Skips empty lines at the beginning, as RFC 9112 section 2.2 recommends."""
    left = MAX_HEAD_BYTES
    started = False
    while True:
        line = reader.readline(left + 1)
        left -= len(line)
        if left < 0:
            raise BadRequestError(431, f"more than {MAX_HEAD_BYTES} bytes of headers")
        if not line.endswith(b"\n"):
            if started or line:
                raise ConnectionError("the client went away inside the headers")
            return
        text = line.rstrip(b"\r\n").decode("latin-1")
        if text:
            started = True
            yield text
        elif started:
            return


def _content_length(head: HttpHead) -> int:
    text = head.headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise BadRequestError(400, f"not a content-length: {text[:40]!r}")
    return _bounded(int(text[:20]))


def _bounded(size: int) -> int:
    if size > MAX_BODY_BYTES:
        raise BadRequestError(413, "Request exceeds the maximum size")
    return size


def _chunks(reader: BinaryIO) -> Iterator[bytes]:
    total = 0
    while True:
        line = reader.readline(1024)
        try:
            size = int(line.split(b";")[0].strip(), 16)
        except ValueError:
            raise BadRequestError(400, f"not a chunk size: {line[:40]!r}") from None
        if size == 0:
            break
        total = _bounded(total + size)
        yield _read_exactly(reader, size)
        reader.readline(1024)
    while reader.readline(1024).strip():  # trailers
        pass


def _read_exactly(reader: BinaryIO, size: int) -> bytes:
    data = reader.read(size) if size else b""
    if len(data) < size:
        raise ConnectionError("the client went away inside the body")
    return data


_CHUNK_BYTES = 65536  # one chunk of a chunked body; clients read about as much at a time
_LONGEST_WAIT_S = 30 * 86400.0  # stands for an endless wait; every poll() accepts this number
_UNSENT_BYTES_IOCTL = 0x894B  # Linux SIOCOUTQNSD: bytes that have not left yet
_FLUSH_LIMIT_S = 5.0  # a client that stopped reading must not keep a reset from happening


class PeerGoneError(Exception):
    """The client or the server ended the connection during a pause of an answer."""


class Connection:
    def __init__(self, sock: socket.socket, responder: Responder, closing: threading.Event) -> None:
        self._sock = sock
        self._responder = responder
        self._closing = closing
        # Each send must become a packet at once: single bytes must arrive one by one, and a reset must not overtake
        # data.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = sock.makefile("rb")

    def serve(self) -> None:
        """Answers requests until the client or the server ends the connection. Raises no network errors."""
        ending = ConnectionEnding.CLOSE
        try:
            with contextlib.suppress(OSError, PeerGoneError):
                ending = self._serve()
        finally:
            self._end(ending)

    def interrupt(self) -> None:
        """Ends the connection. Any thread may call this. All reads, writes and waits that are blocked then return."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> ConnectionEnding:
        plan = self._responder.at_accept()
        while plan is None:
            try:
                head = read_head(self._reader)
                if head is None:
                    return ConnectionEnding.CLOSE
                body = read_body(
                    self._reader, head, lambda: self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                )
                plan = self._responder.answer(head, body)
            except BadRequestError as problem:
                plan = self._responder.refuse(problem)
            if plan.ending is ConnectionEnding.KEEP_ALIVE:
                self._play(plan)
                plan = None
        self._play(plan)
        return plan.ending

    def _play(self, plan: Plan) -> None:
        self._wait(plan.wait_s)
        ready = plan.head
        for part in plan.parts:
            if isinstance(part, Send) and plan.drip_s is None:
                # The bytes are collected, so that a long answer needs few writes.
                ready += _framed(part.data, chunked=plan.chunked)
                continue
            self._sock.sendall(ready)
            ready = b""
            if isinstance(part, Send):
                for at in range(len(part.data)):
                    self._sock.sendall(_framed(part.data[at : at + 1], chunked=plan.chunked))
                    self._wait(plan.drip_s)
            elif isinstance(part, Fill):
                block = b"x" * _CHUNK_BYTES
                framed = _framed(block, chunked=plan.chunked)
                for _ in range(part.size // _CHUNK_BYTES):
                    self._sock.sendall(framed)
                self._sock.sendall(_framed(block[: part.size % _CHUNK_BYTES], chunked=plan.chunked))
            else:
                self._pause(part, chunked=plan.chunked)
        self._sock.sendall(ready + plan.terminator)

    def _pause(self, pause: Pause, *, chunked: bool) -> None:
        if pause.ping_interval_s is None:
            self._wait(pause.duration_s)
            return
        ping = _framed(pause.ping, chunked=chunked)
        end = time.monotonic() + (_LONGEST_WAIT_S if pause.duration_s is None else pause.duration_s)
        while (left := end - time.monotonic()) > 0:
            self._sock.sendall(ping)
            self._wait(min(left, pause.ping_interval_s))

    def _wait(self, seconds: float | None) -> None:
        """None waits for ever. Raises `PeerGoneError` as soon as the client or the server ends the connection."""
        wait_s = _LONGEST_WAIT_S if seconds is None else min(seconds, _LONGEST_WAIT_S)
        if wait_s <= 0:
            return
        end = time.monotonic() + wait_s
        self._sock.settimeout(wait_s)
        try:
            ahead = self._sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return
        finally:
            self._sock.settimeout(None)
        # If bytes of the next request have arrived, only `close` of the server ends the wait. A client that leaves is
        # not noticed then.
        if not ahead or self._closing.wait(end - time.monotonic()):
            raise PeerGoneError

    def _end(self, ending: ConnectionEnding) -> None:
        with contextlib.suppress(OSError):
            if ending is ConnectionEnding.RESET:
                self._flush()
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self._sock.shutdown(socket.SHUT_WR)
                self._discard_input()
        self._reader.close()
        self._sock.close()

    def _flush(self) -> None:
        """Waits until all bytes are sent. Must precede a reset, which drops unsent bytes."""
        if sys.platform != "linux":
            self._closing.wait(0.05)  # no portable way to ask; loopback is faster than this
            return
        end = time.monotonic() + _FLUSH_LIMIT_S
        unsent = bytearray(4)
        while time.monotonic() < end:
            fcntl.ioctl(self._sock, _UNSENT_BYTES_IOCTL, unsent)
            if not any(unsent) or self._closing.wait(0.001):
                return

    def _discard_input(self) -> None:
        """Discards up to 1 MiB of input that has arrived. If input is left unread, closing the connection resets it."""
        for _ in range(16):
            if not self._sock.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT):
                return


def _framed(data: bytes, *, chunked: bool) -> bytes:
    if not chunked:
        return data
    pieces = []
    for start in range(0, len(data), _CHUNK_BYTES):
        piece = data[start : start + _CHUNK_BYTES]
        pieces += [b"%x\r\n" % len(piece), piece, b"\r\n"]
    return b"".join(pieces)
