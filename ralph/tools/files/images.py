"""Makes the content block for an image, after checking that the API will accept it. A rejected image would stay in
the conversation, and the API would reject every later request too. Does not decode the pixels. Sources: the PNG
specification (section 5), ITU T.81 annex B, the GIF89a specification, RFC 9649 for WebP.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING

from ralph.values.answer import Block, ToolError

if TYPE_CHECKING:
    from ralph.tools.tool_context import ImageBudget

MAX_IMAGE_BYTES = 5_000_000 * 3 // 4
"""The maximum size of an image in bytes. Its base64 text has at most 5 MB. Other clouds accept this size too, while
Anthropic's own API accepts 10 MB."""
# The API accepts 8000 pixels a side in a request with few images, but only this many if there are more than 20
# images.
_MAX_IMAGE_PIXELS = 2000


def shown_image(data: bytes, media_type: str, images: ImageBudget) -> Block:
    """Makes the content block for an image, and adds it to `images`. Raises ToolError if it is damaged or too large."""
    if len(data) > MAX_IMAGE_BYTES:
        raise ToolError(
            f"the image has {len(data):,} bytes; at most {MAX_IMAGE_BYTES:,} can be shown. Scale it down first"
        )
    pixels = image_size(data, media_type)
    if pixels is None:
        raise ToolError(f"the image is damaged: its {media_type} header names no size")
    if max(pixels) > _MAX_IMAGE_PIXELS:
        raise ToolError(
            f"the image is {pixels[0]}x{pixels[1]} pixels; at most {_MAX_IMAGE_PIXELS} a side can be shown. Scale it down "
            "first"
        )
    if media_type == "image/png":
        data = without_damaged_extras(data)
    if damage := image_damage(data, media_type):
        raise ToolError(f"the image is damaged: {damage}")
    images.take(len(data))
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


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
