"""Finds the JSON that a model meant in its text: all of the text, or its last fenced block. Pure.

Brackets in the middle of prose are an example or a quotation, and ignored. It parses nothing: the caller decides
whether it is JSON, and whether that is wanted. Time grows with the length.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_TEXT = 1_000_000
"""The most characters: a part of a longer text might show a fragment as if it were the whole."""


class Found(NamedTuple):
    body: str
    around: str
    """The text around it; empty: there is none."""


def found_in(text: str) -> Iterator[Found]:
    if len(text) > LONGEST_TEXT:
        return
    yield Found(text.strip(), "")
    yield from deque(_fenced(text), maxlen=1)


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
                    yield Found(text[opened[2] : at].strip(), _joined(text[: opened[1]], text[after:]))
                opened = None
        at = after


def _joined(before: str, after: str) -> str:
    return "\n".join(filter(None, (before.strip(), after.strip())))
