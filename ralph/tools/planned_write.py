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
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.files.opened_file import (
    closed_after,
    open_regular_file,
    opened_path,
    remove_leftovers,
    replace_at,
    sync_directory,
)
from ralph.machine.files.paths import HELD_DIRECTORY, is_within_any
from ralph.machine.own_process import MOST_LINKS
from ralph.tools.content import kind_of
from ralph.tools.path_guard import PathGuard, refuse_kernel_file
from ralph.tools.tool_context import SeenFiles, signature_of
from ralph.values.answer import FileChange, ToolError, ToolOutput, os_error_text, tool_errors

if TYPE_CHECKING:
    from ralph.tools.tool_context import Root, ToolContext

_DIRECTORY_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class WriteTarget(Struct, frozen=True):
    path: Path
    root: Root
    before: os.stat_result | None
    shown: str
    guard: PathGuard

    def replace(self, data: bytes) -> os.stat_result:
        """Writes the file and returns its new status. Raises ToolError, and leaves the old file, if that fails or it differs
        from `before`.
        """
        relative = str(self.path.relative_to(self.root.path))
        try:
            directory, name = open_parent(self.root.descriptor, relative, make=True)
            with closed_after(directory):
                self._refuse_protected(directory, name)
                self._refuse_changed(directory, name)
                replace_at(directory, name, data, self.before)
                return os.stat(name, dir_fd=directory, follow_symlinks=False)
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
    """The target of a write. Raises ToolError if it is no regular file, outside all roots, protected or not writable."""
    target = Path(os.path.realpath(path))
    before: os.stat_result | None = None
    with tool_errors(shown), suppress(FileNotFoundError):
        before = target.stat()
    refuse_kernel_file(str(target), shown, before)
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise ToolError(f"{shown} is {kind_of(before.st_mode)}; only regular files can be written")
    root = context.roots.root_of(target, shown)
    context.guard.refuse_written(str(target), shown)
    if is_within_any(named := os.path.normpath(path), map(str, context.roots.paths)):
        context.guard.refuse_written(named, shown)  # a link does not make a protected name an ordinary one
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
    """The result for the model if an earlier process completed a planned write before it died. None if the file still has its
    old content, so that the write can be repeated. Removes that process's temporary files.
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
    """The hexadecimal SHA-256 digest of a file's content, or the signature of a very large one. None if it is no regular file
    or unreadable. Never blocks.
    """
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            now = os.fstat(file.fileno())
            if now.st_size > _MOST_BYTES_HASHED:
                return ":".join(map(str, signature_of(now)))
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


# --- Directories below a root
# Opens directories below an open directory, the root, part by part. A path that leads out of the root raises OSError
# (EXDEV): an absolute path, a path above the root (`..`), or a path with a link to one of these. This is safe even if
# another process replaces a part of the path at the same time. Links that stay inside the root are followed.

# The errors if a link is opened as a directory without following it: ENOTDIR on Linux, ELOOP on other systems.
_PERHAPS_A_LINK = frozenset({errno.ENOTDIR, errno.ELOOP})


def open_parent(root: int, relative: str, *, make: bool = False) -> tuple[int, str]:
    """Opens the directory that contains the file `relative`. Returns the directory's descriptor, which the caller
    must close, and the last part of the path. If the last part is a link, it is not followed. If `make` is True,
    creates missing directories.
    """
    directory, name = os.path.split(relative)
    if name in ("", os.curdir, os.pardir):
        raise _leads_out(relative) if name == os.pardir else IsADirectoryError(errno.EISDIR, "Is a directory")
    return (_make_directory if make else open_directory)(root, directory or os.curdir), name


def open_directory(root: int, relative: str) -> int:
    """Opens a directory below `root`. The descriptor is usable for `dir_fd` but not for reading."""
    held = [os.dup(root)]
    ahead = [*reversed(Path(relative).parts)]
    links = 0
    try:
        while ahead:
            part = ahead.pop()
            if part == os.pardir:
                os.close(held.pop())
            if not held or part.startswith(os.sep):
                raise _leads_out(relative)
            link = _step(held, part) if part != os.pardir else ""
            links += bool(link)
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
            ahead.extend(reversed(Path(link).parts))
        return held.pop()
    finally:
        for descriptor in held:
            os.close(descriptor)


def _step(held: list[int], part: str) -> str:
    try:
        held.append(os.open(part, HELD_DIRECTORY | os.O_NOFOLLOW, dir_fd=held[-1]))
    except OSError as error:
        if error.errno not in _PERHAPS_A_LINK:
            raise
        with suppress(OSError):
            return os.readlink(part, dir_fd=held[-1])
        raise
    return ""


def _make_directory(root: int, relative: str) -> int:
    missing: list[str] = []
    while True:
        try:
            opened = open_directory(root, relative or os.curdir)
            break
        except FileNotFoundError:
            if not relative:
                raise
            relative, name = os.path.split(relative)
            missing.append(name)
    for name in reversed(missing):
        above = opened
        try:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=above)
                sync_directory(above)
            opened = open_directory(above, name)
        finally:
            os.close(above)
    return opened


def _leads_out(relative: str) -> OSError:
    return OSError(errno.EXDEV, os.strerror(errno.EXDEV), relative)
