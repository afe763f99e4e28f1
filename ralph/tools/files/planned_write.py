"""A planned write to one file, for a call of Write or Edit. The plan has the new content and the digest of the old one.
The journal records the plan before the file is written. If the file has changed since then, ralph does not write it.

The file is always inside one of the roots, even if another process changes the path meanwhile: the directory is opened
below the root, and all further checks and changes use the open directory and not the path.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.files.atomic_write import remove_leftovers, replace_at
from ralph.machine.files.opened_file import open_regular_file, opened_path
from ralph.tools.files.beneath import open_parent
from ralph.tools.files.file_type import kind_of
from ralph.tools.files.path_guard import refuse_kernel_file
from ralph.tools.files.seen_files import signature_of
from ralph.values.answer import FileChange, ToolError, ToolOutput, os_error_text

if TYPE_CHECKING:
    from ralph.tools.files.path_guard import PathGuard
    from ralph.tools.files.seen_files import SeenFiles
    from ralph.tools.tool_context import Root, ToolContext

_DIRECTORY_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class WriteTarget(Struct, frozen=True):
    path: Path
    root: Root
    before: os.stat_result | None
    shown: str
    guard: PathGuard

    def replace(self, data: bytes) -> os.stat_result:
        """Writes the file and returns its new status. If this fails, or if the file differs from `before`, raises
        ToolError and leaves the old file unchanged.
        """
        relative = str(self.path.relative_to(self.root.path))
        try:
            directory, name = open_parent(self.root.descriptor, relative, make=True)
            try:
                self._refuse_protected(directory, name)
                self._refuse_changed(directory, name)
                replace_at(directory, name, data, self.before)
                return os.stat(name, dir_fd=directory, follow_symlinks=False)
            finally:
                os.close(directory)
        except OSError as error:
            raise ToolError(f"{self.shown} was not written: {self._reason(error)}") from None

    def _refuse_protected(self, directory: int, name: str) -> None:
        where = opened_path(directory, str(self.path.parent))
        if where is None:
            raise ToolError(f"{self.shown} was not written: where it really is cannot be determined")
        self.guard.refuse_written(os.path.join(where, name), self.shown)  # noqa: PTH118 - strings throughout

    def _refuse_changed(self, directory: int, name: str) -> None:
        try:
            now = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            is_same = self.before is None
        else:
            is_same = self.before is not None and signature_of(now) == signature_of(self.before)
        if not is_same:
            raise ToolError(f"{self.shown} changed while this call was prepared; read it again")

    def _reason(self, error: OSError) -> str:
        if error.errno == errno.EXDEV:
            return f"a link on its way leads out of {self.root.path}"
        where = f" in {self.path.parent}" if error.errno in _DIRECTORY_ERRORS else ""
        return f"{os_error_text(error)}{where}"


def write_target(path: Path, shown: str, context: ToolContext) -> WriteTarget:
    """Finds the target of a write. Raises ToolError if the target is not a regular file, is outside all roots, is
    protected or is not writable.
    """
    target = Path(os.path.realpath(path))
    before: os.stat_result | None = None
    try:
        before = target.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ToolError(f"{shown}: {os_error_text(error)}") from None
    refuse_kernel_file(str(target), shown, before)
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise ToolError(f"{shown} is {kind_of(before.st_mode)}; only regular files can be written")
    root = context.roots.root_of(target, shown)
    context.guard.refuse_written(str(target), shown)
    if before is not None and not os.access(target, os.W_OK):
        raise ToolError(f"{shown} is read-only")
    return WriteTarget(target, root, before, shown, context.guard)


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
