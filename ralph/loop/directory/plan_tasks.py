"""Counts the tasks of a plan, a Markdown file with boxes (`- [ ]`, `- [x]`), for `ralph loop --plan`. What stands in a code
block or in a comment is an example and no task. Nothing else in the file is interpreted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ralph.prompt.named_file import read_named_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MOST_BYTES = 4 * 1024 * 1024
_QUOTE = re.compile(r" {0,3}(?:> ?)+")
_MARKER = re.compile(r"(?:[-*+]|\d{1,9}[.)])(?: {1,4}(?! )| |$)")
_BOX = re.compile(r"\[([ xX])\](?:\s|$)")
_FENCE = re.compile(r"`{3,}(?=[^`]*$)|~{3,}")
_BEGINS_BLOCK = re.compile(rf"{_MARKER.pattern}|`{{3}}|~{{3}}|#")
"""Other lines without an empty line before them belong to the text above, also if they are indented less."""
_CODE_INDENT = 4
"""A line that is indented by this number of columns or more is code (CommonMark, "Indented code blocks")."""


def open_tasks(text: str) -> int | None:
    """The number of boxes in a Markdown text that are not ticked. None if the text has no box at all.

    The blocks are those of CommonMark, with one exception: an item that is indented too deep without an empty line
    before it, which CommonMark would join to the text above, is a task, because a reader takes it for one.
    """
    ticked, opened = 0, 0
    items: list[int] = []
    """The columns at which the contents of the list items around the line begin."""
    fence, fence_column, fence_quote = "", 0, ""
    is_after_gap, is_comment = True, False
    for raw in text.expandtabs(_CODE_INDENT).splitlines():
        quote = _QUOTE.match(raw)
        quoted = "" if quote is None else quote.group().replace(" ", "")
        line = raw if quote is None else raw[quote.end() :]
        rest = line.lstrip(" ")
        column = len(line) - len(rest)
        if fence and (len(quoted) < len(fence_quote) or (rest and column < fence_column)):
            fence = ""  # what the code block was in has ended
        if fence:
            closing = rest.rstrip() if quoted == fence_quote else ""
            if len(closing) >= len(fence) and set(closing) == {fence[0]}:
                fence, is_after_gap = "", True
            continue
        if is_comment:
            is_comment = "-->" not in rest
            continue
        if not rest:
            is_after_gap = True
            continue
        while items and column < items[-1] and (is_after_gap or _BEGINS_BLOCK.match(rest)):
            items.pop()
        if is_after_gap and column - (items[-1] if items else 0) >= _CODE_INDENT:
            continue  # an indented code block, which also ends only with a line that is indented less
        is_after_gap = False
        while (marker := _MARKER.match(rest)) is not None:
            column += marker.end()
            rest = rest[marker.end() :]
            items.append(column)
        if items and (box := _BOX.match(rest)) is not None:
            ticked, opened = ticked + (box[1] != " "), opened + (box[1] == " ")
        if (found := _FENCE.match(rest)) is not None:
            fence, fence_column, fence_quote = found.group(), items[-1] if items else 0, quoted
        is_comment = rest.startswith("<!--") and "-->" not in rest
    return opened if ticked or opened else None


def read_open_tasks(path: Path, directories: Sequence[str | Path]) -> int | None:
    """As `open_tasks`, of a file. `directories` are as in `open_named_file`: no link in their repositories may lead out of
    them. None also if the file is not UTF-8. Raises OSError if it cannot be read.
    """
    data = read_named_file(str(path), directories, _MOST_BYTES, takes_pipe=False)
    try:
        return open_tasks(data.decode())
    except UnicodeDecodeError:
        return None
