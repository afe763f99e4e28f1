"""Keeps the beginning and the end of a command's output in memory, whatever the size of the output is. Long output is
also written completely to a file. Credentials are redacted before output is stored, even if a credential arrives in
two pieces. `readable_text` makes output readable: it removes terminal control sequences, and replaces bytes that are not text.
"""

from __future__ import annotations

import codecs
import os
import re
from collections import deque
from typing import TYPE_CHECKING

from ralph.values.answer import os_error_text

if TYPE_CHECKING:
    from ralph.machine.files.own_directory import SpillDirectory
    from ralph.values.redaction import Redactor

# ECMA-48: CSI sequences; strings (OSC, DCS, PM, APC, SOS) up to their terminator; other escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
)
_OVERSTRIKES = re.compile(r"[^\n\x08]\x08")
_CARRIAGE_RETURNS_AT_END = re.compile(r"\r+\n")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# The characters that `surrogateescape` makes of bytes that are not UTF-8.
_UNDECODABLE = re.compile(r"[\udc80-\udcff]+")


class StreamRedaction:
    """Redacts a stream in chunks. The last bytes, in which a credential could begin, are withheld, and searched again only when
    as many new ones have arrived, so that single bytes cost no more than large chunks. What `redactor` learns meanwhile counts
    too.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""
        self._new = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        held_bytes = max(self._redactor.longest_bytes - 1, 0)  # it never becomes less
        if not held_bytes:
            return chunk
        self._new += chunk
        return self._passed_on(held_bytes) if len(self._new) >= held_bytes else b""

    @property
    def held_bytes(self) -> int:
        """The number of bytes that were fed and not yet returned. Redaction may change it."""
        return len(self._held) + len(self._new)

    def end(self) -> bytes:
        return self._passed_on(0)

    def _passed_on(self, kept_bytes: int) -> bytes:
        text = (self._held + self._new).decode("utf-8", "surrogateescape")
        redacted = self._redactor.redact(text).encode("utf-8", "surrogateescape")
        border = max(len(redacted) - kept_bytes, 0)
        self._held = redacted[border:]
        self._new.clear()
        return redacted[:border]


class OutputCapture:
    """Stores the output of one command. One thread writes, and another may read the result after `close()`."""

    def __init__(
        self, *, max_bytes: int, spill_bytes: int, spill: SpillDirectory, redaction: StreamRedaction
    ) -> None:
        self._half_bytes = max(max_bytes // 2, 1)
        self._spill_bytes = spill_bytes
        self._spill = spill
        self._redaction = redaction
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._total_bytes = 0
        self._descriptor: int | None = None
        self._where_the_whole_is = ""

    def fits_in_memory(self, size: int) -> bool:
        # The text in place of a credential may be longer than the credential.
        most_bytes = 2 * (size + self._redaction.held_bytes)
        return self._total_bytes + most_bytes <= self._half_bytes * 2

    def feed(self, chunk: bytes) -> bool:
        """Adds a chunk. Returns False if the whole output now has more than `spill_bytes` bytes."""
        self._keep(self._redaction.feed(chunk))
        return self._total_bytes <= self._spill_bytes

    def close(self) -> None:
        self._keep(self._redaction.end())
        self._close_spill()

    @property
    def has_text(self) -> bool:
        """Whether there is output already, apart from bytes that the redaction withholds."""
        return self._total_bytes > 0

    @property
    def has_output(self) -> bool:
        return self.has_text or self._redaction.held_bytes > 0

    def cut(self, *, is_quiet: bool) -> OutputCapture:
        """Closes this capture, and returns the one for more output. Unless `is_quiet`, the end may be the beginning of a
        credential, and what the redaction withholds comes with the next output.
        """
        if is_quiet:
            self._keep(self._redaction.end())
        self._close_spill()
        sizes = {"max_bytes": 2 * self._half_bytes, "spill_bytes": self._spill_bytes}
        return OutputCapture(**sizes, spill=self._spill, redaction=self._redaction)

    def _close_spill(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def text(self) -> str:
        """The whole output, or if it has more than `max_bytes`, its beginning and end, with a note between them about the bytes
        that were left out and the file with the whole.
        """
        tail = b"".join(self._tail)[-self._half_bytes :]
        if len(self._head) + len(tail) >= self._total_bytes:
            text, invalid = readable_text(bytes(self._head) + tail)
            return _at_most(2 * self._half_bytes, text, invalid) + _note_on(invalid)
        head, tail = _to_border_before(bytes(self._head)), _to_border_after(tail)
        left_out_bytes = self._total_bytes - len(head) - len(tail)
        note = f"[... {left_out_bytes:,} bytes left out{self._where_the_whole_is} ...]"
        head_text, head_invalid = readable_text(head)
        tail_text, tail_invalid = readable_text(tail)
        head_text = _at_most(self._half_bytes, head_text, head_invalid).rstrip("\n")
        tail_text = _at_most(self._half_bytes, tail_text, tail_invalid)
        return f"{head_text}\n{note}\n{tail_text}" + _note_on(head_invalid + tail_invalid)

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        fits = self._total_bytes + len(data) <= self._half_bytes * 2
        if not fits and not self._where_the_whole_is:
            self._open_spill()
        self._write_spill(data)
        self._total_bytes += len(data)
        space = self._half_bytes - len(self._head)
        self._head += data[:space]
        if rest := data[max(space, 0) :]:
            self._tail.append(rest[-self._half_bytes :])
            self._tail_bytes += len(self._tail[-1])
            while self._tail_bytes - len(self._tail[0]) >= self._half_bytes:
                self._tail_bytes -= len(self._tail.popleft())

    def _open_spill(self) -> None:
        try:
            self._descriptor, path = self._spill.new_file()
        except OSError as error:
            self._where_the_whole_is = f"; the whole could not be kept: {os_error_text(error)}"
            return
        self._where_the_whole_is = f"; whole output: {path}"
        self._write_spill(bytes(self._head) + b"".join(self._tail))

    def _write_spill(self, data: bytes) -> None:
        if self._descriptor is None:
            return
        if self._total_bytes > self._spill_bytes:
            self._close_spill()
            self._where_the_whole_is += f" (only its first {self._total_bytes:,} bytes)"
            return
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            self._close_spill()
            self._where_the_whole_is += f" (incomplete: {os_error_text(error)})"


def _at_most(max_bytes: int, text: str, invalid_bytes: int) -> str:
    """The text, cut to `max_bytes` if invalid bytes, whose replacements are longer, were in it."""
    return text.encode()[:max_bytes].decode("utf-8", "ignore") if invalid_bytes else text


def _note_on(invalid_bytes: int) -> str:
    return (
        f"\n[{invalid_bytes:,} bytes were not valid UTF-8 and are shown as \ufffd]" if invalid_bytes else ""
    )


def _to_border_before(data: bytes) -> bytes:
    """The data up to the last line break. If the second half has none, all but an incomplete character at the end."""
    newline = data.rfind(b"\n")
    if newline >= len(data) // 2:
        return data[: newline + 1]
    complete = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(data)
    return complete.encode("utf-8", "surrogateescape")


def _to_border_after(data: bytes) -> bytes:
    newline = data.find(b"\n", 0, len(data) // 2)
    if newline >= 0:
        return data[newline + 1 :]
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]


def readable_text(data: bytes) -> tuple[str, int]:
    """The readable text, and the number of bytes that were not UTF-8. Consecutive ones become one U+FFFD."""
    text = data.decode("utf-8", "surrogateescape")
    text = _ESCAPES.sub("", text)
    text = _CARRIAGE_RETURNS_AT_END.sub("\n", text)
    if "\r" in text:
        # What is visible after all carriage returns of a line: progress bars overwrite it.
        states = (reversed(line.split("\r")) for line in text.split("\n"))
        text = "\n".join(next(filter(str.strip, of_line), "") for of_line in states)
    text = _OVERSTRIKES.sub("", text)
    text = _CONTROLS.sub("", text)
    invalid = sum(len(run) for run in _UNDECODABLE.findall(text))
    return (_UNDECODABLE.sub("\ufffd", text) if invalid else text), invalid
