"""`--result-file`: the result object in a file of the user's choice, whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ralph.effects.atomic_write import replace_file


def result_file_problem(path: str) -> str | None:
    """Why the result could not be written there, looked at before anything is sent; None when it can."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        return f"{path} is a directory"
    if not target.parent.is_dir():
        return f"the directory {target.parent} does not exist"
    if target.exists() and not target.is_file():
        return None
    return (
        None if os.access(target.parent, os.W_OK) else f"the directory {target.parent} cannot be written to"
    )


def write_result_file(path: str, data: bytes) -> None:
    """Regular files are replaced atomically, a link's target instead of the link. Raises OSError."""
    try:
        before = os.stat(path)  # noqa: PTH116 - of what the name leads to, /dev/stdout included
    except FileNotFoundError:
        before = None
    if before is None or stat.S_ISREG(before.st_mode):
        replace_file(Path(os.path.realpath(path)), data, before)
        return
    # A pipe or a device is written to: to replace /dev/null would harm everybody. Nobody may be reading a
    # pipe, and then the run must not wait for ever.
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
