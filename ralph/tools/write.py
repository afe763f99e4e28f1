"""Implements Write, which creates a file or replaces its whole content atomically. A byte order mark and CRLF line
breaks of the replaced file are kept.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import open_regular_file
from ralph.tools.files.file_type import TextEncoding, is_binary, marked_encoding
from ralph.tools.files.planned_write import PlannedWrite, digest_of, write_target
from ralph.tools.files.text_match import EditableText
from ralph.values.answer import ToolError, ToolOutput

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.tools.tool_context import Arguments, ToolContext

# Whoever uses CRLF uses it from the beginning.
_LOOKED_AT_BYTES = 1024 * 1024


def plan(arguments: Arguments, context: ToolContext) -> PlannedWrite | ToolOutput:
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
