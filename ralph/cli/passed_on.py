"""Separates a command line that speaks to two parsers, by the options that each of them knows.

It reads as typer's parser does (`--name=value`, `--name value`, `-nvalue`, clusters, `--`), so that no value is taken
for an option. Refuses an option that neither knows; what an option's value must be, its parser says.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Spellings = Mapping[str, bool]
    """By spelling (`--model`, `-f`): whether a value goes with it."""


class UnknownOptionError(Exception):
    """The option as it was typed, without a value."""


class Split(Struct, frozen=True):
    own: tuple[str, ...]
    """Arguments without a dash, too, and all behind `--`."""
    passed_on: tuple[str, ...]
    """Options alone, each with its value, in the order and the form they were typed in."""


class _Side:
    def __init__(self, options: Spellings) -> None:
        self.options = options
        self.arguments: list[str] = []
        self.cluster = ""
        """Its letters among those that are being looked at."""


def split_arguments(arguments: Sequence[str], own: Spellings, others: Spellings) -> Split:
    """An option that both know is `own`'s. Raises UnknownOptionError."""
    sides = mine, theirs = _Side(own), _Side(others)
    left = deque(arguments)
    while left:
        word = left.popleft()
        if word == "--":
            mine.arguments += [word, *left]
            break
        if word == "-" or not word.startswith("-"):
            mine.arguments.append(word)
            continue
        if word.startswith("--"):
            name, equals, _ = word.partition("=")
            side = _side_of(name, sides)
            side.arguments.append(word)
            awaits_value = side.options[name] and not equals
        else:
            side, awaits_value = _split_cluster(word, sides)
        if awaits_value and left:
            side.arguments.append(left.popleft())
    return Split(tuple(mine.arguments), tuple(theirs.arguments))


def _split_cluster(word: str, sides: tuple[_Side, _Side]) -> tuple[_Side, bool]:
    """Of `-qfFILE`: whose the last option is, and whether its value is still to come."""
    for position, letter in enumerate(word[1:], start=1):
        side = _side_of(f"-{letter}", sides)
        takes_value = side.options[f"-{letter}"]
        side.cluster += word[position:] if takes_value else letter
        if takes_value:
            break
    for each in sides:
        if each.cluster:
            each.arguments.append(f"-{each.cluster}")
            each.cluster = ""
    return side, takes_value and position == len(word) - 1


def _side_of(name: str, sides: tuple[_Side, _Side]) -> _Side:
    for side in sides:
        if name in side.options:
            return side
    raise UnknownOptionError(name)
