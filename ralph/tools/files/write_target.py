"""Finds the file that a call wants to write, and writes it. The file is always inside one of the roots, even if
another process changes the path meanwhile. When the call is planned, links in the path are resolved, and the target
is checked. When the file is written, its directory is opened below the root. All further checks and changes use the
open directory and not the path.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.atomic_write import replace_at
from ralph.machine.opened_file import opened_path
from ralph.tools.files.beneath import open_parent
from ralph.tools.files.file_type import kind_of
from ralph.tools.files.path_guard import refuse_kernel_file
from ralph.tools.files.seen_files import signature_of
from ralph.values.tool_calls import ToolError, os_error_text

if TYPE_CHECKING:
    from ralph.tools.files.path_guard import PathGuard
    from ralph.tools.files.roots import Root
    from ralph.tools.tool_context import ToolContext

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
            raise ToolError(f"{self.shown} was not written: where it really lies cannot be told")
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
