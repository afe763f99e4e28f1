"""Finds the parts of a model's text that may be JSON: the whole text, and its last fenced block. No I/O happens here.

A fenced block is a Markdown code block between lines of three backticks. Its language must be `json` or missing. JSON
within ordinary sentences is ignored, because it may be an example or a quotation. This module does not parse JSON:
the caller must check whether a part is valid. The search takes linear time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_TEXT = 1_000_000
"""The maximum length of a text that is searched, in characters. A longer text is not searched at all, because a part
of a JSON value could be taken for the whole value."""


class Found(Struct, frozen=True):
    body: str
    around: str
    """The rest of the text, outside `body`. It may be empty."""


def found_in(text: str) -> Iterator[Found]:
    if len(text) > LONGEST_TEXT:
        return
    yield Found(text.strip(), "")
    yield from _last_fenced(text)


def _last_fenced(text: str) -> Iterator[Found]:
    opened: tuple[str, int, int] | None = None
    last: tuple[int, int, int, int] | None = None
    at = 0
    for line in text.split("\n"):
        mark, after = line.strip(), min(at + len(line) + 1, len(text))
        if mark.startswith("```"):
            language = mark.lstrip("`").strip().lower()
            if opened is None or language:
                opened = (language, at, after)
            else:
                if opened[0] in ("", "json"):
                    last = (opened[1], opened[2], at, after)
                opened = None
        at = after
    if last is not None:
        begin, body, end, rest = last
        yield Found(text[body:end].strip(), _joined(text[:begin], text[rest:]))


def _joined(before: str, after: str) -> str:
    return "\n".join(filter(None, (before.strip(), after.strip())))
