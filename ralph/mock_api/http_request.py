"""Reads one HTTP/1.x request from a socket. A request is refused if it is too large, or if its end cannot be
determined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_HEAD_BYTES = 65536  # twice what common servers accept
MAX_BODY_BYTES = 256 * 1024 * 1024  # eight times the API's own limit, so that going over that can be tested


class BadRequestError(Exception):
    """The client sent bytes that are not a valid request. After that, the connection cannot be used for another
    request.
    """

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
    """Reads a request line and headers. Returns None if the client sends no more requests. Raises BadRequestError.
    Raises ConnectionError if the client ends the connection in the middle of the headers.
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
    """Yields the request line and the header lines. Empty lines before them are skipped, as RFC 9112 section 2.2
    recommends.
    """
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
