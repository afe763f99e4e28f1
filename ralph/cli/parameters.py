"""The parameters of a command line as values: their spellings, types and help texts. No I/O happens here.

A command declares its parameters as annotations of a Struct's fields. An annotation is an `Option`, an `Argument`, or
`FlagsOf` for the flags of settings. From these declarations, `line_reader.py` reads command lines, and
`command_page.py` makes help pages.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Option(Struct, frozen=True):
    """Annotates a field that is set by an option. The type of the field decides which values the option accepts."""

    spellings: str
    """All spellings, separated by spaces, such as `--quiet -q`."""
    help: str
    metavar: str | None = None
    """The name of the value in the help. If it is None, the help shows the choices, or `VALUE` if there are none."""
    is_hidden: bool = False
    """True if the help must not show the option."""
    may_have_value: bool = False
    """True if an option of type bool accepts a value and ignores it. The value follows `=`. It can also be the next
    word, if the line has more words than the command takes."""


class Argument(Struct, frozen=True):
    """Annotates a field that is set by the first word that belongs to no option."""

    help: str
    metavar: str | None = None
    """The kind of the value, as in `Option`. A shell's completion offers values of this kind."""


class FlagsOf(Struct, frozen=True):
    """Annotates a field that gets the values of settings' flags. The field is a mapping from the names of settings to
    values. None means that the flag was not given.
    """

    only: str | None = None
    """The name of a table of settings. The field then gets only the flags of this table. None means all tables."""
    but: str | None = None
    """The name of a table or a setting whose flags the field does not get. None means that the field gets all flags."""


class Parameter(Struct, frozen=True, kw_only=True):
    """One parameter of a command, and the name of the field that gets its value."""

    name: str
    field: str
    spellings: tuple[str, ...] = ()
    """The spellings of an option. Empty for an argument."""
    negation: str | None = None
    """The spelling that sets False, such as `--no-x`. None if there is no such spelling."""
    kind: type = str
    """The type of the value: str, int, float or bool. For a list, the type of each value in it. An option of type
    bool takes no word."""
    choices: tuple[str, ...] = ()
    """The only texts that the option accepts. If this is empty, the option accepts every text of its type."""
    is_list: bool = False
    """True if the option may be given several times, and its values are collected."""
    takes_words: bool = False
    """True if a list option takes all words up to the next option."""
    joined: Callable[[Sequence[str]], object] = tuple
    """A function that makes the value of a list option from the words that the user gave."""
    setting: str | None = None
    """The name of the setting that the option sets, or None if it sets none."""
    help: str
    metavar: str | None = None
    is_hidden: bool = False
    may_have_value: bool = False
    """True if an option of type bool accepts a value and ignores it, as in `Option`."""

    @property
    def longest_spelling(self) -> str:
        """The name that messages use: the longest spelling of an option, or the name of an argument in capitals."""
        return max(self.spellings, key=len, default=self.name.upper())


HELP = Parameter(
    name="help", field="", spellings=("--help", "-h"), kind=bool, help="Show this message and exit."
)
"""The option `--help`, which every command has."""


_PLAIN = (str, bool, int, float)
_TEXTS = tuple[str, ...]


def declared_parameter(field: str, annotation: Any) -> Parameter:
    """Makes the parameter for a field that is annotated with an `Option` or an `Argument`."""
    (declaration,) = annotation.__metadata__
    origin = annotation.__origin__
    kind = next(
        one
        for one in (get_args(origin) if isinstance(origin, UnionType) else (origin,))
        if one is not NoneType
    )
    is_list = kind not in _PLAIN and kind == _TEXTS
    choices = get_args(kind) if kind not in _PLAIN and get_origin(kind) is Literal else ()
    plain = str if is_list or choices else kind
    if isinstance(declaration, Argument):
        return Parameter(
            name=field, field=field, kind=plain, help=declaration.help, metavar=declaration.metavar
        )
    return Parameter(
        name=field,
        field=field,
        spellings=tuple(declaration.spellings.split()),
        kind=plain,
        choices=choices,
        is_list=is_list,
        takes_words=is_list,
        help=declaration.help,
        metavar=declaration.metavar,
        is_hidden=declaration.is_hidden,
        may_have_value=declaration.may_have_value,
    )
