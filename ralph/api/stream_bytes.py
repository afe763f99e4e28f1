"""Makes the bytes of an event stream fit for the parser. Pure: chunks in, chunks out, wherever they were cut."""

from __future__ import annotations

import codecs


class StreamBytes:
    """Removes the byte order mark, makes every line end LF, and notices bytes that are no UTF-8.

    The parser (httpx-sse) keeps a mark and would lose the first field to it. It also holds a closing CR back
    until more comes, in case an LF follows; after the last line nothing may.
    """

    def __init__(self) -> None:
        self.has_invalid_utf8 = False
        self._strict = codecs.getincrementaldecoder("utf-8")()
        self._start: bytes | None = b""  # the mark may come in pieces
        self._after_cr = False

    def clean(self, chunk: bytes) -> bytes:
        """The bytes of the stream that are certain by now; may be empty."""
        try:
            self._strict.decode(chunk)
        except UnicodeDecodeError:
            self.has_invalid_utf8 = True
            self._strict.reset()
        return self._with_lf(chunk if self._start is None else self._without_mark(chunk))

    def _without_mark(self, chunk: bytes) -> bytes:
        assert self._start is not None  # noqa: S101 - clean() has looked
        self._start += chunk
        if len(self._start) < len(codecs.BOM_UTF8) and codecs.BOM_UTF8.startswith(self._start):
            return b""
        start, self._start = self._start, None
        return start.removeprefix(codecs.BOM_UTF8)

    def _with_lf(self, chunk: bytes) -> bytes:
        if not chunk:
            return chunk
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in chunk else chunk
