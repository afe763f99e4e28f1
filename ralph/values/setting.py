"""The row of a setting: its allowed values, its sources, the changes that a repository may make to it, and its meaning.

A row stands in the annotation of the field that holds the value, whichever room that Struct is in;
`ralph/settings/keys.py` collects them. This module reads no settings.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert

from ralph.values.tool_choice import READ_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SECONDS = 31_536_000
"""A year. Python's own waits overflow at about 292 years, and no run is meant to wait longer than a year."""
_MOST_DOLLARS = 1_000_000
"""The highest price of a million tokens, and the highest budget of a run. Nobody sells tokens at a dollar each, and
sums must stay finite.
"""
_SHOWN_CHARS = 60


# --- What a value must be


class Kind(Struct, frozen=True):
    type: Any
    """The type to which msgspec decodes a value, with a range if the type can express it."""
    says: str
    """The allowed values in words that follow "must be"."""
    then: Callable[[Any], Any] | None = None
    """A rule that a type cannot express. Takes the decoded value and returns the value to keep. Raises ValueError."""
    is_secret: bool = False
    """True: errors do not repeat a wrong value, which may be a key in the wrong place."""

    @property
    def plain_type(self) -> type:
        """The type without its ranges."""
        plain: type = getattr(self.type, "__origin__", self.type)
        return plain

    def decoded(self, raw: object, *, is_text: bool = False) -> Any:
        """The value to keep. `is_text`: a number or a switch may be written as text, as it is in a variable.

        Raises ValueError, whose text goes after the setting's name ("must be ...").
        """
        try:
            value = convert(raw, self.type, strict=not is_text)
        except (ValidationError, UnicodeEncodeError):  # a variable may hold bytes that are no text
            given = "" if self.is_secret else f", not {_shown(raw)}"
            raise ValueError(f"must be {self.says}{given}") from None
        return value if self.then is None else self.then(value)


def at_least(minimum: int) -> Kind:
    return Kind(Annotated[int, Meta(ge=minimum)], f"a whole number of at least {minimum}")


def one_of(*choices: str) -> Kind:
    return Kind(Literal[choices], f"one of {', '.join(choices)}")


def printable(text: str) -> str:
    """The text without surrounding white space. Raises ValueError if nothing is left, or if it holds characters that
    are not printable.
    """
    text = text.strip()
    if not text or not text.isprintable():
        raise ValueError("must be a text of printable characters")
    return text


def duration_s(value: float | str) -> float:
    """The seconds of a duration. A text may be `90`, `45s`, `30m`, `1h 30m` or `2d`."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    number = r"\d{1,9}(?:\.\d{1,9})?"
    in_units = re.fullmatch(
        "".join(rf"(?:({number})\s*{unit}\s*)?" for unit in "dhms"), text, re.ASCII | re.IGNORECASE
    )
    if re.fullmatch(r"\d{1,12}(?:\.\d{1,9})?", text, re.ASCII):
        in_seconds = float(text)
    elif text and in_units is not None:
        units_s = zip(in_units.groups(default="0"), (86_400, 3_600, 60, 1), strict=True)
        in_seconds = sum(float(number) * unit_s for number, unit_s in units_s)
    else:
        raise ValueError(f"must be a time such as 90s, 30m or 1h30m, not {_shown(value)}")
    if not 0 < in_seconds <= MAX_SECONDS:
        raise ValueError(f"must be more than nothing and at most a year, not {_shown(value)}")
    return in_seconds


_SAYS_SECONDS = f"a number of seconds from 0 to {MAX_SECONDS}"
_SAYS_POSITIVE_SECONDS = f"a number of seconds, more than 0 and at most {MAX_SECONDS}"
_PositiveSeconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]

SWITCH = Kind(bool, "true or false")
SECONDS = Kind(Annotated[float, Meta(ge=0, le=MAX_SECONDS)], _SAYS_SECONDS)
POSITIVE_SECONDS = Kind(_PositiveSeconds, _SAYS_POSITIVE_SECONDS)
SECONDS_OR_NONE = Kind(
    Annotated[float, Meta(le=MAX_SECONDS)], _SAYS_SECONDS, lambda seconds: max(seconds, 0.0)
)
"""Seconds; 0 or any negative number means that there is no maximum."""
LIST_OF_SECONDS = Kind(
    Annotated[tuple[_PositiveSeconds, ...], Meta(min_length=1)],
    f"a list of seconds, such as [5, 60, 300], each more than 0 and at most {MAX_SECONDS}",
)
DURATION = Kind(_PositiveSeconds | str, _SAYS_POSITIVE_SECONDS, duration_s)
DOLLARS = Kind(
    Annotated[float, Meta(ge=0, le=_MOST_DOLLARS)], f"a number of dollars from 0 to {_MOST_DOLLARS}"
)
POSITIVE_DOLLARS = Kind(
    Annotated[float, Meta(gt=0, le=_MOST_DOLLARS)],
    f"a number of dollars, more than 0 and at most {_MOST_DOLLARS}",
)
TEXT = Kind(str, "a text of printable characters", printable)


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:  # an `int` of more than 4,300 digits
        return "a huge number"
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}..."


# --- What a file that came with a repository may do


class Tightening(Struct, frozen=True):
    """A rule by which a file in a repository can tighten the values of trusted sources. It can do nothing else."""

    says: str
    """The rule in words, for people."""
    apply: Callable[[Any, Any], Any]
    """Takes the trusted value and the requested value, and returns the value to use. None: the requested value is
    looser.
    """
    joins_stronger: bool = False
    """True: the rule also tightens the values of flags and variables. False: they replace the value of such a file."""


# From the tightest to the loosest. "custom" may be either, so that only "off" is known to be tighter.
_POLICY_RANKS = {"off": 0, "standard": 1, "patient": 2}


def _smaller(trusted: float | None, requested: float) -> float | None:
    """The requested bound; None: it is looser than the trusted bound. A trusted bound of None or 0 means no bound."""
    if requested <= 0 or (trusted and requested > trusted):
        return None
    return requested


def _retries(trusted: str, requested: str) -> str | None:
    if requested == trusted:
        return requested
    rank = _POLICY_RANKS.get(requested)
    return requested if rank is not None and rank <= _POLICY_RANKS.get(trusted, 0) else None


def _fewer(trusted: tuple[str, ...] | None, requested: tuple[str, ...]) -> tuple[str, ...] | None:
    """The names that both lists allow; None: the requested list is looser. A trusted None allows all names."""
    if trusted is None:
        return requested
    # Reading is allowed in any case.
    if set(requested) - set(READ_ONLY) > set(trusted) - set(READ_ONLY):
        return None
    return tuple(name for name in trusted if name in requested)


def _more(trusted: tuple[str, ...], requested: tuple[str, ...]) -> tuple[str, ...] | None:
    """The names in either list of forbidden tools; None: the requested list is looser."""
    if set(requested) < set(trusted):
        return None
    return tuple(dict.fromkeys((*trusted, *requested)))


ANY = Tightening("any", lambda _trusted, requested: requested)
SMALLER = Tightening("smaller, not 0", _smaller)
FEWER_RETRIES = Tightening("standard or off", _retries)
NARROWS = Tightening("narrows", _fewer, joins_stronger=True)
ADDS = Tightening("adds", _more, joins_stronger=True)


# --- The row


class Takes(enum.Enum):
    """The words of the command line that belong to a flag."""

    ONE = enum.auto()
    """One word, of the type of the setting's kind. A switch takes none, and has a `--no-` form beside it."""
    JOINED = enum.auto()
    """Several texts: the flag is repeated, or commas separate them. The setting gets one text with commas."""
    NAMES = enum.auto()
    """Several names: the flag is repeated, or commas or spaces separate them in one word."""
    WORDS = enum.auto()
    """Several names, as for `NAMES`; all words up to the next option belong to the flag."""


class Flag(Struct, frozen=True):
    """An option of `ralph run`."""

    spelling: str
    help: str
    metavar: str | None = None
    """The value's name in the help."""
    takes: Takes = Takes.ONE
    choices: tuple[str, ...] = ()
    """The only texts that the flag accepts; empty: any text."""
    other_spellings: tuple[str, ...] = ()


class Key(Struct, frozen=True):
    """One setting."""

    kind: Kind
    meaning: str = ""
    """The setting's meaning as one line of Markdown, for the list of keys in docs/settings.md."""
    flag: Flag | None = None
    variable: str | None = None
    """A variable of the environment."""
    read: Callable[[str], object] | None = None
    """Converts the variable's text; None: the kind converts it."""
    in_repository: Tightening | None = None
    """How a file that lies in the working directory may tighten it; None: not at all (exit 78)."""
    is_in_files: bool = True
    """False: the setting is about one run, so only its flag sets it."""
    name: str = ""
    """Table and key, with a dot between; `ralph/settings/keys.py` fills it in."""
    default: Any = None
    """The field's default; `ralph/settings/keys.py` fills it in too."""

    @property
    def spelling(self) -> str:
        """The flag's spelling; empty if there is no flag."""
        return self.flag.spelling if self.flag else ""

    @property
    def places(self) -> tuple[str, ...]:
        """Flag and variable, as far as there are any."""
        return tuple(place for place in (self.spelling, self.variable) if place)

    def from_variable(self, text: str) -> Any:
        """The value that a variable's text means. Raises ValueError as `Kind.decoded` does."""
        return (
            self.kind.decoded(text, is_text=True) if self.read is None else self.kind.decoded(self.read(text))
        )
