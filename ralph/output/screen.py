"""Draws a list of lines on a terminal, again and again in the same place."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.output.standard_streams import ReaderLeftError, print_bytes
from ralph.values.screen_text import cut_to_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

# ECMA-48: ED, EL, CUP. DEC: DECTCEM.
_HOME, _CLEAR_BELOW, _CLEAR_TO_END = "\x1b[H", "\x1b[J", "\x1b[K"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_USUAL_SIZE = (80, 24)


def fit_to_screen(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """The lines as a terminal of this size can show them: long lines are cut, and so is the list."""
    return [cut_to_columns(line, columns) for line in lines[:rows]]


def terminal_size(descriptor: int) -> tuple[int, int]:
    """The columns and lines of the terminal. Usual values if it does not say."""
    with suppress(OSError):
        size = os.get_terminal_size(descriptor)
        return size.columns or _USUAL_SIZE[0], size.lines or _USUAL_SIZE[1]
    return _USUAL_SIZE


class Screen:
    """Draws lines at the top of the terminal at standard output. Each drawing replaces the last one, also after the
    terminal's size has changed. The cursor is hidden until `close`.
    """

    def __init__(self) -> None:
        self._lines: Sequence[str] = ()

    def draw(self, lines: Sequence[str]) -> None:
        """Draws the lines, fitted to the terminal. Raises ReaderLeftError and OSError."""
        self._lines = lines
        columns, rows = terminal_size(1)
        self._write(_HIDE_CURSOR + _HOME, fit_to_screen(lines, columns - 1, max(rows - 1, 1)))

    def close(self) -> None:
        """Writes the last lines once more and as a whole, and shows the cursor again."""
        with suppress(ReaderLeftError, OSError):
            self._write(_SHOW_CURSOR + _HOME, self._lines)

    @staticmethod
    def _write(before: str, lines: Sequence[str]) -> None:
        text = before + "".join(f"{line}{_CLEAR_TO_END}\n" for line in lines) + _CLEAR_BELOW
        print_bytes(text.encode("utf-8", "replace"))
