"""Commands whose options are fields of Structs: `run`, `loop` and `doctor`. `line_reader.py` reads their command lines.

The options for settings have the order of the tables of settings. When the command line is read, only the type of a
value is checked. The range of the value is checked by `check_settings`, or when the run reads its settings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.cli.line_reader import TypedOption, read_line
from ralph.cli.parameters import FlagsOf, Parameter, declared_parameter
from ralph.cli.values import absolute
from ralph.machine.loading import begin_garbage_collection
from ralph.settings.tables import ALL_KEYS, BY_NAME
from ralph.values.outcome import UsageError
from ralph.values.setting import Takes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from ralph.values.setting import Flag, Key


class Typed(Struct, frozen=True):
    """The command line as the user typed it, for commands that need more than the decoded values."""

    options: tuple[TypedOption, ...] = ()
    """All typed options, in the order of the command line."""
    given: Mapping[str, str] = {}
    """The names of the parameters that the user typed, each with its longest spelling. Error messages show this
    spelling."""
    last_list: str | None = None
    """The list option that takes all words up to the end of the line, as typed. The user may have meant the last of
    these words as the prompt. None if there is no such option."""
    is_command_inserted: bool = False
    """True if the user named no command and ralph inserted `run`."""


class Section(Struct, frozen=True):
    """A group of a command's options: a title in the help, and a Struct whose fields declare the options."""

    line: type[Struct]
    title: str = "Options"
    unlisted: Collection[str] = ()
    """The names of parameters that the help does not show."""


class LineCommand(Struct, frozen=True):
    """A command that decodes its arguments into Structs. When it runs, it passes one Struct per section and a `Typed`
    to the function `call`.
    """

    name: str
    call: Callable[..., int]
    sections: tuple[Section, ...]
    epilog: str | None = None
    loads_late: bool = False
    """True if the command still imports many modules after it was called. Such a command begins garbage collection
    itself when these imports are done."""

    def parameters(self) -> list[list[Parameter]]:
        """The parameters of each section. If two sections declare the same parameter, it belongs only to the first of
        them.
        """
        taken: set[str] = set()
        found = []
        for section in self.sections:
            own = [one for one in _declared(section.line) if taken.isdisjoint((one.name, *one.spellings))]
            taken |= {word for one in own for word in (one.name, *one.spellings)}
            found.append(own)
        return found

    def read(
        self, words: Sequence[str], *, is_command_inserted: bool = False
    ) -> tuple[list[Struct], Typed] | None:
        """Decodes the words after the command's name into the arguments of `LineCommand.run`. Returns None if the
        words ask for the help. Raises LineError if the words do not fit the parameters.
        """
        of_sections = self.parameters()
        everything = [one for own in of_sections for one in own]
        reading = read_line(words, everything)
        if reading.asks_for_help:
            return None
        values = reading.values
        lines = [
            _decoded(section.line, own, values)
            for section, own in zip(self.sections, of_sections, strict=True)
        ]
        given = {one.name: one.longest_spelling for one in everything if one.name in values}
        return lines, Typed(reading.options, given, reading.last_list, is_command_inserted)

    def run(self, lines: Sequence[Struct], typed: Typed) -> int:
        """Carries out the command, and returns the exit code."""
        if not self.loads_late:
            begin_garbage_collection()
        return self.call(*lines, typed)


def _declared(line: type[Struct]) -> Iterator[Parameter]:
    for field, annotation in line.__annotations__.items():
        (declaration,) = annotation.__metadata__
        if isinstance(declaration, FlagsOf):
            yield from parameters_of_settings(field, declaration)
        else:
            yield declared_parameter(field, annotation)


def _decoded(line: type[Struct], parameters: Sequence[Parameter], values: Mapping[str, object]) -> Struct:
    of_fields: dict[str, Any] = {}
    for one in parameters:
        if one.setting is not None:
            of_fields.setdefault(one.field, {})[one.setting] = values.get(one.name)
        elif one.name in values:
            of_fields[one.field] = values[one.name]
    return line(**of_fields)


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
