"""Reads lines from standard input in a thread, without interpreting them. Drops a line that is too long, and stops
reading while too many bytes wait in the mailbox.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.starting import start_thread

if TYPE_CHECKING:
    from ralph.values.ports import Mailbox

# The API takes requests of up to 32 MB.
LONGEST_LINE_BYTES = 32 * 1024 * 1024
# As much as the output keeps for a reader who has fallen behind. It must contain at least one line of maximum length.
MOST_UNREAD_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 65_536
# The interpreter's memory for a line in addition to its bytes. Millions of empty lines need much memory too.
_LINE_COST_BYTES = 256


class TooLong(Struct, frozen=True):
    """Stands for a line that was dropped because it was too long."""

    most_bytes: int


class EndOfInput(Struct, frozen=True):
    error: str | None = None
    """The error that ended the reading, or None if the input ended normally."""


END_OF_INPUT = EndOfInput()

Item = bytes | TooLong | EndOfInput


def why_unusable(fd: int) -> str | None:
    """The reason why a descriptor cannot deliver control lines, or None if the descriptor is usable."""
    try:
        os.fstat(fd)
    except OSError:
        return "standard input is closed; control lines come from a pipe or a file"
    if os.isatty(fd):
        return "standard input is a terminal; control lines come from a pipe or a file"
    return None


class ControlChannel:
    """Puts the lines into a mailbox, without their line breaks. `TooLong` stands for one that is too long, and
    `EndOfInput` comes last.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        fd: int = 0,
        *,
        longest_line_bytes: int = LONGEST_LINE_BYTES,
        most_unread_bytes: int = MOST_UNREAD_BYTES,
    ) -> None:
        self._mailbox = mailbox
        self._fd = fd
        self._longest_line_bytes = longest_line_bytes
        self._most_unread_bytes = most_unread_bytes
        self._unread_bytes = 0
        self._room = threading.Condition()

    def start(self) -> None:
        """Starts reading. If this raises ShortageError, the caller may call `start` again."""
        start_thread(self._read_to_end, name="ralph-control")

    def acknowledge(self, item: Item) -> None:
        """Must be called for each item that was taken from the mailbox. After that, the thread may read more lines."""
        with self._room:
            self._unread_bytes -= _cost_bytes(item)
            self._room.notify()

    def _read_to_end(self) -> None:
        splitter = LineSplitter(self._longest_line_bytes)
        try:
            while chunk := self._next_chunk():
                for line in splitter.feed(chunk):
                    self._put(line)
        except OSError as error:
            self._put(EndOfInput(error.strerror or str(error)))
            return
        except MemoryError:
            self._put(EndOfInput(os.strerror(errno.ENOMEM)))
            return
        for line in splitter.end():
            self._put(line)
        self._put(END_OF_INPUT)

    def _next_chunk(self) -> bytes:
        while True:
            try:
                return os.read(self._fd, _CHUNK_BYTES)
            except BlockingIOError:
                # Another process that shares the pipe has made it non-blocking for all its users.
                poll = select.poll()
                poll.register(self._fd, select.POLLIN)
                poll.poll()

    def _put(self, item: Item) -> None:
        cost_bytes = _cost_bytes(item)
        with self._room:
            self._room.wait_for(
                lambda: not self._unread_bytes or self._unread_bytes + cost_bytes <= self._most_unread_bytes
            )
            self._unread_bytes += cost_bytes
        self._mailbox.put(item)


class LineSplitter:
    """Splits chunks of any size into lines that end with LF or CR LF."""

    def __init__(self, longest_bytes: int) -> None:
        self._longest_bytes = longest_bytes
        self._line = bytearray()
        self._is_dropping = False

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        """The lines that end in this chunk, with a `TooLong` as soon as one exceeds the limit."""
        found: list[bytes | TooLong] = []
        *ends, begun = chunk.split(b"\n")
        for end in ends:
            found += self._add(end)
            if not self._is_dropping:
                found.append(self._take())
            self._is_dropping = False
        found += self._add(begun)
        return found

    def end(self) -> list[bytes | TooLong]:
        """The last line, if the input ended without a line break. Otherwise an empty list."""
        return [self._take()] if self._line else []

    def _add(self, piece: bytes) -> list[bytes | TooLong]:
        if self._is_dropping:
            return []
        self._line += piece
        if len(self._line) - self._line.endswith(b"\r") <= self._longest_bytes:
            return []
        self._is_dropping = True
        self._line.clear()
        return [TooLong(self._longest_bytes)]

    def _take(self) -> bytes:
        line = bytes(self._line.removesuffix(b"\r"))
        self._line.clear()
        return line


def _cost_bytes(item: Item) -> int:
    return _LINE_COST_BYTES + (len(item) if isinstance(item, bytes) else 0)
