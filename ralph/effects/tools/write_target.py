"""Which file a write means, and the write itself: beneath one of the run's roots, whatever happens on the way there.

The path is followed first, to tell the model where it leads. What counts is the directory that is then opened
beneath the held root: checked and changed there, never by path.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.effects.atomic_write import replace_at
from ralph.effects.tools.beneath import open_parent
from ralph.effects.tools.file_type import kind_of
from ralph.effects.tools.kernel_files import refuse_kernel_file
from ralph.effects.tools.seen_files import signature_of
from ralph.effects.tools.tool_error import ToolError, os_error_text

if TYPE_CHECKING:
    from ralph.effects.tools.roots import Root, Roots

_DIRECTORY_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


@dataclass(frozen=True)
class WriteTarget:
    path: Path
    """Absolute, links followed."""
    root: Root
    before: os.stat_result | None
    """None: the file does not exist yet."""
    shown: str

    def replace(self, data: bytes) -> os.stat_result:
        """The stat of the new file. Raises ToolError, the old file intact, also when it is not as `before` says."""
        relative = str(self.path.relative_to(self.root.path))
        try:
            directory, name = open_parent(self.root.descriptor, relative, make=True)
            try:
                self._refuse_changed(directory, name)
                replace_at(directory, name, data, self.before)
                return os.stat(name, dir_fd=directory, follow_symlinks=False)
            finally:
                os.close(directory)
        except OSError as error:
            raise ToolError(f"{self.shown} was not written: {self._reason(error)}") from None

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


def write_target(path: Path, shown: str, roots: Roots) -> WriteTarget:
    """Raises ToolError for anything that is no regular file, is outside every root, or may not be written."""
    target = Path(os.path.realpath(path))
    before: os.stat_result | None = None
    try:
        refuse_kernel_file(target, shown)
        before = target.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ToolError(f"{shown}: {os_error_text(error)}") from None
    if before is None:
        return WriteTarget(target, roots.root_of(target, shown), None, shown)
    if not stat.S_ISREG(before.st_mode):
        raise ToolError(f"{shown} is {kind_of(before.st_mode)}; only regular files can be written")
    refuse_kernel_file(target, shown, before.st_dev)
    root = roots.root_of(target, shown)
    if not os.access(target, os.W_OK):
        raise ToolError(f"{shown} is read-only")
    return WriteTarget(target, root, before, shown)
