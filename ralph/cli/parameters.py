"""The parameters of a command line as values: their spellings, types and help texts. No I/O happens here.

A command declares its parameters in the annotations of a Struct's fields: an `Option`, an `Argument`, or `FlagsOf`
for the flags of settings. `line_reader.py` reads command lines and `command_page.py` makes help pages from these
declarations.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Option(Struct, frozen=True):
    """The annotation of a field that an option sets. The type of the field decides which values the option takes."""

    spellings: str
    """All spellings, separated by spaces, such as `--quiet -q`."""
    help: str
    metavar: str | None = None
    """The name of the value in the help. None: its choices, or `VALUE`."""
    is_hidden: bool = False
    """True if the help does not show the option."""
    may_have_value: bool = False
    """True if an option of type bool accepts a value after `=`, which has no effect."""


class Argument(Struct, frozen=True):
    """The annotation of a field that receives the first word that belongs to no option."""

    help: str


class FlagsOf(Struct, frozen=True):
    """The annotation of a field that receives the values of settings' flags, as a mapping from a setting's name to a
    value.

    A value of None means that the flag was not given.
    """

    only: str | None = None
    """The only table whose flags the field receives. None means all tables."""
    but: str | None = None
    """A table whose flags the field does not receive. None means that no table is left out."""


class Parameter(Struct, frozen=True, kw_only=True):
    """One parameter of a command, and the field that receives its value."""

    name: str
    field: str
    spellings: tuple[str, ...] = ()
    """The spellings of an option. An argument has none."""
    negation: str | None = None
    """The spelling that sets False, such as `--no-x`. None if there is none."""
    kind: type = str
    """str, int, float or bool: the type of the value, or of each value of a list. An option of type bool takes no
    word."""
    choices: tuple[str, ...] = ()
    """The only texts that the option accepts. If this is empty, it accepts every text of its type."""
    is_list: bool = False
    """True if the option may be given several times, and its values are collected."""
    takes_words: bool = False
    """True if a list takes all words up to the next option."""
    joined: Callable[[Sequence[str]], object] = tuple
    """A function that makes the value of a list from the words that were given."""
    setting: str | None = None
    """The name of the setting that the option belongs to, or None if it belongs to no setting."""
    help: str
    metavar: str | None = None
    is_hidden: bool = False
    may_have_value: bool = False
    """True if an option of type bool accepts a value after `=`, which has no effect."""

    @property
    def longest_spelling(self) -> str:
        """The spelling that messages show: the longest one of an option, or the name of an argument in capitals."""
        return max(self.spellings, key=len, default=self.name.upper())


HELP = Parameter(
    name="help", field="", spellings=("--help", "-h"), kind=bool, help="Show this message and exit."
)
"""The option of each command that shows its help page."""


def declared_parameter(field: str, annotation: Any) -> Parameter:
    """The parameter that the annotation of a field declares by an `Option` or an `Argument`."""
    (declaration,) = annotation.__metadata__
    origin = annotation.__origin__
    kind = next(
        one
        for one in (get_args(origin) if isinstance(origin, UnionType) else (origin,))
        if one is not NoneType
    )
    is_list = kind == tuple[str, ...]
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    plain = str if is_list or choices else kind
    if isinstance(declaration, Argument):
        return Parameter(name=field, field=field, kind=plain, help=declaration.help)
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
