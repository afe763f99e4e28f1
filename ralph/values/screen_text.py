"""Makes text for people. Text from models, tools, servers, files and records is made safe to show. Counts, costs and
durations are written in one way everywhere.

After the conversion, foreign text cannot control the terminal, hide characters, or look like one of ralph's own lines.
Ralph's own lines begin with a word in brackets, such as `[retry]`, or with `ralph:`. Output for programs is not
converted: it contains the exact text.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING
from unicodedata import category, east_asian_width

if TYPE_CHECKING:
    from collections.abc import Iterator

FOREIGN = "| "
"""The prefix for a line that does not come from ralph but begins like one of ralph's own lines."""

# The control sequences of ECMA-48, which begin with ESC or with a single character (C1): CSI sequences; strings (OSC,
# DCS, PM, APC, SOS), which extend to the end of the line if nothing ends them; other escape sequences.
_SEQUENCES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
)
_LINE_SEPARATORS = "\u2028\u2029"
# The characters that `visible` removes: control characters; characters that change the direction of text; characters
# without width. Those that join or separate letters and emoji (U+200C, U+200D) or choose their form (U+FE00-FE0F) are
# kept, because ordinary text needs them.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
# Characters that `visible` keeps although they have no width of their own, and letters that show nothing.
_JOINING = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u200c\u200d\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
_HIDDEN_ASCII = bytes({*range(32), 127} - {9, 10})
_UNSEEN = f"{_SEQUENCES}|[{_HIDDEN}]"
_BLANK = f"{_SEQUENCES}|[{_HIDDEN}{_JOINING}]"
# Characters that a reader may not notice before a bracket: characters outside ASCII that are neither letters nor
# digits, spaces and control characters of ASCII, and letters that are not visible.
_UNNOTICED = r"(?:[^\w!-~]|[\u115f\u1160\u3164\uffa0])*"
_BRACKETS = r"[\[\uff3b\u2045\u27e6\u2772\u3010\u3014\u3016]"
# Between the letters of a name there may be invisible characters, because joiners and selectors are kept.
_NAME = _UNNOTICED.join("ralph")
# Commands to the program that runs a CI job, which it looks for in the output of each step: `##vso[` (Azure Pipelines), `##[`
# (Azure Pipelines and GitHub Actions) and `##teamcity[` anywhere in a line, and `::name::` at its beginning (GitHub Actions).
_TO_RUNNER = r"(?i)##(?=(?:vso|teamcity)?\[)"
_BEGINS_TO_RUNNER = r"\s*::[A-Za-z-]+(?:\s[^\n]*)?::"
_LIKE_OURS = rf"(?i){_UNNOTICED}(?:{_BRACKETS}{_UNNOTICED}[^\W\d_]|{_NAME}{_UNNOTICED}[:\uff1a])"


def visible(text: str) -> str:
    """The text without control sequences and without the characters in `_HIDDEN`, which may deceive a reader. Line
    breaks and tabs are kept.
    """
    if text.isprintable():
        return text
    if text.isascii():  # a hundred times as fast as the regular expression
        raw = text.encode()
        if len(raw.translate(None, _HIDDEN_ASCII)) == len(raw):
            return text
    elif _compiled(f"[{_HIDDEN}{_LINE_SEPARATORS}]").search(text) is None:
        return text
    text = _compiled(f"[{_LINE_SEPARATORS}]").sub("\n", text)
    return _compiled(_UNSEEN).sub("", text)


def bare(text: str) -> str:
    """The text as `visible` returns it, also without the characters that show nothing although ordinary text needs them.
    For a search: nothing is hidden in it.
    """
    seen = visible(text)
    return seen if seen.isascii() else _compiled(f"[{_JOINING}]").sub("", seen)


def bare_parts(text: str) -> Iterator[tuple[int, int]]:
    """Yields the parts of the text that `bare` keeps, each with its begin and its end."""
    at = 0
    for found in _compiled(f"(?:{_BLANK})+").finditer(text):
        yield at, found.start()
        at = found.end()
    yield at, len(text)


def without_sequences(text: str) -> str:
    """The text without control sequences. Characters that show nothing are kept. It takes a tenth of the time of `visible`."""
    text = _compiled(f"[{_LINE_SEPARATORS}]").sub("\n", text)
    return _compiled(_SEQUENCES).sub("", text)


def in_one_line(text: str) -> str:
    """The text as `visible` returns it, but with a space in place of each line break."""
    return text if text.isprintable() else visible(text).replace("\n", " ")


def foreign_lines(text: str) -> list[str]:
    """The lines of the text as `visible` returns it. If a line looks like one of ralph's own lines, or is a command to the program
    that runs a CI job, it gets a prefix.
    """
    lines = visible(text).split("\n")
    return [FOREIGN + line if _looks_like_ours(line) else for_runner(line) for line in lines]


def for_runner(line: str) -> str:
    """The line without what the program that runs a CI job would take for a command to it. Only such a line is changed."""
    if "##" in line:
        line = _compiled(_TO_RUNNER).sub("# #", line)
    is_command = "::" in line and _compiled(_BEGINS_TO_RUNNER).match(line) is not None
    return FOREIGN + line if is_command else line


def json_for_runner(line: str) -> str:
    """A line of JSON without such a command. Its value stays the same."""
    return _compiled(_TO_RUNNER).sub(r"\\u0023#", line) if "##" in line else line


def columns_of(text: str) -> int:
    """The number of columns that the text takes on a terminal. Wide characters, for example of Chinese, take two."""
    if text.isascii():
        return len(text)
    columns = last = 0
    for char in text:
        if char == "\ufe0f":  # the form of an emoji, which is wide
            columns, last = columns + (last == 1), 0
        elif category(char) not in {"Mn", "Me", "Cf"}:
            last = 2 if east_asian_width(char) in {"W", "F"} else 1
            columns += last
    return columns


def cut_to_columns(text: str, most: int) -> str:
    """The line `text`, or its beginning and an ellipsis if it takes more than `most` columns."""
    if columns_of(text) <= most:
        return text
    cut = text[: max(most, 0)]
    while cut and columns_of(cut) > most - 1:
        cut = cut[:-1]
    return cut.rstrip() + "\u2026" if most > 0 else ""


def json_for_terminal(line: str) -> str:
    """A line of JSON that is safe for a terminal: characters that could control the terminal are escaped. Its value
    stays the same.
    """
    if line.isprintable():
        return line
    return _compiled(f"[{_HIDDEN}{_LINE_SEPARATORS}]").sub(_as_json_escape, line)


def _looks_like_ours(line: str) -> bool:
    # For nearly every line, the first character decides.
    if "!" <= line[:1] <= "~" and line[0] not in "[rR":
        return False
    return _compiled(_LIKE_OURS).match(line) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, compiled when it is first used, so that the start of ralph is not slower."""
    return re.compile(pattern)


def _as_json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


# --- Counts, costs and durations

_TENTHS_BELOW_S, _MINUTE_S, _HOUR_S = 9.95, 60, 3600
_CENTS_FROM_USD, _WHOLE_DOLLARS_FROM_USD = 1, 1000
_FOUR_DECIMALS_FROM_USD = 0.00005
_MOST_DECIMALS = 12


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """The number with its noun, such as `1 turn` or `0 turns`. `plural` is None if the plural only adds an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def dollars(usd: float | None) -> str:
    """A cost in US dollars, such as `$12.30`, `$0.0042` or `$0.000006`. A cost above 0 never looks like 0. An
    unknown cost (None) is `$?`.
    """
    if usd is None:
        return "$?"
    if usd >= _WHOLE_DOLLARS_FROM_USD:
        return f"${usd:.0f}"
    if usd >= _CENTS_FROM_USD or usd <= 0:
        return f"${usd:.2f}"
    if usd >= _FOUR_DECIMALS_FROM_USD:
        return f"${usd:.4f}"
    return f"${usd:.{min(-math.floor(math.log10(usd)), _MOST_DECIMALS)}f}"


def dollar_limit(usd: float) -> str:
    """A limit in US dollars with all the digits that the user gave, such as `$5`, `$2.50` or `$0.001`."""
    text = plain_number(usd, _MOST_DECIMALS)
    return f"${usd:.2f}" if "." in text and len(text) <= len(f"{usd:.2f}") else f"${text}"


def duration(seconds: float) -> str:
    """A measured duration, such as `4.2s`, `42s`, `3m12s` or `2h05m`."""
    if seconds < _TENTHS_BELOW_S:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole}s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m{whole % _MINUTE_S:02d}s"
    return f"{whole // _HOUR_S}h{whole % _HOUR_S // _MINUTE_S:02d}m"


def time_limit(seconds: float) -> str:
    """A wait or a limit with all the digits that the user gave, such as `0.5s`, `90s`, `30m`, `1h30m` or `2m5s`."""
    if seconds <= 0:
        return "0s"
    if seconds < 2 * _MINUTE_S or seconds != int(seconds):
        return f"{plain_number(seconds, 3)}s"
    minutes, rest_s = divmod(int(seconds), _MINUTE_S)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest_s, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number)


def plain_number(value: float, most_decimals: int) -> str:
    """The number as a text, without zeros at the end of its decimals."""
    text = f"{value:.{most_decimals}f}"
    return text.rstrip("0").rstrip(".")
