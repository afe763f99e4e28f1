"""Finds and replaces text in a file. A line break in the search text matches both LF and CRLF. Only methods such as
`str.find` scan the file, so the time is linear in its size.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.answer import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator

# In a file with both kinds of line breaks, the places are replaced one by one. In all other files, one call of
# `str.replace` is enough.
_MOST_MIXED_PLACES = 100_000
# Bounds the memory: twice the largest file that can be edited.
_MOST_CHARACTERS = 20 * 1024 * 1024


class Span(Struct, frozen=True):
    start: int
    end: int


class EditableText:
    """The text of a file. With both LF and CRLF, a text of several lines is searched in a copy that has only LF."""

    def __init__(self, text: str) -> None:
        self.text = text
        crlf, lf = text.count("\r\n"), text.count("\n")
        self.has_crlf = crlf > 0
        self.is_mixed = 0 < crlf < lf

    def places(self, wanted: str) -> Places:
        """Finds the places where `wanted` occurs, without overlaps. An LF in `wanted` also matches CRLF."""
        if "\n" not in wanted or not self.has_crlf or ("\r" in wanted and wanted in self.text):
            return Places(self, wanted, wanted, None)
        with_lf = wanted.replace("\r\n", "\n")
        if self.is_mixed:
            return Places(self, wanted, with_lf, _LfView(self.text))
        return Places(self, wanted, with_lf.replace("\n", "\r\n"), None)

    def line_number(self, position: int) -> int:
        """The number of the line that contains the offset `position`, counted from 1."""
        return self.text.count("\n", 0, position) + 1


class _LfView:
    """A copy of a text with LF for CRLF. `offset` converts an offset in it to one in the original text."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self._line_breaks = array("I", _line_breaks_in_view(text))

    def offset(self, position: int) -> int:
        return position + bisect_left(self._line_breaks, position)


def _line_breaks_in_view(text: str) -> Iterator[int]:
    """Yields the offset of each line break that was CRLF in the original text."""
    removed = 0
    at = text.find("\r\n")
    while at >= 0:
        yield at - removed
        removed += 1
        at = text.find("\r\n", at + 2)


class Places:
    """All places where one text occurs in another."""

    def __init__(self, whole: EditableText, wanted: str, needle: str, view: _LfView | None) -> None:
        """`wanted` is as the model wrote it, `needle` with adapted line breaks, to be searched in `view` or, if that is None,
        the text itself.
        """
        self._whole = whole
        self._wanted = wanted
        self._needle = needle
        self._view = view
        self._hay = whole.text if view is None else view.text
        self.count = self._hay.count(needle)

    def spans(self, most: int | None = None) -> list[Span]:
        return list(islice(self._spans(), most))

    def _spans(self) -> Iterator[Span]:
        size = len(self._needle)
        at = self._hay.find(self._needle)
        while at >= 0:
            yield Span(self._own_offset(at), self._own_offset(at + size))
            at = self._hay.find(self._needle, at + size)

    def _own_offset(self, position: int) -> int:
        return position if self._view is None else self._view.offset(position)

    def overlaps_itself(self) -> bool:
        """Whether a second occurrence begins inside the first one. Then it is unclear which of the two is meant."""
        first = self._hay.find(self._needle)
        size = len(self._needle)
        # Up to the end of a match that begins just before the end of the first.
        return first >= 0 and self._hay.find(self._needle, first + 1, first + 2 * size - 1) >= 0

    def replaced(self, new: str) -> str:
        """The text with `new` at all places, with the line breaks around each, unless the old or the new text contains a CR."""
        size = len(self._whole.text) + self.count * (len(new) + new.count("\n") - len(self._needle))
        if size > _MOST_CHARACTERS:
            raise ToolError(f"the result would be larger than {_MOST_CHARACTERS >> 20} MB; edit with Bash")
        text = self._whole.text
        follows_place = "\n" in new and "\r" not in new and "\r" not in self._wanted
        if self._view is None and not (follows_place and self._whole.is_mixed):
            as_crlf = follows_place and self._whole.has_crlf
            return text.replace(self._needle, new.replace("\n", "\r\n") if as_crlf else new)
        if self.count > _MOST_MIXED_PLACES:
            raise ToolError(
                f"{self.count:,} places are too many at once in a file with both LF and CRLF line breaks; "
                "edit it with Bash, for example sed -i"
            )
        return self._replaced_one_by_one(new, follows_place=follows_place)

    def _replaced_one_by_one(self, new: str, *, follows_place: bool) -> str:
        text = self._whole.text
        line_break = _LineBreakAt(text)
        pieces, position = [], 0
        for span in self._spans():
            as_crlf = follows_place and line_break.is_crlf(span.start)
            pieces += [text[position : span.start], new.replace("\n", "\r\n") if as_crlf else new]
            position = span.end
        return "".join([*pieces, text[position:]])


class _LineBreakAt:
    """The kind of the next line break at an offset in a text with both LF and CRLF, or of the last one if none follows. The
    offsets must increase from call to call.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._last = text.rfind("\n")
        self._next = -1

    def is_crlf(self, position: int) -> bool:
        if self._next < position <= self._last:
            self._next = self._text.find("\n", position)
        at = self._next if position <= self._last else self._last
        return at > 0 and self._text[at - 1] == "\r"
