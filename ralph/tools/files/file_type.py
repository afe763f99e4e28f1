"""Finds out the type and the text encoding of a file from its first bytes. If the file begins with a byte order mark, the
mark decides. Otherwise text is UTF-8 or, if that is impossible, Latin-1, which can decode any bytes.
"""

from __future__ import annotations

import codecs
import re
import stat

from msgspec import Struct

_TAR_MARK_AT = 257
# How many bytes at the beginning of a file decide whether it is binary: the size of ripgrep's first buffer.
SNIFFED_BYTES = 65_536

_BINARY_MAGIC = (
    (b"\x7fELF", "ELF program or library"),
    (b"%PDF-", "PDF document"),
    (b"PK\x03\x04", "ZIP archive (also docx, jar, whl)"),
    (b"\x1f\x8b", "gzip archive"),
    (b"BZh", "bzip2 archive"),
    (b"\xfd7zXZ\x00", "xz archive"),
    (b"\x28\xb5\x2f\xfd", "zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (b"SQLite format 3\x00", "SQLite database"),
    (b"\xca\xfe\xba\xbe", "Java class or universal Mach-O"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program or library"),
    (b"MZ", "Windows program or library"),
    (b"\x00asm", "WebAssembly module"),
    (b"!<arch>\n", "static library"),
    (b"OggS", "Ogg media"),
    (b"ID3", "MP3 audio"),
    (b"RIFF", "RIFF media"),
    (b"BM", "BMP image"),
    (b"II*\x00", "TIFF image"),
    (b"MM\x00*", "TIFF image"),
    (b"\x00\x00\x01\x00", "icon"),
    (b"wOF", "web font"),
)

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def kind_of(mode: int) -> str:
    """The kind of a file that is not a regular file, such as "a directory". `mode` is the file's `st_mode`."""
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "no regular file")


def is_binary(start: bytes) -> bool:
    """Whether it has a NUL byte near its beginning (git's rule), or is a PDF or gzip file. Not for UTF-16, which has such bytes
    too.
    """
    return b"\0" in start[:SNIFFED_BYTES] or start.startswith((b"%PDF-", b"\x1f\x8b"))


def binary_type(start: bytes) -> str:
    if start[4:8] == b"ftyp":
        return "MP4 or HEIF media"
    if start[_TAR_MARK_AT : _TAR_MARK_AT + 5] == b"ustar":
        return "tar archive"
    return next((name for magic, name in _BINARY_MAGIC if start.startswith(magic)), "unknown type")


def image_media_type(start: bytes) -> str | None:
    """The media type of an image in one of the four formats that the API accepts, otherwise None."""
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if start.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "image/webp"
    return None


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
