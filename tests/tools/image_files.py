"""Small images of the four kinds that the API accepts. Only their outer structure is complete."""

from __future__ import annotations

import struct
import zlib


def png(width: int, height: int, padding: int = 0) -> bytes:
    """A PNG image. `padding` is a number of bytes to add to the pixels, which no decoder could read."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = _chunk(b"IDAT", zlib.compress(b"\0") + b"\0" * padding)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + pixels + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg(width: int = 30, height: int = 20) -> bytes:
    thumbnail = b"\xff\xe1\0\x08\xff\xd8\xff\xd9\0\0"
    frame = b"\xff\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + b"\x03" + b"\0" * 9
    scan = b"\xff\xda\0\x08\x01\x01\0\0\x3f\0" + b"\x12\xff\0\x34"
    return b"\xff\xd8\xff\xe0\0\x10JFIF\0" + b"\0" * 9 + thumbnail + frame + scan + b"\xff\xd9"


def gif(width: int = 30, height: int = 20) -> bytes:
    screen = b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + b"\0" * 6
    delay = b"\x21\xf9\x04\0\0\x3b\0\0"
    frame = b"\x2c" + struct.pack("<HHHH", 0, 0, width, height) + b"\x80" + b"\0" * 6 + b"\x02\x02\x3b\x3b\0"
    return screen + delay + frame + b"\x3b"


def webp(kind: bytes = b"VP8 ", width: int = 30, height: int = 20) -> bytes:
    match kind:
        case b"VP8 ":
            chunks = _riff(kind, b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height))
        case b"VP8L":
            size = width - 1 | (height - 1) << 14
            chunks = _riff(kind, b"\x2f" + size.to_bytes(4, "little") + b"\0" * 6)
        case _:
            size_of = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
            chunks = _riff(b"VP8X", b"\0\0\0\0" + size_of) + _riff(b"VP8L", b"\x2f\0\0\0\0")
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks


def _riff(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


IMAGES = {
    "PNG": (png(30, 20), "image/png"),
    "JPEG": (jpeg(), "image/jpeg"),
    "GIF": (gif(), "image/gif"),
    "WebP": (webp(), "image/webp"),
    "WebP, lossless": (webp(b"VP8L"), "image/webp"),
    "WebP, extended": (webp(b"VP8X"), "image/webp"),
}
