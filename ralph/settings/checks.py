"""What a setting's value must be: each check takes a raw value and returns the one to keep.

Refuses by a ValueError whose text goes after the setting's name ("must be ..."). Values that may be secret by
accident (URLs, variable assignments) are not repeated in it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.values.endpoint import normal_base_url
from ralph.values.tool_choice import ALL_OF_THEM, TOOL_NAMES, check_tool_name

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SECONDS = 31_536_000
"""A year. Python's own waits overflow at some 292 of them, and no run is meant to wait that long."""
_MOST_DOLLARS = 1_000_000
"""For a million tokens, or for a run. Nobody sells tokens at a dollar each, and sums must stay finite."""
_SHOWN_CHARS = 60
_DURATION = re.compile(
    "".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?)\s*{unit}\s*)?" for unit in "dhms"), re.ASCII | re.IGNORECASE
)
_SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,9})?", re.ASCII)


def text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.strip().isprintable():
        raise ValueError("must be a text of printable characters")
    return value.strip()


def base_url(value: object) -> str:
    return normal_base_url(text(value))


def path(value: object) -> Path:
    return Path(text(value))


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"must be true or false, not {_shown(value)}")


def one_of(*choices: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise ValueError(f"must be one of {', '.join(choices)}, not {_shown(value)}")

    return check


def whole(minimum: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= minimum:
            return value
        raise ValueError(f"must be a whole number of at least {minimum}, not {_shown(value)}")

    return check


def dollars(value: object) -> float:
    """Nan and the infinities fail as they do for `seconds`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MOST_DOLLARS:
        return value
    raise ValueError(f"must be a number of dollars from 0 to {_MOST_DOLLARS}, not {_shown(value)}")


def positive_dollars(value: object) -> float:
    if (checked := dollars(value)) > 0:
        return checked
    raise ValueError("must be more than 0 dollars")


def seconds(value: object) -> float:
    """0 and more. Comparisons with nan are false, so nan and the infinities fail too."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_SECONDS:
        return value
    raise ValueError(f"must be a number of seconds from 0 to {MAX_SECONDS}, not {_shown(value)}")


def positive_seconds(value: object) -> float:
    if (checked := seconds(value)) > 0:
        return checked
    raise ValueError("must be more than 0 seconds")


def list_of_seconds(value: object) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be a list of seconds, such as [5, 60, 300]")
    return tuple(positive_seconds(one) for one in value)


def duration(value: object) -> float:
    """A number of seconds, or a text such as `90`, `45s`, `30m`, `1h 30m`, `2d`: what people call a time limit."""
    if not isinstance(value, str):
        return positive_seconds(value)
    text = value.strip()
    parts = _DURATION.fullmatch(text)
    if _SECONDS.fullmatch(text):
        in_seconds = float(text)
    elif text and parts is not None:
        units = zip(parts.groups(default="0"), (86_400, 3_600, 60, 1), strict=True)
        in_seconds = sum(float(number) * unit_s for number, unit_s in units)
    else:
        raise ValueError(f"must be a time such as 90s, 30m or 1h30m, not {_shown(value)}")
    if not 0 < in_seconds <= MAX_SECONDS:
        raise ValueError(f"must be more than nothing and at most a year, not {_shown(value)}")
    return in_seconds


def seconds_or_none(value: object) -> float:
    """Everything from 0 downwards says the same: no maximum."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value <= 0:
        return 0
    return seconds(value)


def tool_names(value: object) -> tuple[str, ...]:
    names = _names(value)
    for name in names:
        check_tool_name(name)
    return tuple(dict.fromkeys(names))


def exact_tools(value: object) -> tuple[str, ...]:
    names = _names(value)
    others = tool_names([name for name in names if name != ALL_OF_THEM])
    return TOOL_NAMES if ALL_OF_THEM in names else others


def variable_names(value: object) -> tuple[str, ...]:
    names = _names(value)
    for number, name in enumerate(names, start=1):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"must hold names of variables, without values; entry {number} is none")
    return tuple(dict.fromkeys(names))


def key_variables(value: object) -> tuple[str, ...]:
    """One name or a list of them. Who writes the key itself there does not get it shown."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ValueError("must be the name of a variable, or a list of such names")
    return variable_names(value)


def target_name(value: object) -> str:
    name = text(value)
    if "," in name:
        raise ValueError(f"must not hold a comma, which separates names in flags, not {_shown(name)}")
    return name


def comma_separated(value: object) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text(name) for name in text(value).split(",") if name.strip()))
    if not names:
        raise ValueError("must hold at least one name")
    return names


def split_names(value: str) -> list[str]:
    """Names as flags give them, separated by commas or white space; `Bash(git add:*)` stays in one piece."""
    return re.findall(r"[^\s,(]*\([^)]*\)?|[^\s,]+", value)


def number(value: str) -> int:
    """What a variable holds. Fifteen digits: more is no setting, and an `int` of thousands is slow to read."""
    if re.fullmatch(r"[0-9]{1,15}", value):
        return int(value)
    raise ValueError("must be a whole number")


def milliseconds(value: str) -> float:
    in_seconds = number(value) / 1000
    return int(in_seconds) if in_seconds.is_integer() else in_seconds


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError(f"must be a list of names, not {_shown(value)}")


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:  # an `int` of more than 4,300 digits
        return "a huge number"
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}..."
