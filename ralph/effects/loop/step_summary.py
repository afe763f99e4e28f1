"""Appends to the file that a CI system shows. Refuses whatever is no regular file: it would be waited for."""

from __future__ import annotations

import errno
import os
import stat


def append_text(path: str, text: str) -> None:
    """Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        file.write(text.encode("utf-8", "replace"))  # names of files may be no text
