"""The colours of ralph's own lines: the one place that knows a terminal's codes for them."""

from __future__ import annotations

from typing import Literal

Color = Literal["red", "green", "yellow", "blue", "dim"]
# ECMA-48, SGR.
_CODES: dict[Color, str] = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2"}


def colored(color: Color, text: str) -> str:
    """The text in this colour, for a terminal. `text` must have passed `screen_text` already."""
    return f"\x1b[{_CODES[color]}m{text}\x1b[0m"
