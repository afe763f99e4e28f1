"""Options that take several words, as scripts for Claude Code write them: `--tools Read Bash` is `--tools=Read --tools=Bash`.

Pure. All words up to the next option belong to the list; `--` and a lone `-`, which is standard input, end it too.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class EmptyListError(Exception):
    """The option as it was typed: no word follows it."""


class Spread(Struct, frozen=True):
    words: tuple[str, ...]
    last_list: str | None
    """The list that reaches to the end of the line, as it was typed: a prompt could be among its words."""


def spread_lists(words: Sequence[str], options: Mapping[str, bool], lists: Collection[str]) -> Spread:
    """`options`: by spelling (`--model`, `-f`), whether a value goes with it. Raises EmptyListError."""
    spread: list[str] = []
    left = deque(words)
    while left:
        word = left.popleft()
        if word == "--":
            spread += [word, *left]
            break
        if word in lists:
            values = _values(left)
            if not values:
                raise EmptyListError(word)
            spread += [f"{word}={value}" for value in values]
            if not left:
                return Spread(tuple(spread), word)
            continue
        spread.append(word)
        if _awaits_value(word, options) and left:
            spread.append(left.popleft())
    return Spread(tuple(spread), None)


def _values(left: deque[str]) -> list[str]:
    values = []
    while left and not left[0].startswith("-"):
        values.append(left.popleft())
    return values


def _awaits_value(word: str, options: Mapping[str, bool]) -> bool:
    """As typer's parser sees it: `--name` and the last letter of `-qf`, but not `--name=x` and `-fx`."""
    if word.startswith("--"):
        return options.get(word, False)
    if not word.startswith("-"):
        return False
    letters = word[1:]
    taking = [position for position, letter in enumerate(letters) if options.get(f"-{letter}", False)]
    return bool(taking) and taking[0] == len(letters) - 1
