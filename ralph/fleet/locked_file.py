"""A file whose lock says that a process lives. The lock falls with the process, and whoever finds it free may remove the file."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def locked_file(path: Path) -> int | None:
    """The descriptor of a file that is locked now, which no command inherits. None if another process has the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.lstat()):
                    return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the one before has removed this file


def is_locked(path: Path) -> bool:
    """Whether a process has the lock of a file."""
    if not path.exists():
        return False
    descriptor = locked_file(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None
