"""Makes the command-line options for the settings, in the order of the tables of settings.

When the command line is read, only the type of a value is checked. The range of the value is checked by
`check_settings`, or when the run reads its settings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ralph.cli.parameters import FlagsOf, Parameter
from ralph.cli.values import absolute
from ralph.settings.tables import ALL_KEYS, BY_NAME
from ralph.values.outcome import UsageError
from ralph.values.setting import Takes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.values.setting import Flag, Key


def parameters_of_settings(field: str, flags: FlagsOf) -> Iterator[Parameter]:
    for key in ALL_KEYS:
        table = key.name.partition(".")[0]
        if key.flag is not None and flags.but not in {table, key.name} and flags.only in {None, table}:
            yield _parameter(field, key, key.flag)


def _parameter(field: str, key: Key, flag: Flag) -> Parameter:
    name = flag.spelling.removeprefix("--")
    plain = key.kind.plain_type
    is_list = flag.takes is not Takes.ONE
    return Parameter(
        name=name.replace("-", "_"),
        field=field,
        spellings=(flag.spelling, *flag.other_spellings),
        negation=f"--no-{name}" if plain is bool else None,
        kind=plain if plain in {bool, int, float} and not is_list and not flag.choices else str,
        choices=flag.choices,
        is_list=is_list,
        takes_words=flag.takes in {Takes.WORDS, Takes.PLACES},
        joined=_JOINED.get(flag.takes, _names),
        setting=key.name,
        help=flag.help,
        metavar=flag.metavar,
    )


def _comma_separated(words: Sequence[str]) -> str:
    return ",".join(words)


def _names(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for word in words for name in split_names(word))


def _places(words: Sequence[str]) -> tuple[str, ...]:
    """The words, with each path made absolute. A word that is blank or a JSON object is not changed."""
    return tuple(
        word if not word.strip() or word.lstrip().startswith("{") else absolute(word) or "" for word in words
    )


_JOINED = {Takes.JOINED: _comma_separated, Takes.PLACES: _places}


def split_names(word: str) -> list[str]:
    """Splits a word into names at commas and white space. `Bash(git add:*)` is one name."""
    return re.findall(r"[^\s,(]*\([^)]*\)?|[^\s,]+", word)


def check_settings(flags: Mapping[str, object]) -> None:
    """Raises UsageError if a run would refuse the value of a flag later. `flags` maps the names of settings to
    values. None means that the flag was not given.
    """
    for name, value in flags.items():
        if value is None:
            continue
        try:
            BY_NAME[name].kind.decoded(value)
        except ValueError as error:
            raise UsageError(f"{BY_NAME[name].spelling} {error}") from None
