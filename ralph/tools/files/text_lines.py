"""Reads numbered lines from a byte stream of any length. Uses memory only for the lines that it returns."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.answer import ToolError
from ralph.values.screen_text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
