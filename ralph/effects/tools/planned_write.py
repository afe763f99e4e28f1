"""What Write and Edit are going to do, worked out before anything is done: one file's new content, and from what.

Between the plan and its execution the intent goes into the journal; a file that changes meanwhile is left alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ralph.core.tool_calls import FileChange, ToolOutput
from ralph.effects.tools.atomic_write import write_atomically
from ralph.effects.tools.tool_error import ToolError

if TYPE_CHECKING:
    import os
    from pathlib import Path


@dataclass(frozen=True)
class PlannedWrite:
    target: Path
    """Absolute, links followed."""
    data: bytes
    before: os.stat_result | None
    """None: the file does not exist yet."""
    digest_before: str | None
    shown: str
    output: ToolOutput
    """What the model is told once it is done."""

    @property
    def change(self) -> FileChange:
        return FileChange(str(self.target), self.digest_before, hashlib.sha256(self.data).hexdigest())

    def execute(self) -> ToolOutput:
        """Raises ToolError, the old file intact."""
        if _signature(self.before) != _signature(_stat(self.target)):
            raise ToolError(f"{self.shown} changed while this call was prepared; read it again")
        write_atomically(self.target, self.data, self.before, self.shown)
        return self.output


def settle(change: FileChange, target: Path) -> ToolOutput | None:
    """What came of a write that may have been done: None when it was not, and the file is as it was before."""
    digest = digest_of(target)
    if digest == change.after:
        return ToolOutput(f"Done before the run was interrupted: {target} has the new content.")
    if digest == change.before:
        return None
    return ToolOutput(
        f"This call was interrupted, and {target} now has neither the old content nor the new. Read it before you "
        "repeat the call.",
        is_error=True,
    )


def digest_of(path: Path) -> str | None:
    """SHA-256 of the content, in hex; None where there is no file, or none that can be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _signature(stat: os.stat_result | None) -> tuple[int, int, int] | None:
    return None if stat is None else (stat.st_ino, stat.st_size, stat.st_mtime_ns)
