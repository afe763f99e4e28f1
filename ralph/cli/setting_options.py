"""Makes the command-line options of the settings, in the order of the tables of settings.

The parser checks only the type of an option's value. The range of the value is checked by `check_settings`, or when
the run reads its settings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import typer

from ralph.cli.line_command import Slot, made_parameter
from ralph.cli.values import absolute
from ralph.settings.keys import ALL_KEYS, BY_NAME
from ralph.values.outcome import UsageError
from ralph.values.setting import Takes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.cli.line_command import FlagsOf
    from ralph.values.setting import Flag, Key


def slots_of(field: str, flags: FlagsOf) -> Iterator[Slot]:
    for key in ALL_KEYS:
        table = key.name.partition(".")[0]
        if key.flag is not None and table != flags.but and flags.only in {None, table}:
            yield _slot(field, key, key.flag)


def _slot(field: str, key: Key, flag: Flag) -> Slot:
    name = flag.spelling.removeprefix("--")
    plain = key.kind.plain_type
    spelling = f"{flag.spelling}/--no-{name}" if plain is bool else flag.spelling
    kind: Any = plain if plain in {bool, int, float} else str
    if flag.choices:
        kind = Literal[flag.choices]
    elif flag.takes is not Takes.ONE:
        kind = list[str]
    row = typer.Option(spelling, *flag.other_spellings, metavar=flag.metavar, help=flag.help)
    return Slot(
        made_parameter(name.replace("-", "_"), kind, row),
        field,
        key.name,
        _READ[flag.takes],
        takes_words=flag.takes in {Takes.WORDS, Takes.PLACES},
    )


def _joined(words: list[str] | None) -> str | None:
    return ",".join(words) if words else None


def _names(words: list[str] | None) -> tuple[str, ...] | None:
    return tuple(name for word in words for name in split_names(word)) if words else None


def _places(words: list[str] | None) -> tuple[str, ...] | None:
    """The words, with an absolute path for each word that is no JSON object."""
    return (
        tuple(word if word.lstrip().startswith("{") else absolute(word) or "" for word in words)
        if words
        else None
    )


_READ = {
    Takes.ONE: lambda value: value,
    Takes.JOINED: _joined,
    Takes.NAMES: _names,
    Takes.WORDS: _names,
    Takes.PLACES: _places,
}


def split_names(word: str) -> list[str]:
    """The names in a word, which are separated by commas or white space. `Bash(git add:*)` is one name."""
    return re.findall(r"[^\s,(]*\([^)]*\)?|[^\s,]+", word)


def check_settings(flags: Mapping[str, object]) -> None:
    """Raises UsageError for a flag whose value a run would refuse later.

    `flags` maps the names of settings to values. None means that the flag was not given.
    """
    for name, value in flags.items():
        if value is None:
            continue
        try:
            BY_NAME[name].kind.decoded(value)
        except ValueError as error:
            raise UsageError(f"{BY_NAME[name].spelling} {error}") from None
