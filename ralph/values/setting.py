"""Defines the type that describes one setting: the allowed values, the sources, the meaning, and the changes that a
repository may make.

The description of a setting is written in the annotation of a Struct field. That field holds the setting's value.
`ralph/settings/tables.py` collects the descriptions from all packages. This module reads no settings.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert

from ralph.values.tool_choice import READ_ONLY, tool_of

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SECONDS = 31_536_000
"""The longest time that a setting may have: one year. Python's own waits overflow at about 292 years."""
MEGABYTE = 1024 * 1024
"""The bytes of a megabyte in each setting whose name ends in `_mb`."""
_MOST_DOLLARS = 1_000_000
"""The highest amount in US dollars that a setting may have: the price of a million tokens, or the budget of a run.
Above it, a token could cost more than a dollar."""
_SHOWN_CHARS = 60


class Declared:
    """The type of a field together with the field's description, which `ralph/settings/tables.py` reads.

    It replaces `typing.Annotated` at run time, because a start of ralph needs many, and `typing.Annotated` takes
    ten times as long to make one. A Struct that msgspec decodes must not use this class: msgspec only understands
    `typing.Annotated`.
    """

    __slots__ = ("__metadata__", "__origin__")

    def __init__(self, origin: Any, *metadata: Any) -> None:
        self.__origin__ = origin
        self.__metadata__ = metadata

    def __class_getitem__(cls, parameters: tuple[Any, ...]) -> Declared:
        return cls(*parameters)


# --- The allowed values of a setting


class Kind(Struct, frozen=True):
    """A rule for the values of a setting. Several settings may have the same rule."""

    type: Any
    """The type to which msgspec decodes a value, with its range if a type can express it."""
    says: str
    then: Callable[[Any], Any] | None = None
    """A function for a rule that no type can express. It takes the decoded value, and returns the value to use or
    raises ValueError. None if there is no such rule."""
    is_secret: bool = False
    """True if an error message must not repeat a wrong value, because the value may be a key."""

    @property
    def plain_type(self) -> type:
        """The type of the values, without the range of the values."""
        plain: type = getattr(self.type, "__origin__", self.type)
        return plain

    def decoded(self, raw: object, *, is_text: bool = False) -> Any:
        """Decodes and checks a raw value, and returns the value to use.

        If `is_text` is True, the raw value may be a text that contains a number or a boolean, as in an environment
        variable. Raises ValueError with a text such as "must be ...". The caller puts the setting's name before it.
        """
        try:
            value = convert(raw, self.type, strict=not is_text)
        except (ValidationError, UnicodeEncodeError):  # a variable may hold bytes that are not text
            given = "" if self.is_secret else f", not {_shown(raw)}"
            raise ValueError(f"must be {self.says}{given}") from None
        return value if self.then is None else self.then(value)


def at_least(minimum: int) -> Kind:
    return Kind(Annotated[int, Meta(ge=minimum)], f"a whole number of at least {minimum}")


def one_of(*choices: str) -> Kind:
    return Kind(Literal[choices], f"one of {', '.join(choices)}")


def printable(text: str) -> str:
    """The text without surrounding white space. Raises ValueError if it is empty or contains characters that are
    not printable.
    """
    text = text.strip()
    if not text:
        raise ValueError("must not be empty")
    if not text.isprintable():
        raise ValueError("must be a text of printable characters")
    return text


def duration_s(value: float | str) -> float:
    """The duration in seconds. A number is returned unchanged. A text may be `90`, `45s`, `30m`, `1h 30m` or `2d`.

    Raises ValueError for any other text, and for a text that means 0 or more than a year.
    """
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
"""A maximum in seconds. 0 and negative numbers mean that there is no maximum."""
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


# --- Changes that a settings file in a repository may make


class Tightening(Struct, frozen=True):
    """A rule that decides how a settings file in a repository may change a setting.

    Somebody else may have written such a file. So most rules let it make a setting stricter than the user's own
    sources do, but not looser.
    """

    says: str
    apply: Callable[[Any, Any], Any]
    """Takes the value from the user's own sources and the value that the file requests. Returns the value to use,
    or None if the requested value is looser."""
    joins_stronger: bool = False
    """True if the file can also tighten a value from a flag or an environment variable. False if such a value
    replaces the file's value."""


# The retry policies from the strictest to the loosest. "custom" is missing because its numbers decide how strict it
# is: compared with it, only "off" is known to be stricter.
_POLICY_RANKS = {"off": 0, "standard": 1, "patient": 2}


def _smaller(trusted: float | None, requested: float) -> float | None:
    if requested <= 0 or (trusted and requested > trusted):
        return None
    return requested


def _retries(trusted: str, requested: str) -> str | None:
    if requested == trusted:
        return requested
    rank = _POLICY_RANKS.get(requested)
    return requested if rank is not None and rank <= _POLICY_RANKS.get(trusted, 0) else None


def _fewer(trusted: tuple[str, ...] | None, requested: tuple[str, ...]) -> tuple[str, ...] | None:
    """The tools that both lists allow. None if the requested list contains the whole trusted list and more. If
    `trusted` is None, it allows all tools.

    A pattern (`Bash(git *)`) allows less than the name of its tool. If the lists have different patterns for one
    tool, the result contains none of them.
    """
    if trusted is None:
        return requested
    # Read-only tools are left out of the comparison, because the setting allows them in any case.
    if set(requested) - set(READ_ONLY) > set(trusted) - set(READ_ONLY):
        return None
    kept = [name for name in trusted if name in requested or tool_of(name) in requested]
    kept += [name for name in requested if name not in kept and tool_of(name) in trusted]
    return tuple(kept)


def _more(trusted: tuple[str, ...], requested: tuple[str, ...]) -> tuple[str, ...] | None:
    if set(requested) < set(trusted):
        return None
    return tuple(dict.fromkeys((*trusted, *requested)))


ANY = Tightening("any", lambda _trusted, requested: requested)
SMALLER = Tightening("smaller, not 0", _smaller)
FEWER_RETRIES = Tightening("standard or off", _retries)
NARROWS = Tightening("narrows", _fewer, joins_stronger=True)
ADDS = Tightening("adds", _more, joins_stronger=True)


# --- The definition of a setting


class Arity(enum.Enum):
    """The ways in which a flag takes its values from the words of the command line."""

    ONE = enum.auto()
    """The flag takes one word, which is a value of the setting's type. If the setting is a boolean, the flag takes no
    word, and the user can also write the flag with `--no-` at its beginning."""
    JOINED = enum.auto()
    """The flag takes several texts, which the user separates by commas or gives by repeating the flag. The value is
    one text with commas between them."""
    NAMES = enum.auto()
    """The flag takes several names. The user repeats the flag, or separates them by commas or spaces within one
    word."""
    PLACES = enum.auto()
    """The flag takes several words, each a path or a JSON object, and can be repeated. A word is not split."""


class Flag(Struct, frozen=True):
    """A flag of `ralph run` that changes a setting."""

    spelling: str
    help: str
    metavar: str | None = None
    """The name of the flag's value in the help text. If it is None, the help text shows the choices, or the type. If it
    ends with `...`, the flag also takes all words up to the next option."""
    takes: Arity = Arity.ONE
    choices: tuple[str, ...] = ()
    """The values that the flag accepts. If the tuple is empty, the flag accepts any text."""
    other_spellings: tuple[str, ...] = ()


class Key(Struct, frozen=True):
    """The description of one setting. It is written in the annotation of the Struct field that holds the setting's
    value.
    """

    kind: Kind
    meaning: str = ""
    """The setting's meaning as one line of Markdown. It appears in the list of keys in docs/settings.md."""
    flag: Flag | None = None
    variable: str | None = None
    read: Callable[[str], object] | None = None
    """A function that converts the text of the environment variable. If it is None, `kind` converts the text."""
    in_repository: Tightening | None = None
    """The rule for a settings file in the working directory. None means that such a file must not contain the
    setting (exit 78)."""
    is_users_alone: bool = False
    """True if only the user's own settings file can contain the setting, and not one that `--config` names."""
    is_in_files: bool = True
    """False if no settings file can contain the setting, because it concerns a single run. Then only the flag can
    change it."""
    name: str = ""
    """The name of the table and the name of the key, joined by a dot. `ralph/settings/tables.py` sets this field."""
    default: Any = None
    """The default value of the Struct field. `ralph/settings/tables.py` sets this field."""

    @property
    def spelling(self) -> str:
        """The flag as the user writes it, or an empty text if the setting has no flag."""
        return self.flag.spelling if self.flag else ""

    @property
    def places(self) -> tuple[str, ...]:
        """The flag and the environment variable that change the setting. One or both may be missing."""
        return tuple(place for place in (self.spelling, self.variable) if place)

    def from_variable(self, text: str) -> Any:
        """The setting's value for the text of its environment variable. Raises the errors of `Kind.decoded`."""
        return (
            self.kind.decoded(text, is_text=True) if self.read is None else self.kind.decoded(self.read(text))
        )


def lower_only(meaning: str) -> Key:
    """A setting for a time limit in seconds, which a settings file in a repository can only lower."""
    return Key(SECONDS, meaning, in_repository=SMALLER)
