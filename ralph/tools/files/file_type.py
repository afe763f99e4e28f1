"""Finds out the type of a file from its first bytes, and the pixel size of an image from its header. Does not decode
the content.
"""

from __future__ import annotations

import stat

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
    """Whether a file is binary: it has a NUL byte near its beginning (git's rule), or it is a PDF or gzip file. Do
    not call this for UTF-16, because text in UTF-16 contains NUL bytes too.
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


def image_size(data: bytes, media_type: str) -> tuple[int, int] | None:
    """Width and height in pixels, read from the header, or None if the header is damaged."""
    match media_type:
        case "image/png":
            size = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
        case "image/gif":
            size = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        case "image/webp":
            size = _webp_size(data)
        case _:
            size = _jpeg_size(data)
    return size if min(size) > 0 else None


def _webp_size(data: bytes) -> tuple[int, int]:
    # https://developers.google.com/speed/webp/docs/riff_container
    if len(data) < 30:
        return 0, 0
    if data[12:16] == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


def _jpeg_size(data: bytes) -> tuple[int, int]:
    position = 2
    while position + 9 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[position + 7 : position + 9]), int.from_bytes(
                data[position + 5 : position + 7]
            )
        else:
            position += 2 + int.from_bytes(data[position + 2 : position + 4])
    return 0, 0
