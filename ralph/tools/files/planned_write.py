"""A planned write to one file, for a call of Write or Edit. The plan contains the new content and the digest of the
old content. The journal records the plan before the file is written. If the file has changed since it was planned,
ralph does not write it.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.atomic_write import remove_leftovers
from ralph.machine.opened_file import open_regular_file
from ralph.tools.files.seen_files import signature_of
from ralph.values.tool_calls import FileChange, ToolOutput

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.tools.files.seen_files import SeenFiles
    from ralph.tools.files.write_target import WriteTarget


_MOST_BYTES_HASHED = 64_000_000  # more than Edit can make; a sparse file may have terabytes


class PlannedWrite(Struct, frozen=True, dict=True):
    target: WriteTarget
    data: bytes
    digest_before: str | None
    output: ToolOutput
    seen: SeenFiles

    @cached_property
    def change(self) -> FileChange:
        return FileChange(str(self.target.path), self.digest_before, hashlib.sha256(self.data).hexdigest())

    def execute(self) -> ToolOutput:
        """Writes the file. If this fails, raises ToolError and leaves the old file unchanged."""
        after = self.target.replace(self.data)
        seen = self.seen.was_written(self.target.path, after, self.change.after)
        return replace(self.output, seen=seen)


def settle(change: FileChange, target: Path, seen: SeenFiles) -> ToolOutput | None:
    """Finds out whether an earlier process completed a planned write before it died. Returns the result for the
    model. Returns None if the file still has its old content, so that the write can be repeated. Removes temporary
    files that the earlier process left.
    """
    remove_leftovers(target.parent)
    digest = digest_of(target)
    if digest == change.after:
        said = f"Done before the run was interrupted: {target} has the new content."
        return ToolOutput(said, seen=seen.was_written(target, None, change.after))
    if digest == change.before:
        return None
    return ToolOutput(
        f"This call was interrupted, and {target} now has neither the old content nor the new. Read it before you "
        "repeat the call.",
        is_error=True,
    )


def digest_of(path: Path) -> str | None:
    """The SHA-256 digest of a file's content in hexadecimal, or the signature of a very large file as text. None if the path
    leads to no regular file or the file cannot be read. Does not block on a named pipe.
    """
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            now = os.fstat(file.fileno())
            if now.st_size > _MOST_BYTES_HASHED:
                return ":".join(map(str, signature_of(now)))
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
