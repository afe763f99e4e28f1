"""The lock that allows one loop per checkout, and a file that names its holder.

The system releases the lock with its last holder. Refuses to follow a link in place of the file, and to write into a
file that has a second name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct, convert, to_builtins

from ralph.loop.git.checkout import GitCheckout
from ralph.loop.ports import CheckoutError
from ralph.machine.opened_file import read_regular_file
from ralph.machine.repository import repository_top
from ralph.sessions.looking import is_locked

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from ralph.loop.git.plain_directory import PlainDirectory

_NAME_IN_GIT = "ralph-loop.lock"
_NAME_OF_OURS = "lock"
_MOST_BYTES = 16_384
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Errors of flock(2), and those of network file systems.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class Holder(Struct, frozen=True):
    """The loop that has the lock, as the lock's file names it."""

    pid: int
    directory: str
    started_at: str
    """In local time, for people."""


class CheckoutLock:
    """A lock that is held until every process with the descriptor has closed it.

    An orphaned iteration still holds it.
    """

    def __init__(
        self, checkout: GitCheckout | PlainDirectory, directory: Path, started_at: datetime, *, place: Path
    ) -> None:
        """`place`: the user's directory that holds the lock outside of git.

        Raises CheckoutError if another loop has the lock, which the error names, or if its file cannot be used.
        """
        self.notice: str | None = None
        """A notice for people; None: nothing to say."""
        self.path, self.descriptor = _opened(checkout, place)
        """The descriptor is for `pass_fds` of a process that must hold the lock too."""
        try:
            self._take()
            holder = Holder(os.getpid(), str(directory), f"{started_at.astimezone():%Y-%m-%d %H:%M:%S}")
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, json.dumps(to_builtins(holder)).encode() + b"\n", 0)
        except OSError as error:
            self.close()
            raise CheckoutError(f"the loop's lock {self.path} cannot be written: {error.strerror}") from None
        except CheckoutError:
            self.close()
            raise

    def close(self) -> None:
        """Releases the lock.

        The file stays. Without a holder it blocks nobody, and removing it could let two loops in.
        """
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _take(self) -> None:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckoutError(_refusal(_holder(self.descriptor), self.path)) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self.notice = f"the file system of {self.path} knows no locks: nothing keeps a second loop out"


def holder_of(directory: Path, place: Path) -> int | None:
    """The process id of the loop that works on the checkout of this directory; None: no such loop is known.

    `place`: as for `CheckoutLock`. Calls no git.
    """
    top = repository_top(directory)
    path = place / _NAME_OF_OURS if top is None else _git_directory(top) / _NAME_IN_GIT
    try:
        if not is_locked(path):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # there was never a loop
        return None
    try:
        holder = _holder(descriptor)
    finally:
        os.close(descriptor)
    return holder.pid if holder is not None else None


def _git_directory(top: Path) -> Path:
    """The git directory of a working tree. A linked one has a file that names it (gitrepository-layout(5))."""
    place = top / ".git"
    try:
        named = os.fsdecode(read_regular_file(place, _MOST_BYTES))
    except OSError:
        return place
    return top / named.removeprefix("gitdir:").strip()


def _opened(checkout: GitCheckout | PlainDirectory, place: Path) -> tuple[Path, int]:
    """Opens the lock's file. It is in the working tree's git directory, or in `place` outside of git.

    Returns its path and its descriptor. Raises CheckoutError.
    """
    name = _NAME_OF_OURS
    if isinstance(checkout, GitCheckout):
        place, name = checkout.git_directory, _NAME_IN_GIT
    try:
        held = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            descriptor = os.open(name, _FLAGS, 0o600, dir_fd=held)
        finally:
            os.close(held)
    except OSError as error:
        is_link = error.errno in {errno.ELOOP, errno.ENOTDIR}
        why = "it is a link, or no directory leads there; remove it" if is_link else error.strerror
        raise CheckoutError(f"the loop's lock {place / name} cannot be opened: {why}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise CheckoutError(f"the loop's lock {place / name} is not a file of its own; remove it")
    return place / name, descriptor


def _holder(descriptor: int) -> Holder | None:
    """The holder that the file names; None: the file names no holder that can be read, perhaps not yet."""
    try:
        return convert(json.loads(os.pread(descriptor, _MOST_BYTES, 0)), Holder)
    except (OSError, ValueError, RecursionError):
        return None


def _refusal(holder: Holder | None, path: Path) -> str:
    if holder is None:
        return f"another loop works on this checkout (it holds {path}); wait for it, or stop it"
    since = f"since {holder.started_at} in {holder.directory}"
    if _is_there(holder.pid):
        return f"another loop works on this checkout: process {holder.pid}, {since}; wait for it, or stop it"
    return (
        f"the loop of process {holder.pid}, {since}, has ended, but something it started still works on this checkout "
        f"and holds {path}; wait for it, or stop it"
    )


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
