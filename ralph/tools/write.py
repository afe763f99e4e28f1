"""Implements Write, which creates a file or replaces its whole content atomically."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.tools.files.planned_write import PlannedWrite, digest_of
from ralph.tools.files.write_target import write_target
from ralph.values.tool_calls import ToolError, ToolOutput

if TYPE_CHECKING:
    from ralph.tools.tool_room import Arguments, ToolRoom


def plan(arguments: Arguments, room: ToolRoom) -> PlannedWrite | ToolOutput:
    shown = arguments["file_path"]
    try:
        data = arguments["content"].encode()
    except UnicodeEncodeError:
        raise ToolError("the content holds half a surrogate pair, which no text file can") from None
    target = write_target(room.resolve(shown), shown, room)
    before = target.before
    digest = digest_of(target.path) if before is not None else None
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    size = f"{lines:,} line{'' if lines == 1 else 's'}, {len(data):,} bytes"
    if before is None:
        said = f"Created {shown} ({size})"
    else:
        had = f"it had {before.st_size:,} bytes"
        said = f"Replaced {shown} ({size}; {had}){link_note(before.st_nlink)}"
    planned = PlannedWrite(target, data, digest, ToolOutput(said), room.seen)
    if digest is not None and digest == planned.change.after:
        return ToolOutput(f"{shown} already had exactly this content; nothing was written")
    if before is not None:
        room.seen.refuse_changed(target.path, before, digest, shown)
    return planned


def link_note(links: int) -> str:
    return f"\n[its {links - 1} other hard link(s) keep the old content]" if links > 1 else ""
