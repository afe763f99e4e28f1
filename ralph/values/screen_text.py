"""Makes foreign text fit to be shown to people: nothing in it acts on a terminal, hides, or looks like ralph's
own.

Foreign text comes from models, tools, servers, files and records. Ralph's own lines begin with a word in
brackets, `[retry]`, or with `ralph:`. Where a program reads, it gets the exact text instead; the writer decides
that.
"""

from __future__ import annotations

import re
from functools import cache

FOREIGN = "| "
"""The prefix of a foreign line that begins as ralph's own lines do."""

# ECMA-48, with ESC or as one character (C1): CSI sequences; strings (OSC, DCS, PM, APC, SOS), up to the end of the line
# where nothing ends them; other escapes.
_SEQUENCES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
)
_LINE_SEPARATORS = "\u2028\u2029"
# Control characters; marks, overrides and isolates of the direction; characters without width that only hide something.
# Those that join or part letters and emoji (U+200C, U+200D) or choose their form (U+FE00-FE0F) are needed, and stay.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
# Characters that may stand before a bracket unnoticed: neither a letter nor a digit nor ASCII; letters without a
# shape.
_UNNOTICED = r"(?:[^\w!-~]|[\u115f\u1160\u3164\uffa0])*"
_BRACKETS = r"[\[\uff3b\u2045\u27e6\u2772\u3010\u3014\u3016]"
# Between the letters of a name there may be characters without width: the joiners and selectors that are shown.
_NAME = _UNNOTICED.join("ralph")
_LIKE_OURS = rf"{_UNNOTICED}(?:{_BRACKETS}{_UNNOTICED}[^\W\d_]|{_NAME}{_UNNOTICED}[:\uff1a])"


def visible(text: str) -> str:
    """The text without control sequences and characters that hide something. Line breaks and tabs stay."""
    if text.isprintable() or not _compiled(f"[{_HIDDEN}{_LINE_SEPARATORS}]").search(text):
        return text
    text = _compiled(_SEQUENCES).sub("", text)
    text = _compiled(f"[{_LINE_SEPARATORS}]").sub("\n", text)
    return _compiled(f"[{_HIDDEN}]").sub("", text)


def in_one_line(text: str) -> str:
    """The visible text in one line, each line break a space: it cannot begin a line of its own."""
    return text if text.isprintable() else visible(text).replace("\n", " ")


def foreign_lines(text: str) -> list[str]:
    """The visible text, line by line, none of which looks like one of ralph's own."""
    return [FOREIGN + line if _looks_like_ours(line) else line for line in visible(text).split("\n")]


def json_for_terminal(line: str) -> str:
    """The line's JSON value, written without characters that act on a terminal."""
    if line.isprintable():
        return line
    return _compiled(f"[{_HIDDEN}{_LINE_SEPARATORS}]").sub(_as_json_escape, line)


def _looks_like_ours(line: str) -> bool:
    # Nearly every line is decided by its first character.
    if "!" <= line[:1] <= "~" and line[0] not in "[rR":
        return False
    return _compiled(_LIKE_OURS).match(line) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern, compiled when first used: most runs need none, and each would take part of a millisecond of
    every start.
    """
    return re.compile(pattern, re.IGNORECASE)


def _as_json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
