"""Reads the command lines of `ralph run`, `ralph loop` and `ralph doctor`. No I/O happens here.

The rules are those of typer, which reads the other commands, with one addition for scripts written for Claude Code:

* `--name value` and `--name=value`; `-n value`, `-nvalue`, and clusters such as `-pn value`. The value may begin with
  a dash. `--no-name` where an option has that form. Names are not abbreviated.
* Options and other words may be mixed. All words after `--` belong to no option, and a lone `-` is a word.
* The last of several values counts. The values of a list are collected.
* `-h` and `--help` count even if a value is wrong, but not if an option is unknown or has no value.
* The addition: `--tools Read Bash` means `--tools=Read --tools=Bash`. A list takes all words up to the next option,
  `--`, or a lone `-` (standard input).

It checks only the types of values. Their ranges are checked by the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.cli.errors import LineError, wrong_value
from ralph.cli.parameters import HELP
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.cli.parameters import Parameter

_IN_WORDS = {int: "a whole number", float: "a number"}


class TypedOption(Struct, frozen=True):
    """One option as it was typed. It may be a cluster of short options, such as `-pc`."""

    words: tuple[str, ...]
    """The option and its value, as words of the command line. A list option has one `--option=word` for each word."""
    parameters: tuple[Parameter, ...]
    """The parameters that the option sets. A cluster sets one parameter per letter."""


class ReadLine(Struct, frozen=True):
    """The decoded contents of a command line."""

    values: dict[str, Any]
    """The values of the parameters that were given, by the parameters' names. Empty if the help is asked for."""
    options: tuple[TypedOption, ...]
    """All typed options, in the order of the command line."""
    last_list: str | None
    """The list option, as typed, whose words extend to the end of the line. The last of its words may have been meant
    as the prompt. None if there is no such option."""
    asks_for_help: bool = False


def read_line(words: Sequence[str], parameters: Sequence[Parameter]) -> ReadLine:
    """Reads the words that follow the command. Raises LineError if they do not fit the parameters."""
    divided = _DividedWords(words, {HELP.name: HELP, **{one.name: one for one in parameters}})
    options, last_list = tuple(divided.options), divided.last_list
    if HELP.name in divided.given:
        return ReadLine({}, options, last_list, asks_for_help=True)
    others = divided.others
    values = {}
    for name, given in divided.given.items():
        values[name] = _value(divided.parameters[name], given)
    for argument in parameters:
        if not argument.spellings and others:
            values[argument.name] = others.pop(0)
    if others:
        raise LineError(f"Got unexpected extra argument(s) ({' '.join(map(_shown, others))})")
    return ReadLine(values, options, last_list)


class _DividedWords:
    """The words of a command line, divided into options with their values and other words. Values are not checked
    yet.
    """

    def __init__(self, words: Sequence[str], parameters: dict[str, Parameter]) -> None:
        self.parameters = parameters
        self.given: dict[str, list[Any]] = {}
        """The words or truth values that each parameter got, in the order in which the parameters first appear."""
        self.others: list[str] = []
        self.options: list[TypedOption] = []
        self.last_list: str | None = None
        self._by_spelling = {spelling: one for one in parameters.values() for spelling in one.spellings}
        self._by_spelling |= {one.negation: one for one in parameters.values() if one.negation}
        self._coming = [*reversed(words)]
        while self._coming:
            word = self._coming.pop()
            if word == "--":
                self.others += reversed(self._coming)
                return
            if word.startswith("--"):
                self._take_long(word)
            elif word.startswith("-") and word != "-":
                self._take_cluster(word)
            else:
                self.others.append(word)

    def _take_long(self, word: str) -> None:
        spelling, equals, attached = word.partition("=")
        one = self._by_spelling.get(spelling)
        if one is None:
            raise self._unknown(spelling)
        typed = [word]
        if one.kind is bool:
            if equals and not one.may_have_value:
                raise LineError(f"Option {spelling!r} does not take a value")
            self._give(one, spelling != one.negation)
        elif equals:
            self._give(one, attached)
        elif one.takes_words:
            typed = [f"{spelling}={value}" for value in self._words_of_list(one, spelling)]
        else:
            typed.append(self._next_word(one, spelling))
        self.options.append(TypedOption(tuple(typed), (one,)))

    def _take_cluster(self, word: str) -> None:
        typed, parameters = [word], []
        for at, letter in enumerate(word[1:], start=2):
            one = self._by_spelling.get(f"-{letter}")
            if one is None:
                raise self._unknown(f"-{letter}")
            parameters.append(one)
            if one.kind is bool:
                self._give(one, True)
                continue
            if word[at:]:
                self._give(one, word[at:])
            else:
                typed.append(self._next_word(one, f"-{letter}"))
            break
        self.options.append(TypedOption(tuple(typed), tuple(parameters)))

    def _next_word(self, one: Parameter, spelling: str) -> str:
        if not self._coming:
            raise LineError(f"Option {spelling!r} requires an argument")
        word = self._coming.pop()
        self._give(one, word)
        return word

    def _words_of_list(self, one: Parameter, spelling: str) -> list[str]:
        words: list[str] = []
        while self._coming and not self._coming[-1].startswith("-"):
            words.append(self._next_word(one, spelling))
        if not words:
            raise LineError(f'{spelling} needs a word at least; {spelling} "" is an empty list')
        self.last_list = None if self._coming else spelling
        return words

    def _give(self, one: Parameter, value: object) -> None:
        self.given.setdefault(one.name, []).append(value)

    def _unknown(self, spelling: str) -> UsageError:
        from ralph.cli.claude_options import instead_of  # noqa: PLC0415 - only for an error

        instead = instead_of(spelling)
        if instead is not None:
            return UsageError(instead)
        return LineError(f"No such option: {_shown(spelling)}{self._suggestion(spelling)}")

    def _suggestion(self, spelling: str) -> str:
        if not spelling.startswith("--"):
            return ""
        from difflib import get_close_matches  # noqa: PLC0415 - only for an error

        near = get_close_matches(spelling, [one for one in self._by_spelling if one.startswith("--")])
        return f" (Possible options: {', '.join(near)})" if near else ""


def _value(parameter: Parameter, given: list[Any]) -> object:
    """Converts the words or truth values in `given` to the parameter's value. Raises LineError if one has the wrong
    type or is not among the choices.
    """
    if parameter.is_list:
        return parameter.joined(given)
    value = given[-1]
    if parameter.kind is bool:
        return value
    spellings = " / ".join(f"'{spelling}'" for spelling in parameter.spellings)
    if parameter.choices and value not in parameter.choices:
        raise wrong_value(spellings, f"{value!r} is not one of {', '.join(map(repr, parameter.choices))}")
    try:
        return parameter.kind(value)
    except ValueError:
        raise wrong_value(spellings, f"{value!r} is not {_IN_WORDS[parameter.kind]}") from None


def _shown(word: str) -> str:
    """The word, or the word with escapes if it contains characters that cannot be printed."""
    return word if word.isprintable() else repr(word)[1:-1]
