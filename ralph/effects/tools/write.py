"""Write: a whole file, replaced or created atomically."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.core.tool_calls import ToolOutput
from ralph.effects.tools.atomic_write import real_target, write_atomically
from ralph.effects.tools.tool_error import ToolError

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.effects.tools.tool_room import Arguments, ToolRoom


def run(arguments: Arguments, room: ToolRoom) -> ToolOutput:
    shown = arguments["file_path"]
    try:
        data = arguments["content"].encode()
    except UnicodeEncodeError:
        raise ToolError("the content holds half a surrogate pair, which no text file can") from None
    target, before = real_target(room.resolve(shown), shown)
    if before is not None and before.st_size == len(data) and _holds(target, data):
        return ToolOutput(f"{shown} already had exactly this content; nothing was written")
    write_atomically(target, data, before, shown)
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    size = f"{lines:,} line{'' if lines == 1 else 's'}, {len(data):,} bytes"
    if before is None:
        return ToolOutput(f"Created {shown} ({size})")
    return ToolOutput(
        f"Replaced {shown} ({size}; it had {before.st_size:,} bytes){link_note(before.st_nlink)}"
    )


def link_note(links: int) -> str:
    return f"\n[its {links - 1} other hard link(s) keep the old content]" if links > 1 else ""


def _holds(target: Path, data: bytes) -> bool:
    try:
        return target.read_bytes() == data
    except OSError:  # it may be written, but not read
        return False
