"""Edit: replaces exactly one place of a file, or all on request. Every byte outside stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.core.tool_calls import ToolOutput
from ralph.effects.tools.atomic_write import real_target, write_atomically
from ralph.effects.tools.read import open_regular
from ralph.effects.tools.text_encoding import TextEncoding, possible_encodings
from ralph.effects.tools.text_match import (
    Span,
    find_spans,
    has_overlapping_span,
    hint_for_no_match,
    line_number,
    replacement_at,
)
from ralph.effects.tools.tool_error import ToolError, os_error_text
from ralph.effects.tools.write import link_note

if TYPE_CHECKING:
    from ralph.effects.tools.tool_room import Arguments, ToolRoom

# Text, bytes and every match are in memory together.
_MAX_BYTES = 10 * 1024 * 1024
_LINES_AROUND = 3
_MOST_SNIPPET_LINES = 14
_LONGEST_SNIPPET_LINE = 200
_MOST_LINES_NAMED = 10


def run(arguments: Arguments, room: ToolRoom) -> ToolOutput:
    shown, old, new = arguments["file_path"], arguments["old_string"], arguments["new_string"]
    _check_strings(old, new)
    path = room.resolve(shown)
    data = _content(open_regular(path, shown), shown)
    target, before = real_target(path, shown)
    encoding, text, spans = _places(data, old)
    if not spans:
        hint = hint_for_no_match(text, old)
        raise ToolError(f"old_string does not occur in {shown} (0 matches). {hint or 'Read the file again.'}")
    if not arguments.get("replace_all", False):
        _refuse_several(text, old, spans, shown)
    edited = _edited(text, spans, old, new)
    if edited == text:
        raise ToolError("the edit changes nothing: the file already reads so")
    write_atomically(target, _encoded(encoding, edited, shown), before, shown)
    count = f"{len(spans)} places" if len(spans) > 1 else f"line {line_number(text, spans[0].start)}"
    note = link_note(before.st_nlink) if before is not None else ""
    return ToolOutput(f"Edited {shown} at {count}:\n{_snippet(edited, text, spans, new)}{note}")


def _check_strings(old: str, new: str) -> None:
    if not old:
        raise ToolError("old_string is empty; to create or replace a whole file use Write")
    if old == new:
        raise ToolError("the edit changes nothing: old_string and new_string are equal")
    try:
        (old + new).encode()
    except UnicodeEncodeError:
        raise ToolError("a string holds half a surrogate pair, which no text file can") from None


def _content(descriptor: int, shown: str) -> bytes:
    try:
        with open(descriptor, "rb") as file:
            data = file.read(_MAX_BYTES + 1) or b""
    except OSError as error:
        raise ToolError(f"{shown}: {os_error_text(error)}") from None
    if len(data) > _MAX_BYTES:
        raise ToolError(
            f"{shown} is larger than {_MAX_BYTES >> 20} MB; edit it with Bash, for example sed -i"
        )
    return data


def _places(data: bytes, old: str) -> tuple[TextEncoding, str, list[Span]]:
    """The first reading of the bytes in which `old` occurs; else the likeliest, with no place."""
    readings = [(encoding, encoding.decode(data)) for encoding in possible_encodings(data)]
    for encoding, text in readings:
        spans = find_spans(text, old)
        if spans:
            return encoding, text, spans
    return *readings[0], []


def _refuse_several(text: str, old: str, spans: list[Span], shown: str) -> None:
    numbers = [line_number(text, span.start) for span in spans[:_MOST_LINES_NAMED]]
    if len(spans) == 1:
        if has_overlapping_span(text, old, spans[0]):
            raise ToolError(
                f"old_string occurs more than once in {shown}, overlapping itself at line {numbers[0]}. "
                "Add lines around it to make it unique."
            )
        return
    more = ", ..." if len(spans) > _MOST_LINES_NAMED else ""
    raise ToolError(
        f"old_string occurs {len(spans)} times in {shown}, at lines {', '.join(map(str, numbers))}{more}. "
        "Add lines around it to make it unique, or set replace_all."
    )


def _edited(text: str, spans: list[Span], old: str, new: str) -> str:
    pieces, position = [], 0
    for span in spans:
        pieces += [text[position : span.start], replacement_at(text, span, old, new)]
        position = span.end
    return "".join([*pieces, text[position:]])


def _encoded(encoding: TextEncoding, edited: str, shown: str) -> bytes:
    try:
        return encoding.encode(edited)
    except UnicodeEncodeError as error:
        character = edited[error.start]
        raise ToolError(
            f"{shown} is encoded as {encoding.codec}, which has no {character!r}; nothing was written"
        ) from None


def _snippet(edited: str, text: str, spans: list[Span], new: str) -> str:
    """The first changed place, numbered, with lines around."""
    first = line_number(text, spans[0].start)
    begin = max(first - _LINES_AROUND, 1)
    end = first + new.count("\n") + _LINES_AROUND
    lines = edited.split("\n")
    if not lines[-1]:
        lines.pop()
    numbered = [
        f"{number:>6}\t{line[:_LONGEST_SNIPPET_LINE].removesuffix(chr(13))}"
        for number, line in enumerate(lines[begin - 1 : end], begin)
    ]
    if len(numbered) > _MOST_SNIPPET_LINES:
        half = _MOST_SNIPPET_LINES // 2
        numbered = [*numbered[:half], "   ...", *numbered[-half:]]
    return "\n".join(numbered)
