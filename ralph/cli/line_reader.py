"""Reads the command lines of `ralph run`, `ralph loop` and `ralph doctor`. No I/O happens here.

The rules are those of typer, which reads the other commands. The last two rules are additions for scripts written for
Claude Code:

* `--name value` and `--name=value`; `-n value`, `-nvalue`, and clusters such as `-pn value`. The value may begin with
  a dash. `--no-name` where an option has that form. Names are not abbreviated.
* Options and other words may be mixed. Words after `--` are never options or their values, and a lone `-` is no option.
* If an option is given several times, its last value is used. The values of a list option are collected.
* `-h` and `--help` show the help even if a value is wrong. If an option is unknown or lacks its value, this error is
  shown instead.
* `--tools Read Bash` means `--tools=Read --tools=Bash`. A list option takes all words up to the next option, `--`, or
  a lone `-` (standard input).
* In `--debug api "the task"`, the word `api` is a value of the option, because the command takes only one other word.

Only the types of values are checked here. The commands check the ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.cli.commands import LineError, wrong_value
from ralph.cli.parameters import HELP
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.cli.parameters import Parameter

_IN_WORDS = {int: "a whole number", float: "a number"}


class TypedOption(Struct, frozen=True):
    """One option as it was typed. It may be a cluster of short options, such as `-pc`."""

    words: tuple[str, ...]
    """The option and its value, as words of the command line. A list option has one word `--option=value` for each
    value."""
    parameters: tuple[Parameter, ...]
    """The parameters that the option sets. A cluster sets one parameter per letter."""


class ReadLine(Struct, frozen=True):
    """The decoded contents of a command line."""

    values: dict[str, Any]
    """The values of the parameters that were given, by the names of the parameters. Empty if the user asks for the
    help."""
    options: tuple[TypedOption, ...]
    """All typed options, in the order of the command line."""
    last_list: str | None
    """The list option that takes all words up to the end of the line, as typed. The user may have meant the last of
    these words as the prompt. None if there is no such option."""
    asks_for_help: bool = False


def read_line(words: Sequence[str], parameters: Sequence[Parameter]) -> ReadLine:
    """Reads the words after the name of the command. Raises LineError if the words do not fit the parameters."""
    divided = _DividedWords(words, {HELP.name: HELP, **{one.name: one for one in parameters}})
    options, last_list = tuple(divided.options), divided.last_list
    if HELP.name in divided.given:
        return ReadLine({}, options, last_list, asks_for_help=True)
    positions = [one for one in parameters if not one.spellings]
    others = divided.without_values(len(positions))
    values = {}
    for name, given in divided.given.items():
        values[name] = _value(divided.parameters[name], given)
    for argument in positions:
        if others:
            values[argument.name] = others.pop(0)
    if others:
        raise LineError(f"Got unexpected extra argument(s) ({' '.join(map(_shown, others))})")
    return ReadLine(values, options, last_list)


class _DividedWords:
    """The words of a command line, divided into two groups: options with their values, and other words. Values are
    not checked.
    """

    def __init__(self, words: Sequence[str], parameters: dict[str, Parameter]) -> None:
        self.parameters = parameters
        self.given: dict[str, list[Any]] = {}
        """The words or truth values for each parameter, by its name. The parameters are in the order in which they
        first appear."""
        self.others: list[str] = []
        self.options: list[TypedOption] = []
        self.last_list: str | None = None
        self._maybe_values: list[int] = []
        """Indexes in `others`. The word at each index directly follows an option that can have a value, and may be
        its value."""
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

    def without_values(self, most: int) -> list[str]:
        """The words that belong to no option. If there are more than `most`, words that may be the value of an option
        before them are removed, from the last to the first, until `most` words are left. An example is `api` in
        `--debug api "the task"`.
        """
        kept = [*self.others]
        for at in reversed(self._maybe_values):
            if len(kept) > most:
                del kept[at]
        return kept

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
            if not equals:
                self._note_possible_value(one)
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
                self._note_possible_value(one)
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
            takes_names = one.metavar == "TOOLS..."
            advice = f'{spelling} "" is an empty list' if takes_names else "leave it out to name none"
            raise LineError(f"{spelling} needs a word at least; {advice}")
        self.last_list = None if self._coming else spelling
        return words

    def _note_possible_value(self, one: Parameter) -> None:
        if one.may_have_value and self._coming and not self._coming[-1].startswith("-"):
            self._maybe_values.append(len(self.others))

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
    """Converts the words or truth values in `given` to the parameter's value. Raises LineError if a word has the
    wrong type or is not one of the choices.
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
    """The word as an error message shows it. Escapes are used if the word contains characters that cannot be printed."""
    return word if word.isprintable() else repr(word)[1:-1]
