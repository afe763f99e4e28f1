"""Finds and replaces text in a file. A line break in the search text matches LF, or CRLF where the file has that. Only methods
such as `str.find` scan the file, so the time is linear in its size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.values.answer import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Bounds the memory: twice the largest file that can be edited.
_MOST_CHARACTERS = 20 * 1024 * 1024


def has_only_crlf(text: str) -> bool:
    """Whether all line breaks of a text are CRLF, and there is one."""
    return 0 < text.count("\r\n") == text.count("\n")


class Places:
    """All places, without overlaps, where one text occurs in another."""

    def __init__(self, text: str, wanted: str) -> None:
        """`wanted` is the text as the model wrote it. Raises ToolError if it is unclear which line breaks are meant."""
        self._text = text
        self._needle = wanted
        is_crlf = has_only_crlf(text)
        if "\n" in wanted and "\r\n" in text and not ("\r" in wanted and wanted in text):
            with_lf = wanted.replace("\r\n", "\n")
            self._needle = with_lf.replace("\n", "\r\n")
            if not is_crlf:
                if with_lf.startswith("\n"):  # it would be found behind the CR of a CRLF
                    raise ToolError(
                        "the file has both LF and CRLF line breaks: begin old_string with the text of a line"
                    )
                if with_lf in text and self._needle in text:
                    raise ToolError("old_string occurs with LF and with CRLF line breaks; edit with Bash")
                self._needle = self._needle if self._needle in text else with_lf
        self.count = text.count(self._needle)
        self._has_crlf = is_crlf or "\r\n" in self._needle
        self._keeps_breaks = "\r" in wanted

    def starts(self) -> Iterator[int]:
        at = self._text.find(self._needle)
        while at >= 0:
            yield at
            at = self._text.find(self._needle, at + len(self._needle))

    def overlaps_itself(self) -> bool:
        """Whether a second occurrence begins inside the first one. Then it is unclear which of the two is meant."""
        first = self._text.find(self._needle)
        size = len(self._needle)
        # Up to the end of a match that begins just before the end of the first.
        return first >= 0 and self._text.find(self._needle, first + 1, first + 2 * size - 1) >= 0

    def replaced(self, new: str) -> str:
        """The text with `new` at all places. An LF in `new` becomes a CRLF if the file has no other line breaks, or the replaced
        text had them, unless the old or the new text contains a CR.
        """
        size = len(self._text) + self.count * (len(new) + new.count("\n") - len(self._needle))
        if size > _MOST_CHARACTERS:
            raise ToolError(f"the result would be larger than {_MOST_CHARACTERS >> 20} MB; edit with Bash")
        if self._has_crlf and "\r" not in new and not self._keeps_breaks:
            new = new.replace("\n", "\r\n")
        return self._text.replace(self._needle, new)
