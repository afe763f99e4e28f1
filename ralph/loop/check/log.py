"""Keeps the check's output without known credentials: in a file up to a bound, and its end in memory.

It never stops the check: whatever happens to the file, the check runs on and gives its verdict.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.loop.record import new_file
from ralph.machine.output_capture import StreamRedaction
from ralph.machine.terminal_text import readable_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOG_FILE = "check.log"
MOST_LOG_BYTES = 50_000_000
TAIL_BYTES = 4096
"""The next prompt has room for so much of it."""
# Colours and progress bars go before the end is cut to its size.
_RAW_TAIL_BYTES = 16 * TAIL_BYTES
_GOES_ON = "\n[ralph: the output goes on; only its first {size:,} bytes are kept]\n"


class CheckLog:
    """Fed by one thread, read by another after `close()`."""

    def __init__(
        self,
        folder: Path,
        *,
        redact: Callable[[str], str],
        longest_bytes: int,
        most_bytes: int = MOST_LOG_BYTES,
    ) -> None:
        """`folder`: the loop's own. `longest_bytes`: the length of the longest credential that `redact`
        knows.
        """
        self._redact = redact
        self._redaction = StreamRedaction(redact, longest_bytes)
        self._room_bytes = self._most_bytes = most_bytes
        self._end = bytearray()
        self._has_lost_its_beginning = False
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = new_file(folder, LOG_FILE)

    def feed(self, chunk: bytes) -> bool:
        self._keep(self._redaction.feed(chunk))
        return True

    def close(self) -> None:
        self._keep(self._redaction.end())
        self._close_file()

    def tail(self, note: str = "") -> str:
        """At most `TAIL_BYTES` of the end, `note` included, from the beginning of a line unless lines are too
        long.
        """
        data = bytes(self._end)
        if self._has_lost_its_beginning:
            data = data[data.find(b"\n", 0, len(data) // 2) + 1 :]
        # Once more: what an escape sequence stood in the middle of has come together only now.
        text = self._redact(readable_text(data)[0]).strip("\n") + note
        raw = text.encode()
        if len(raw) <= TAIL_BYTES:
            return text
        cut = raw[-TAIL_BYTES:]
        is_whole_line = raw[-TAIL_BYTES - 1 : -TAIL_BYTES] == b"\n"
        line = 0 if is_whole_line else cut.find(b"\n", 0, TAIL_BYTES // 2) + 1
        return cut[line:].decode("utf-8", "ignore")  # without what is left of a cut character

    def _keep(self, data: bytes) -> None:
        self._write(data)
        self._end += data
        if len(self._end) > 2 * _RAW_TAIL_BYTES:  # seldom: each time half of it is moved
            del self._end[:-_RAW_TAIL_BYTES]
            self._has_lost_its_beginning = True

    def _write(self, data: bytes) -> None:
        if self._descriptor is None or not data:
            return
        fitting = data[: self._room_bytes]
        self._room_bytes -= len(fitting)
        left = memoryview(fitting if len(fitting) == len(data) else fitting + self._note())
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:  # a full disk has no say in whether the work is done
            self._close_file()
        if len(fitting) < len(data):
            self._close_file()

    def _note(self) -> bytes:
        return _GOES_ON.format(size=self._most_bytes).encode()

    def _close_file(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
