"""A lock file that another program shares with ralph, as the environment variable RALPH_TURN_LOCK asks. Ralph holds a
shared `flock` on the file while it may change files. The other program takes an exclusive one to copy the files and the
journal at a moment when the two agree.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ralph.values.credentials import TURN_LOCK
from ralph.values.ports import GuardRefused, Waiter

_TRY_EVERY_S = 0.02


class TurnLockError(Exception):
    """The file cannot be opened or locked. The message is one line."""

    def __init__(self, path: str, why: str | None) -> None:
        super().__init__(f"cannot lock {path} ({TURN_LOCK}): {why}")


class FileTurnLock:
    """Implements the `TurnLock` port with a file."""

    def __init__(self, path: str, waiter: Waiter) -> None:
        """Opens the file, which must exist, and tries the lock. Raises TurnLockError, also if `path` is relative: a
        relative path would depend on the working directory.
        """
        if not Path(path).is_absolute():
            raise TurnLockError(path, "the path is not absolute")
        self._path = path
        self._waiter = waiter
        self._descriptor = -1
        try:
            # Without blocking, because the file may be a FIFO. A command does not inherit the descriptor.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._try()
            self.release()
        except OSError as error:
            self.close()
            raise TurnLockError(path, error.strerror) from error

    def take(self) -> None:
        try:
            while not self._try():
                self._waiter.sleep(_TRY_EVERY_S, waiting_for="the turn lock")
        except OSError as error:
            raise GuardRefused(str(TurnLockError(self._path, error.strerror))) from error

    def release(self) -> None:
        # Not by closing the file: a process that is just being started may have a copy of the descriptor.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Closes the file, which also releases the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _try(self) -> bool:
        """Takes the lock if no other program holds it exclusively. Returns whether the lock is held."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
