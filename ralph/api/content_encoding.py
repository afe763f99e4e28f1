"""Decodes bodies that come compressed although nobody asked for it: one layer, a piece at a time, however small
the input is.

Refuses more layers and other encodings: a few bytes of them can stand for gigabytes.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES = 64 * 1024
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32


def decoded_body(response: httpx.Response) -> Iterator[bytes]:
    """The body in pieces of at most 64 KiB. Raises httpx.DecodingError, and the errors of reading."""
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
