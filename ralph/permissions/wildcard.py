"""Compares patterns with texts that have unknown parts. A shell command contains parts that are known only at run
time, such as `$x`. So there are two questions: whether the text matches the pattern in every case, and whether it may
match.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ANY = None
"""In a pattern, a wildcard. In a text, an unknown part. It stands for any text, including the empty text."""

NAME = ""
"""An unknown part of a text that contains no slash, such as `*` in a file name. At the beginning of a file name, this
part does not begin with a dot."""

Element = str | None
"""One character, `ANY` or `NAME`."""

_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def expanded(text: str, most: int) -> tuple[list[str], list[str]]:
    """Expands braces such as `{a,b}`, and no range such as `{1..3}`. Returns the texts, and what is left beyond `most` texts."""
    done: list[str] = []
    todo = [text]
    while todo and len(done) + len(todo) <= most:
        one = todo.pop()
        braces = _BRACES.search(one)
        if braces is None:
            done.append(one)
        else:
            todo += [one[: braces.start()] + each + one[braces.end() :] for each in braces[1].split(",")]
    return done, todo


class Wildcard:
    """A pattern with wildcards. A comparison takes time in proportion to the text, whatever the pattern is."""

    def __init__(self, elements: Iterable[Element]) -> None:
        known = list(elements)
        kept = [one for at, one in enumerate(known) if one is not ANY or at == 0 or known[at - 1] is not ANY]
        self._end = 1 << len(kept)
        self._wild = 0
        self._literal: dict[Element, int] = {}
        for at, one in enumerate(kept):
            if one is ANY:
                self._wild |= 1 << at
            else:
                self._literal[one] = self._literal.get(one, 0) | 1 << at

    def surely_matches(self, text: Sequence[Element]) -> bool:
        """Whether the text matches for all values of its unknown parts."""
        # Each bit of `places` is a place in the pattern that the text so far can lead to.
        places = self._past_wildcards(1)
        for one in text:
            places = self._over(one, places)
            if not places:
                return False
        return bool(places & self._end)

    def may_match(self, text: Sequence[Element]) -> bool:
        """Whether the text matches for at least one value of its unknown parts."""
        places = self._past_wildcards(1)
        before: Element = "/"
        for one in text:
            if one is ANY:
                # An unknown text can lead from the first of the places to every later one.
                places = (self._end << 1) - (places & -places)
            elif one == NAME:
                places = self._through_name(places, begins=before == "/")
            else:
                places = self._over(one, places)
            if not places:
                return False
            before = one
        return bool(places & self._end)

    def _over(self, one: Element, places: int) -> int:
        """The places (bits) that can be reached from `places` over one element that only wildcards and an equal one match."""
        return self._past_wildcards((places & self._wild) | (places & self._literal.get(one, 0)) << 1)

    def _through_name(self, places: int, *, begins: bool) -> int:
        """The places (bits) that can be reached from `places` over an unknown text without a slash. `begins`: it begins a file name."""
        closed = self._literal.get("/", 0)
        first = closed | (self._literal.get(".", 0) if begins else 0)
        reached = places | self._past_wildcards((places & ~first & (self._end - 1)) << 1)
        while True:
            further = reached | self._past_wildcards((reached & ~places & ~closed & (self._end - 1)) << 1)
            if further == reached:
                return reached
            reached = further

    def _past_wildcards(self, places: int) -> int:
        return places | (places & self._wild) << 1
