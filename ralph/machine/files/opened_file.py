"""Opens files, finds facts about an open file, and replaces a file's content. The path with which a file was opened proves nothing,
because an agent could have put a link there.

Content is replaced atomically: at every moment the path leads to the complete old or the complete new file. The new one keeps the
mode and extended attributes of the old one, and its owner if the system allows that. It is first written under a temporary name,
and locked meanwhile: a temporary file without a lock is left over from a process that has died.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import sys
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINKS_OF_THE_SYSTEM = ("/dev", "/dev/fd")
"""Links in these directories, such as /dev/stdin, were made by the system. The user means their target."""
KERNEL_PLACES = ("/proc", "/sys")
"""The directories of kernel file systems. Files in them contain credentials, such as the environment of a process."""

_DELETED = " (deleted)"
_MOST_PATH_BYTES = 1024  # MAXPATHLEN of macOS, which F_GETPATH fills
_KERNEL_TYPES = frozenset({"proc", "sysfs"})


@contextmanager
def opened(path: Path | str, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> Iterator[int]:
    """The descriptor of what is at a path, for the time of the block. Raises OSError."""
    with closed_after(os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd)) as descriptor:
        yield descriptor


@contextmanager
def closed_after(descriptor: int) -> Iterator[int]:
    """Closes an open descriptor at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def opened_path(descriptor: int, named: str) -> str | None:
    """The absolute path of an open file, without links. None if it is unknown. `named` is the path by which it was opened."""
    path = _reported_by_kernel(descriptor)
    if path is not None:
        return path
    # There is no /proc here. The name counts if it still leads to the open file.
    real = os.path.realpath(named)
    try:
        is_there = os.path.samestat(os.lstat(real), os.fstat(descriptor))
    except OSError:
        return None
    return real if is_there else None


def is_made_by_kernel(path: str, status: os.stat_result | None = None) -> bool:
    """Whether the kernel makes the content of a file. `path` has no links. With `status`, of the open file, in any place."""
    if any(path == place or path.startswith(f"{place}/") for place in KERNEL_PLACES):
        return True
    # Such files use no disk blocks. For nearly all other files, this test is enough.
    return status is not None and not status.st_blocks and status.st_dev in _kernel_devices()


@cache
def _kernel_devices() -> frozenset[int]:
    found = {os.stat(place).st_dev for place in KERNEL_PLACES if os.path.ismount(place)}
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        # proc(5): ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAGS...] - TYPE ...
        for fields in map(str.split, mounts):
            if fields[fields.index("-") + 1] in _KERNEL_TYPES:
                found.add(os.makedev(*map(int, fields[2].split(":"))))
    return frozenset(found)


def _reported_by_kernel(descriptor: int) -> str | None:
    if sys.platform == "darwin":
        path = os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(_MOST_PATH_BYTES)).rstrip(b"\0"))
        return path or None
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    if not path.startswith("/"):  # a pipe, or beyond this process's root
        return None
    if path.endswith(_DELETED) and not os.path.lexists(path):
        return path.removesuffix(_DELETED)
    return path


def open_regular_file(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """The descriptor of a regular file. Never waits for a named pipe or a device. Raises OSError, with EINVAL for another kind."""
    # Merely opening a device can have an effect. What was looked at may be another file by now.
    if stat.S_ISREG(os.stat(path).st_mode):
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_regular_file(path: Path | str, most_bytes: int, flags: int = os.O_NOFOLLOW) -> bytes:
    """The content of a file, opened as by `open_regular_file`. Raises OSError, with EFBIG if it is larger than `most_bytes`."""
    with os.fdopen(open_regular_file(path, flags), "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return data


# --- A file whose lock says that a process lives
# The lock falls with the process, and whoever finds it free may remove the file.


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
