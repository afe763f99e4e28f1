"""Implements Edit, which replaces a text in a file by another text. The model can ask for one place or for all
places. The rest of the file stays the same, byte by byte.
"""

from __future__ import annotations

import hashlib
import os
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.tools.files.file_type import (
    TextEncoding,
    binary_type,
    image_media_type,
    is_binary,
    marked_encoding,
    possible_encodings,
)
from ralph.tools.files.path_guard import refuse_kernel_file
from ralph.tools.files.planned_write import PlannedWrite, write_target
from ralph.tools.files.text_match import EditableText, Places
from ralph.tools.read import opened_regular
from ralph.tools.write import link_note
from ralph.values.answer import ToolError, ToolOutput

if TYPE_CHECKING:
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


def plan(arguments: Arguments, context: ToolContext) -> PlannedWrite:
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
