"""Says what a file's content is, from its first bytes: its type and the encoding of its text. If it begins with a byte order mark, the
mark decides. Otherwise text is UTF-8 or, if that is impossible, Latin-1, which can decode any bytes.

Also makes what a model is shown: numbered lines from a stream of any length, with memory only for these, and the content block for
an image, after checking that the API will accept it. A rejected image would stay in the conversation, and the API would reject every
later request too. The pixels are not decoded. Sources: the PNG specification (section 5), ITU T.81 annex B, the GIF89a specification,
RFC 9649 for WebP.
"""

from __future__ import annotations

import base64
import codecs
import re
import stat
import zlib
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.answer import Block, ToolError
from ralph.values.screen_text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ralph.tools.tool_context import ImageBudget

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


_MAX_SHOWN_BYTES = 256 * 1024
_MAX_LINE_CHARACTERS = 2000
# Characters for the number and the tab before a line, and the newline.
_NUMBER_BYTES = 8
# A character has at most four bytes.
_MAX_LINE_BYTES = 4 * _MAX_LINE_CHARACTERS
# This takes a third of a second on a slow machine with a cold page cache; `sed` reaches further in.
MAX_SCANNED_BYTES = 128 * 1024 * 1024


class LineRange(Struct, frozen=True):
    first: int
    count: int


class _Scan:
    """The state that the generators below share: how much of the stream they have passed, and where it ended."""

    def __init__(self) -> None:
        self.scanned_bytes = 0
        self.skipped_lines = 0
        self.is_inside_line = False
        self.is_over_limit = False
        self.has_open_end = False


Line = tuple[bytes, int]
"""The first bytes of a line, without its line break, and the size of the line in bytes."""


def read_range(chunks: Iterable[bytes], wanted: LineRange, marked: tuple[bytes, str] | None) -> str:
    """The wanted lines, numbered as by `cat -n`, and notes. `marked` is the byte order mark and its encoding, or None."""
    scan = _Scan()
    lines: list[Line] = []
    shown_bytes = 0
    has_more = False
    scanned = _within_limit(_as_utf8(chunks, marked), scan)
    for line in _lines(_from_line(scanned, wanted.first, scan), scan):
        if len(lines) == wanted.count or shown_bytes >= _MAX_SHOWN_BYTES:
            has_more = True
            break
        lines.append(line)
        shown_bytes += min(len(line[0]), _MAX_LINE_CHARACTERS) + _NUMBER_BYTES
    if not lines:
        raise _nothing_there(wanted, scan)
    encoding = "utf-8" if all(_is_utf8(line) for line in lines) else "latin-1"
    numbered = [f"{number:>6}\t{_shown(line, encoding)}" for number, line in enumerate(lines, wanted.first)]
    notes = [] if encoding == "utf-8" else ["[not valid UTF-8: shown as Latin-1]"]
    if marked is not None and marked[1] != "utf-8":
        notes.append(f"[encoded as {marked[1]}]")
    # A file whose line breaks are single CRs counts as one line without a line break, and gets no note.
    if lines[0][0].endswith(b"\r") and not (scan.has_open_end and len(lines) == 1):
        notes.append("[lines end in CRLF]")
    if scan.is_over_limit:
        notes.append(f"[stopped after {MAX_SCANNED_BYTES >> 20} MB; use Bash and sed to see more]")
    elif has_more:
        cause = "" if len(lines) == wanted.count else f"{_MAX_SHOWN_BYTES >> 10} KB are the most at once; "
        notes.append(f"[{cause}the file continues: offset={wanted.first + len(lines)}]")
    return "\n".join(numbered + notes)


def _nothing_there(wanted: LineRange, scan: _Scan) -> ToolError:
    if scan.is_over_limit:
        megabytes = MAX_SCANNED_BYTES >> 20
        return ToolError(
            f"line {wanted.first} lies beyond the first {megabytes} MB; use Bash: sed -n {wanted.first},+99p"
        )
    count = scan.skipped_lines + scan.is_inside_line
    return ToolError(f"offset {wanted.first} is past the end: the file has {counted(count, 'line')}")


def _as_utf8(chunks: Iterable[bytes], marked: tuple[bytes, str] | None) -> Iterator[bytes]:
    if marked is None:
        yield from chunks
        return
    mark, encoding = marked
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    left_of_mark = len(mark)
    for chunk in chunks:
        yield decoder.decode(chunk[left_of_mark:]).encode("utf-8", "replace")
        left_of_mark = 0
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _within_limit(chunks: Iterable[bytes], scan: _Scan) -> Iterator[bytes]:
    for chunk in chunks:
        scan.scanned_bytes += len(chunk)
        if scan.scanned_bytes > MAX_SCANNED_BYTES:
            scan.is_over_limit = True
            return
        yield chunk


def _from_line(chunks: Iterable[bytes], first: int, scan: _Scan) -> Iterator[bytes]:
    """The part of the stream that begins with line `first`. Counts the earlier lines and drops them."""
    to_skip = first - 1
    for chunk in chunks:
        if to_skip == 0:
            yield chunk
            continue
        newlines = chunk.count(b"\n")
        scan.skipped_lines += min(newlines, to_skip)
        if chunk:
            scan.is_inside_line = not chunk.endswith(b"\n")
        if newlines >= to_skip:
            yield chunk.split(b"\n", to_skip)[to_skip]
        to_skip -= min(newlines, to_skip)


def _lines(chunks: Iterable[bytes], scan: _Scan) -> Iterator[Line]:
    beginning, size = b"", 0
    for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield (beginning + end)[:_MAX_LINE_BYTES], size + len(end)
            beginning, size = b"", 0
        size += len(rest)
        if len(beginning) < _MAX_LINE_BYTES:
            beginning = (beginning + rest)[:_MAX_LINE_BYTES]
    if size:
        scan.has_open_end = True
        yield beginning, size


def _is_utf8(line: Line) -> bool:
    beginning, size = line
    try:
        # A cut line may end inside a character.
        codecs.getincrementaldecoder("utf-8")().decode(beginning, final=len(beginning) == size)
    except UnicodeDecodeError:
        return False
    return True


def _shown(line: Line, encoding: str) -> str:
    beginning, size = line
    # A NUL this deep in a file does not make it binary, but some readers of JSON fail on it.
    text = beginning.decode(encoding, "ignore").replace("\0", "\u2400")
    if size <= len(beginning) and len(text) <= _MAX_LINE_CHARACTERS:
        return text.removesuffix("\r")
    return f"{text[:_MAX_LINE_CHARACTERS]} [line cut: {size:,} bytes]"


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
