"""The text encoding of a file: by byte order mark, else UTF-8, else Latin-1, which fits any bytes."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

# UTF-32 first: its little-endian mark begins with UTF-16's.
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
    """The byte order mark and the encoding it stands for; None without one."""
    return next(((mark, encoding) for mark, encoding in _MARKS if start.startswith(mark)), None)


class TextEncoding(NamedTuple):
    """Maps the bytes of one file to text and back, without a change to any byte."""

    mark: bytes
    codec: str
    errors: str = "strict"

    def decode(self, data: bytes) -> str:
        return data[len(self.mark) :].decode(self.codec, self.errors)

    def encode(self, text: str) -> bytes:
        """The bytes of a text. Raises UnicodeEncodeError for characters that the file's encoding does not have."""
        return self.mark + text.encode(self.codec, self.errors)


def possible_encodings(data: bytes) -> list[TextEncoding]:
    """The encodings that fit the bytes of a whole file, likeliest first. Never empty."""
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
