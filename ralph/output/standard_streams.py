"""Writes whole lines to the standard streams, for commands other than `ralph run`. A run uses a `Writer` instead,
which never blocks. This module does not redact text for standard output. The caller must do that.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ralph.values.screen_text import for_runner, in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_STDOUT, _STDERR = 1, 2
Color = Literal["red", "green", "yellow", "blue", "dim"]
CLEAR_LINE = b"\r\x1b[K"
"""Clears the line of a terminal in which the cursor is (ECMA-48, EL)."""
# ECMA-48, SGR.
_CODES: dict[Color, str] = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2"}


class ReaderLeftError(Exception):
    """The reader has closed standard output, as `| head` does. This is not a failure."""


def print_lines(lines: Iterable[str]) -> None:
    """Prints the lines. Characters that cannot be encoded become question marks.

    Raises ReaderLeftError if the reader has closed standard output, and OSError if the disk is full.
    """
    try:
        for line in lines:
            sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderLeftError from None


def print_bytes(data: bytes) -> None:
    """Prints the bytes as they are. Raises as `print_lines` does."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderLeftError from None


def has_closed_output() -> bool:
    """Whether standard output was closed when ralph started (`>&-`), so that no result can be written to it."""
    return fcntl.fcntl(_STDOUT, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def obeys_controls(fd: int, environment: Mapping[str, str]) -> bool:
    """Whether the descriptor is a terminal that understands control sequences. A terminal with TERM=dumb shows them
    as text.
    """
    return os.isatty(fd) and environment.get("TERM") != "dumb"


def is_for_runner(fd: int, environment: Mapping[str, str]) -> bool:
    """Whether the program that runs a CI job may look for commands in what is written to the descriptor. It makes a log of what
    each step writes, through a pipe.
    """
    names = ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")
    with suppress(OSError):  # a closed descriptor
        return any(environment.get(name) for name in names) and not stat.S_ISREG(os.fstat(fd).st_mode)
    return False


def has_color(fd: int, environment: Mapping[str, str]) -> bool:
    """Whether lines may be coloured when they are written to the descriptor."""
    return "NO_COLOR" not in environment and obeys_controls(fd, environment)


class ErrorLines:
    """Writes ralph's own lines to standard error, redacted. Each begins with a mark such as `[loop]`. On a
    terminal, it can have a colour.
    """

    def __init__(
        self, mark: str, *, redact: Callable[[str], str], has_color: bool, clears_line: bool = False
    ) -> None:
        """`clears_line` is True if the terminal may still show the status line of a killed process. It is then
        cleared before each line.
        """
        self._before = CLEAR_LINE if clears_line else b""
        self._mark = mark
        self._redact = redact
        self._has_color = has_color

    def write(self, text: str, color: Color | None = None) -> None:
        """Writes one line. If standard error is closed, the line is lost without an error."""
        line = f"{self._mark} {' '.join(self._redact(in_one_line(text)).split())}"
        _write_error_line(
            line if color is None or not self._has_color else colored(color, line), self._before
        )


def complain(text: str) -> None:
    """Writes one line to standard error at the end of a command. The line begins with `ralph:`."""
    _write_error_line(f"ralph: {' '.join(in_one_line(text).split())}")


def _write_error_line(line: str, before: bytes = b"") -> None:
    """Writes the line in one system call if possible, so that the output of other processes cannot split it."""
    left = before + f"{for_runner(line)}\n".encode("utf-8", "backslashreplace")
    with suppress(OSError):
        while left:
            left = left[os.write(_STDERR, left) :]


def colored(color: Color, text: str) -> str:
    """The text with control sequences for this colour. `text` must be safe for a terminal (`screen_text`)."""
    return f"\x1b[{_CODES[color]}m{text}\x1b[0m"
