"""What Write and Edit are going to do, worked out before anything is done: one file's new content, and from what.

Between the plan and its execution the intent goes into the journal; a file that changes meanwhile is left alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ralph.core.tool_calls import FileChange, ToolOutput
from ralph.effects.atomic_write import remove_leftovers

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.effects.tools.seen_files import SeenFiles
    from ralph.effects.tools.write_target import WriteTarget


@dataclass(frozen=True)
class PlannedWrite:
    target: WriteTarget
    data: bytes
    digest_before: str | None
    output: ToolOutput
    """What the model is told once it is done."""
    seen: SeenFiles

    @cached_property
    def change(self) -> FileChange:
        return FileChange(str(self.target.path), self.digest_before, hashlib.sha256(self.data).hexdigest())

    def execute(self) -> ToolOutput:
        """Raises ToolError, the old file intact."""
        after = self.target.replace(self.data)
        self.seen.was_written(self.target.path, after, self.change.after)
        return self.output


def settle(change: FileChange, target: Path) -> ToolOutput | None:
    """What came of a write that may have been done: None when it was not, and the file is as it was before.

    The new content that may still lie beside the file, without its name, is removed.
    """
    remove_leftovers(target.parent)
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
