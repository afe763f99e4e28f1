"""Writes whole lines to the standard streams, for commands that answer once. A run has a `Writer`, which waits for nobody.

Refuses to judge what is in a line of standard output: whoever made it has redacted it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ralph.values.screen_text import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_STDERR = 2
Color = Literal["red", "green", "yellow", "blue", "dim"]
# ECMA-48, SGR.
_CODES: dict[Color, str] = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2"}


class ReaderLeftError(Exception):
    """Whoever read standard output does not want more of it: no error of anybody's."""


def print_lines(lines: Iterable[str]) -> None:
    """Raises ReaderLeftError, and OSError for a full disk. What is no text (names of files) becomes question marks."""
    try:
        for line in lines:
            sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderLeftError from None


class ErrorLines:
    """Ralph's own lines on standard error, each with a mark in front: redacted, in one line, coloured on a terminal."""

    def __init__(self, mark: str, *, redact: Callable[[str], str], has_color: bool) -> None:
        self._mark = mark
        self._redact = redact
        self._has_color = has_color

    def write(self, text: str, color: Color | None = None) -> None:
        """Whoever left misses it, and nothing else happens."""
        line = f"{self._mark} {' '.join(self._redact(in_one_line(text)).split())}"
        _write_error_line(line if color is None or not self._has_color else colored(color, line))


def complain(text: str) -> None:
    """One line of ralph's own on standard error, for the end of a command."""
    _write_error_line(f"ralph: {' '.join(in_one_line(text).split())}")


def _write_error_line(line: str) -> None:
    """In one piece where the system takes it so, so that other processes do not tear it."""
    left = f"{line}\n".encode("utf-8", "backslashreplace")
    with suppress(OSError):
        while left:
            left = left[os.write(_STDERR, left) :]


def colored(color: Color, text: str) -> str:
    """`text` is visible text already (`screen_text`)."""
    return f"\x1b[{_CODES[color]}m{text}\x1b[0m"
