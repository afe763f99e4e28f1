"""Implements Edit, which replaces a text in a file at one place or at all, and Write, which creates a file or replaces its whole
content. What is not replaced stays the same, byte by byte; a byte order mark and CRLF line breaks of a replaced file are kept.

A line break in the text that Edit looks for matches both LF and CRLF. Only methods such as `str.find` scan the file, so the time is
linear in its size.
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from bisect import bisect_left
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.files.opened_file import open_regular_file
from ralph.tools.content import (
    TextEncoding,
    binary_type,
    image_media_type,
    is_binary,
    marked_encoding,
    possible_encodings,
)
from ralph.tools.path_guard import refuse_kernel_file
from ralph.tools.planned_write import PlannedWrite, digest_of, write_target
from ralph.tools.read import opened_regular
from ralph.values.answer import ToolError, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ralph.tools.tool_context import Arguments, ToolContext

# The limit is low because the bytes, the text and the edited text are in memory at the same time.
_MAX_BYTES = 10 * 1024 * 1024
_LINES_AROUND = 3
_MOST_SNIPPET_LINES = 14
_LONGEST_SNIPPET_LINE = 200
_MOST_LINES_NAMED = 10
_NUMBERED = re.compile(r"\s*\d+\t")
_SHORTEST_TELLING_LINE = 4
# The limits of the search for similar text. Each limit keeps one step of the search below a fraction of a second.
_MOST_CHARACTERS_SQUEEZED = 1_000_000
_MOST_LINES_COMPARED = 2000
_LONGEST_COMPARED_LINE = 100
_LEAST_RATIO = 0.7


def plan_edit(arguments: Arguments, context: ToolContext) -> PlannedWrite:
    shown, old, new = arguments["file_path"], arguments["old_string"], arguments["new_string"]
    _check_strings(old, new)
    path = context.resolve(shown)
    data, before = _content(path, shown, context)
    # The edit applies to the bytes that were read. If the file has changed since then, the write is refused.
    target = replace(write_target(path, shown, context), before=before)
    digest = hashlib.sha256(data).hexdigest()
    context.seen.refuse_changed(target.path, before, digest, shown)
    encoding, text, places = _places(data, old)
    if not places.count:
        hint = hint_for_no_match(text.text, old)
        raise ToolError(f"old_string does not occur in {shown} (0 matches). {hint or 'Read the file again.'}")
    if not arguments.get("replace_all", False):
        _refuse_several(text, places, shown)
    edited = places.replaced(new)
    if edited == text.text:
        raise ToolError("the edit changes nothing: the file already reads so")
    [first] = places.spans(1)
    line = text.line_number(first.start)
    where = f"{places.count} places" if places.count > 1 else f"line {line}"
    snippet = _snippet(edited, first.start, line, new)
    said = ToolOutput(f"Edited {shown} at {where}:\n{snippet}{link_note(before.st_nlink)}")
    return PlannedWrite(target, _encoded(encoding, edited, shown), digest, said, context.seen)


def _check_strings(old: str, new: str) -> None:
    if not old:
        raise ToolError("old_string is empty; to create or replace a whole file use Write")
    if old == new:
        raise ToolError("the edit changes nothing: old_string and new_string are equal")
    try:
        (old + new).encode()
    except UnicodeEncodeError:
        raise ToolError("a string contains half a surrogate pair, which no text file can") from None


def _content(path: Path, shown: str, context: ToolContext) -> tuple[bytes, os.stat_result]:
    refuse_kernel_file(os.path.realpath(path), shown, None)
    with opened_regular(path, shown, context) as (descriptor, real):
        before = os.fstat(descriptor)
        refuse_kernel_file(real, shown, before)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(_MAX_BYTES + 1) or b""
    if len(data) > _MAX_BYTES:
        raise ToolError(
            f"{shown} is larger than {_MAX_BYTES >> 20} MB; edit it with Bash, for example sed -i"
        )
    if marked_encoding(data) is None and is_binary(data):
        kind = image_media_type(data) or binary_type(data)
        raise ToolError(f"{shown} is a binary file: {kind}; Edit changes text only")
    return data, before


def _places(data: bytes, old: str) -> tuple[TextEncoding, EditableText, Places]:
    readings = []
    for encoding in possible_encodings(data):
        text = EditableText(encoding.decode(data))
        readings.append((encoding, text, text.places(old)))
        if readings[-1][2].count:
            return readings[-1]
    return readings[0]


def _refuse_several(text: EditableText, places: Places, shown: str) -> None:
    numbers = [text.line_number(span.start) for span in places.spans(_MOST_LINES_NAMED)]
    if places.count == 1:
        if places.overlaps_itself():
            raise ToolError(
                f"old_string occurs more than once in {shown}, overlapping itself at line {numbers[0]}. "
                "Add lines around it to make it unique."
            )
        return
    more = ", ..." if places.count > _MOST_LINES_NAMED else ""
    raise ToolError(
        f"old_string occurs {places.count} times in {shown}, at lines {', '.join(map(str, numbers))}{more}. "
        "Add lines around it to make it unique, or set replace_all."
    )


def _encoded(encoding: TextEncoding, edited: str, shown: str) -> bytes:
    try:
        return encoding.encode(edited)
    except UnicodeEncodeError as error:
        character = edited[error.start]
        raise ToolError(
            f"{shown} is encoded as {encoding.codec}, which has no {character!r}; nothing was written"
        ) from None


def _snippet(edited: str, start: int, line: int, new: str) -> str:
    """The lines of `new`, which begins at the offset `start` in line `line`, numbered, with some lines above and below."""
    above = min(line - 1, _LINES_AROUND)
    lines = _lines_around(edited, start, above, above + new.count("\n") + 1 + _LINES_AROUND)
    cut = (text[:_LONGEST_SNIPPET_LINE].removesuffix("\r") for text in lines)
    numbered = [f"{number:>6}\t{text}" for number, text in enumerate(cut, line - above)]
    if len(numbered) > _MOST_SNIPPET_LINES:
        numbered[_MOST_SNIPPET_LINES // 2 : -(_MOST_SNIPPET_LINES // 2)] = ["   ..."]
    return "\n".join(numbered)


def _lines_around(text: str, position: int, before: int, count: int) -> list[str]:
    """Up to `count` lines, from `before` lines above the offset on. The text is not split as a whole, which would be slow."""
    begin = text.rfind("\n", 0, position) + 1
    for _ in range(before):
        begin = text.rfind("\n", 0, begin - 1) + 1
    end = begin - 1
    for _ in range(count):
        end = text.find("\n", end + 1)
        if end < 0:
            rest = text[begin:]
            return rest.removesuffix("\n").split("\n") if rest else []
    return text[begin:end].split("\n")


def hint_for_no_match(text: str, wanted: str) -> str:
    """A sentence that helps the model to find the text that it meant. Empty if no text in the file is similar."""
    beginning = text[:_MOST_CHARACTERS_SQUEEZED].split("\n")
    wanted_lines = wanted.strip("\n")[:_MOST_CHARACTERS_SQUEEZED].split("\n")
    at = _first_line_of(beginning, wanted_lines)
    if at:
        return f"It would match at line {at} if white space were ignored: copy the indentation exactly."
    if all(_NUMBERED.match(line) for line in wanted_lines):
        return "Leave out the line numbers that Read puts before each line."
    telling = max(wanted_lines, key=lambda line: len(line.strip())).strip()
    if len(telling) < _SHORTEST_TELLING_LINE:
        return ""
    position = text.find(telling)
    if position >= 0:
        at = text.count("\n", 0, position) + 1
        return f"Its longest line is at line {at}, but the lines around it differ."
    compared = [line.strip()[:_LONGEST_COMPARED_LINE] for line in beginning[:_MOST_LINES_COMPARED]]
    similar = get_close_matches(telling[:_LONGEST_COMPARED_LINE], dict.fromkeys(compared), 1, _LEAST_RATIO)
    return f"The most similar line is {compared.index(similar[0]) + 1}: {similar[0]}" if similar else ""


def _first_line_of(lines: list[str], wanted_lines: list[str]) -> int:
    """Searches for `wanted_lines`, and ignores white space."""
    squeezed, have = _squeezed(wanted_lines), _squeezed(lines)
    if not squeezed.strip("\n"):
        return 0
    at = have.find(squeezed)
    return have.count("\n", 0, at) + 1 if at >= 0 else 0


def _squeezed(lines: list[str]) -> str:
    """The lines without white space in one text for a search, with a line break before and after each."""
    return "\n".join(["", *("".join(line.split()) for line in lines), ""])


# In a file with both kinds of line breaks, the places are replaced one by one. In all other files, one call of
# Whoever uses CRLF uses it from the beginning.
_LOOKED_AT_BYTES = 1024 * 1024


def plan_write(arguments: Arguments, context: ToolContext) -> PlannedWrite | ToolOutput:
    shown, content = arguments["file_path"], arguments["content"]
    target = write_target(context.resolve(shown), shown, context)
    before = target.before
    digest = digest_of(target.path) if before is not None else None
    try:
        data, kept = _as_before(target.path, content) if before is not None else (content.encode(), "")
    except UnicodeEncodeError:
        raise ToolError("the content contains half a surrogate pair, which no text file can") from None
    lines = content.count("\n") + (not content.endswith("\n") and bool(content))
    size = f"{lines:,} line{'' if lines == 1 else 's'}, {len(data):,} bytes"
    if before is None:
        said = f"Created {shown} ({size})"
    else:
        had = f"it had {before.st_size:,} bytes"
        said = f"Replaced {shown} ({size}; {had}){kept}{link_note(before.st_nlink)}"
    planned = PlannedWrite(target, data, digest, ToolOutput(said), context.seen)
    if digest is not None and digest == planned.change.after:
        return ToolOutput(f"{shown} already had exactly this content; nothing was written")
    if before is not None:
        context.seen.refuse_changed(target.path, before, digest, shown)
    return planned


def _as_before(path: Path, content: str) -> tuple[bytes, str]:
    """The content's bytes with the byte order mark and, if all are CRLF, the line breaks of the file; and a note about that."""
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            start = file.read(_LOOKED_AT_BYTES)
    except OSError:  # a file that cannot be read has no form to keep
        start = b""
    mark, codec = marked_encoding(start) or (b"", "utf-8")
    old = EditableText(start[len(mark) :].decode(codec, "replace"))
    text = given = content.removeprefix("\ufeff") if mark else content
    kept = [f"byte order mark ({codec.upper()})"] if mark else []
    if old.has_crlf and not old.is_mixed and (mark or not is_binary(start)):
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        if text != given:
            kept.append("CRLF line breaks")
    note = f"\n[kept of the old file: {' and '.join(kept)}; Bash can change that]" if kept else ""
    return TextEncoding(mark, codec).encode(text), note


def link_note(links: int) -> str:
    return f"\n[its {links - 1} other hard link(s) keep the old content]" if links > 1 else ""


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
