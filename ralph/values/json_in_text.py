"""Finds the parts of a model's text that may be JSON: all of the text, and its last fenced block. Pure.

Brackets in the middle of prose are an example or a quotation, and ignored. This module parses nothing: the caller
decides whether a part is the JSON that it needs. The time is linear in the length of the text.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_TEXT = 1_000_000
"""The most characters of a text that is searched: in a part of a longer text, a fragment could pass for the whole."""


class Found(NamedTuple):
    body: str
    around: str
    """The text outside `body`; empty: there is none."""


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
