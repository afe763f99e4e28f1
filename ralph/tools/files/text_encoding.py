"""Finds the text encoding of a file. If the file begins with a byte order mark, the mark decides. Otherwise the
encoding is UTF-8 or, if that is impossible, Latin-1, which can decode any bytes.
"""

from __future__ import annotations

import codecs
import re

from msgspec import Struct

# UTF-32 comes before UTF-16, because its little-endian mark begins with the mark of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_UNDECODABLE = re.compile(r"[\udc80-\udcff]")


def marked_encoding(start: bytes) -> tuple[bytes, str] | None:
    """The byte order mark and the encoding that it stands for, or None if there is no mark."""
    return next(((mark, encoding) for mark, encoding in _MARKS if start.startswith(mark)), None)


class TextEncoding(Struct, frozen=True):
    """Decodes and encodes the text of one file. Decoding and encoding again gives the same bytes."""

    mark: bytes
    codec: str
    errors: str = "strict"

    def decode(self, data: bytes) -> str:
        return data[len(self.mark) :].decode(self.codec, self.errors)

    def encode(self, text: str) -> bytes:
        """Encodes text. Raises UnicodeEncodeError if the encoding lacks a character of the text."""
        return self.mark + text.encode(self.codec, self.errors)


def possible_encodings(data: bytes) -> list[TextEncoding]:
    """The encodings that could decode the complete content of a file, the most likely first. Never empty."""
    encoding = TextEncoding(*(marked_encoding(data) or (b"", "utf-8")))
    try:
        if encoding.encode(encoding.decode(data)) == data:
            return [encoding]
    except UnicodeError:
        pass
    latin_1 = TextEncoding(b"", "latin-1")
    damaged_utf_8 = TextEncoding(b"", "utf-8", "surrogateescape")
    text = damaged_utf_8.decode(data)
    undecodable = sum(1 for _ in _UNDECODABLE.finditer(text))
    is_mostly_utf_8 = sum(1 for _ in _BEYOND_ASCII.finditer(text)) > 2 * undecodable
    return [damaged_utf_8, latin_1] if is_mostly_utf_8 else [latin_1, damaged_utf_8]
