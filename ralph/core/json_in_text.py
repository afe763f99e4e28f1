"""Finds what may be JSON in a text that a model wrote: all of it, fenced blocks, what stands in brackets. Pure.

It parses nothing: whether it is JSON, and whether that is wanted, is the caller's to say. Time grows with the length.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_TEXT = 1_000_000
"""Characters. A part of a longer one might show a fragment as if it were the whole."""

# Each costs a parse and a check, and what is meant stands at the end.
_MOST_TRIED = 20

_OPENING = re.compile(r"[\[{]")
# A string that is not closed on its line ends there. (Never tried again from its middle: that would be quadratic.)
_INSIDE = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|[\[\]{}]')
_DEPTH = {"[": 1, "{": 1, "]": -1, "}": -1}


class Found(NamedTuple):
    start: int
    end: int
    """Of all that belongs to it in the text, a fence's lines included."""
    body: str


def found_in(text: str) -> Iterator[Found]:
    """The text itself, then fenced blocks, then what stands in brackets: the newest first."""
    if len(text) > LONGEST_TEXT:
        return
    yield Found(0, len(text), text.strip())
    yield from reversed(deque(_fenced(text), _MOST_TRIED))
    yield from reversed(deque(_bracketed(text), _MOST_TRIED))


def _fenced(text: str) -> Iterator[Found]:
    opened: tuple[str, int, int] | None = None
    at = 0
    for line in text.split("\n"):
        mark, after = line.strip(), min(at + len(line) + 1, len(text))
        if mark.startswith("```"):
            language = mark.lstrip("`").strip().lower()
            if opened is None or language:
                opened = (language, at, after)
            else:
                if opened[0] in ("", "json"):
                    yield Found(opened[1], after, text[opened[2] : at].strip())
                opened = None
        at = after


def _bracketed(text: str) -> Iterator[Found]:
    """Balanced and outermost: a part of something unfinished is none. Strings count inside brackets only."""
    at = 0
    while opening := _OPENING.search(text, at):
        at, depth = opening.end(), 1
        while depth and (token := _INSIDE.search(text, at)):
            at = token.end()
            depth += _DEPTH.get(token.group(), 0)
        if depth:
            return
        yield Found(opening.start(), at, text[opening.start() : at])
