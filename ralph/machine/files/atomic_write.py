"""Replaces a file's content atomically: at every moment the path leads to the complete old or the complete new file.

The new file keeps the mode and extended attributes of the old file, and its owner if the system allows that. It is first
written under a temporary name, and locked meanwhile: a temporary file without a lock is left over from a process that has
died.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import opened

if TYPE_CHECKING:
    from pathlib import Path

_TEMPORARY = r"\.ralph-[0-9a-f]{12}\.tmp"


def replace_at(
    directory: int, name: str, data: bytes, before: os.stat_result | None, *, new_mode: int = 0o666
) -> None:
    """Writes `data` as the file `name` in an open directory, whose path may have changed. A link called `name` is replaced, not
    followed.

    The new file gets the attributes of the existing one, whose status is `before`. If that is None, it gets the mode `new_mode`,
    which the umask reduces. Raises OSError; then the old file is unchanged and no temporary file is left.
    """
    temporary = f".ralph-{os.urandom(6).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, new_mode, dir_fd=directory)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if before is not None:
            _copy_attributes(directory, name, descriptor, before)
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(descriptor)
    sync_directory(directory)


def remove_leftovers(directory: Path) -> None:
    """Removes temporary files whose writers were killed. Those of running writers are locked."""
    with suppress(OSError):
        for name in os.listdir(directory):
            if re.fullmatch(_TEMPORARY, name):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                with suppress(OSError), opened(directory / name, flags) as descriptor:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    (directory / name).unlink()


def sync_directory(directory: int) -> None:
    """Syncs a directory, so that the name of a new file survives a power failure. Ignores errors: the content is on the disk."""
    # Some file systems cannot sync a directory, and one without read permission cannot be opened.
    with suppress(OSError), opened(os.curdir, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory) as descriptor:
        os.fsync(descriptor)


def _copy_attributes(directory: int, name: str, descriptor: int, before: os.stat_result) -> None:
    """Copies the owner, which clears mode bits, then mode and extended attributes, and all before the content, so that no more
    users ever read it.
    """
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        with suppress(OSError):  # only root may
            os.fchown(descriptor, before.st_uid, before.st_gid)
    if hasattr(os, "listxattr"):  # Linux; the path, because these system calls do not support `dir_fd`
        source = f"/proc/self/fd/{directory}/{name}"
        with suppress(OSError):  # a file system without any
            for attribute in os.listxattr(source, follow_symlinks=False):
                with suppress(OSError):  # an attribute of the system's own, which only the system can set
                    value = os.getxattr(source, attribute, follow_symlinks=False)
                    os.setxattr(descriptor, attribute, value)
    # As after a write by an ordinary user, what now runs with others' rights is not what they wrote.
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
