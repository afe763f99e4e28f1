"""A terminal with the control sequences that ralph uses, so that a test sees the screen as a person would. `PtyReader` reads a
program's output from a real pseudo-terminal and shows it on such a screen.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import struct
import termios
from contextlib import suppress
from threading import Lock, Thread

from ralph.values.screen_text import columns_of

_SEQUENCE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])")


class SmallTerminal:
    """The screen of a terminal that wraps long lines. It has no bottom: lines above are kept as in a scrollback."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.is_cursor_shown = True
        self._rows = [""]
        self._row = self._column = 0
        self._unread = ""

    @property
    def lines(self) -> list[str]:
        return [row.rstrip() for row in self._rows]

    def feed(self, text: str) -> None:
        text, self._unread = self._unread + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = _SEQUENCE.match(text, at)
                if found is None:
                    self._unread = text[at:]
                    return
                self._obey(found[1], found[2])
                at = found.end()
            else:
                self._show(text[at])
                at += 1

    def _obey(self, parameter: str, letter: str) -> None:
        match letter:
            case "K":
                self._rows[self._row] = self._rows[self._row][: self._column]
            case "J":
                self._rows[self._row + 1 :] = []
                self._rows[self._row] = self._rows[self._row][: self._column]
            case "H":
                self._row = self._column = 0
            case "h" | "l":
                assert parameter == "?25"
                self.is_cursor_shown = letter == "h"
            case _:
                assert letter == "m", f"{letter} is not known here"

    def _show(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._next_row()
        else:
            row = self._rows[self._row]
            if columns_of(row[: self._column] + character) > self.columns:
                self._column = 0
                self._next_row()
                row = self._rows[self._row]
            self._rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
            self._column += 1

    def _next_row(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append("")


class PtyReader:
    """A pseudo-terminal with a screen."""

    def __init__(self, columns: int = 60) -> None:
        self._ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._screen = SmallTerminal(columns)
        self._lock = Lock()
        self.raw = ""
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def lines(self) -> list[str]:
        with self._lock:
            return self._screen.lines

    @property
    def is_cursor_shown(self) -> bool:
        return self._screen.is_cursor_shown

    def type(self, keys: str) -> None:
        """Types at the terminal's keyboard."""
        os.write(self._ours, keys.encode())

    def close(self) -> list[str]:
        """Reads what is left, and returns the last screen. Every program that has the terminal must have ended."""
        with suppress(OSError):
            os.close(self.theirs)
        self._thread.join()
        return self.lines()

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()
        with suppress(OSError):  # all other ends are closed
            while data := os.read(self._ours, 65536):
                text = decoder.decode(data)
                with self._lock:
                    self.raw += text
                    self._screen.feed(text)
        os.close(self._ours)
