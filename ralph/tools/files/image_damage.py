"""Finds damage in the structure of an image file. If a damaged image got into the conversation, the API would reject
the request and all later ones. Does not decode the pixels. Sources: the PNG specification (section 5), ITU T.81 annex
B, the GIF89a specification, RFC 9649 for WebP.
"""

from __future__ import annotations

import zlib

_PNG_SIGNATURE_BYTES = 8
_PNG_AROUND_DATA_BYTES = 12  # length and type before it, checksum behind
_ANCILLARY_BIT = 0x20  # of the first byte of a chunk's type
_GIF_TRAILER, _GIF_IMAGE, _GIF_EXTENSION = 0x3B, 0x2C, 0x21
_START_OF_SCAN = 0xDA


def image_damage(data: bytes, media_type: str) -> str | None:
    """The damage that was found in an image, or None. Bytes after the end of the image are ignored."""
    match media_type:
        case "image/png":
            return _png_damage(data)
        case "image/gif":
            return None if _gif_is_whole(data) else "it has no trailer"
        case "image/webp":
            return _webp_damage(data)
        case _:
            return None if _jpeg_is_whole(data) else "it has no end marker"


def _png_damage(data: bytes) -> str | None:
    position = _PNG_SIGNATURE_BYTES
    has_pixels = False
    while position + _PNG_AROUND_DATA_BYTES <= len(data):
        end = position + _PNG_AROUND_DATA_BYTES + int.from_bytes(data[position : position + 4])
        kind = data[position + 4 : position + 8]
        if end > len(data):
            break
        if zlib.crc32(memoryview(data)[position + 4 : end - 4]) != int.from_bytes(data[end - 4 : end]):
            return f"its chunk {kind.decode('latin-1')!r} does not match its checksum"
        if kind == b"IEND":
            return None if has_pixels else "it has no IDAT chunk"
        has_pixels = has_pixels or kind == b"IDAT"
        position = end
    return "it ends before its IEND chunk"


def without_damaged_extras(png: bytes) -> bytes:
    """Removes optional chunks with a wrong checksum from a PNG, for example a damaged colour profile. libpng ignores
    such chunks, but stricter decoders reject the image. Nothing else is changed.
    """
    kept = [png[:_PNG_SIGNATURE_BYTES]]
    position = _PNG_SIGNATURE_BYTES
    while position + _PNG_AROUND_DATA_BYTES <= len(png):
        end = position + _PNG_AROUND_DATA_BYTES + int.from_bytes(png[position : position + 4])
        is_extra = bool(png[position + 4] & _ANCILLARY_BIT)
        checksum = zlib.crc32(memoryview(png)[position + 4 : end - 4])
        if not is_extra or end > len(png) or checksum == int.from_bytes(png[end - 4 : end]):
            kept.append(png[position:end])
        position = end
    return b"".join([*kept, png[position:]])


def _jpeg_is_whole(data: bytes) -> bool:
    """Whether a JPEG has its end marker."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        position += 2 + int.from_bytes(data[position + 2 : position + 4])
        if marker == _START_OF_SCAN:
            return data.find(b"\xff\xd9", position) >= 0
    return False


def _gif_is_whole(data: bytes) -> bool:
    position = 13 + _color_table_bytes(data[10:11])
    while position < len(data):
        introducer = data[position]
        if introducer == _GIF_TRAILER:
            return True
        if introducer == _GIF_EXTENSION:
            position += 2
        elif introducer == _GIF_IMAGE:
            position += 11 + _color_table_bytes(data[position + 9 : position + 10])
        else:
            return False
        while position < len(data) and data[position]:  # sub-blocks, up to an empty one
            position += 1 + data[position]
        position += 1
    return False


def _color_table_bytes(packed: bytes) -> int:
    """The size of a GIF colour table in bytes, from the header byte that describes it. 0 if there is no table."""
    return 3 << ((packed[0] & 7) + 1) if packed and packed[0] & 0x80 else 0


def _webp_damage(data: bytes) -> str | None:
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        return f"it ends {end - len(data):,} bytes early"
    position, has_pixels = 12, False
    while position + 8 <= end:
        has_pixels = has_pixels or data[position : position + 4] in (b"VP8 ", b"VP8L", b"ANMF")
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        position += 8 + size + size % 2
    if position > end:
        return "a chunk goes beyond its end"
    return None if has_pixels else "it has no image data"
