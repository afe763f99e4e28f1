"""Writing files for tools: which file a path means, and what to tell the model when it cannot be written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ralph.effects.atomic_write import replace_file
from ralph.effects.tools.file_type import kind_of
from ralph.effects.tools.kernel_files import refuse_kernel_file
from ralph.effects.tools.tool_error import ToolError, os_error_text


def real_target(path: Path, shown: str) -> tuple[Path, os.stat_result | None]:
    """The file that a write to `path` changes, links followed, and its stat; None when it does not exist yet.

    Raises ToolError for anything that is no regular file or may not be written.
    """
    target = Path(os.path.realpath(path))
    try:
        refuse_kernel_file(target, shown)
        before = target.stat()
    except FileNotFoundError:
        return target, None
    except OSError as error:
        raise ToolError(f"{shown}: {os_error_text(error)}") from None
    if not stat.S_ISREG(before.st_mode):
        raise ToolError(f"{shown} is {kind_of(before.st_mode)}; only regular files can be written")
    refuse_kernel_file(target, shown, before.st_dev)
    if not os.access(target, os.W_OK):
        raise ToolError(f"{shown} is read-only")
    return target, before


_DIRECTORY_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


def write_atomically(target: Path, data: bytes, before: os.stat_result | None, shown: str) -> None:
    """`target` and `before` as `real_target` gave them. Raises ToolError, the old file intact."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, data, before)
    except OSError as error:
        where = f" in {target.parent}" if error.errno in _DIRECTORY_ERRORS else ""
        raise ToolError(f"{shown} was not written: {os_error_text(error)}{where}") from None
