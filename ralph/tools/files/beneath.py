"""Opens directories below an open directory, the root. A path that leads out of the root raises OSError (EXDEV): an
absolute path, a path above the root (`..`), or a path with a link to one of these. This is safe even if another
process replaces a part of the path at the same time. Links that stay inside the root are followed.

On Linux 5.6 and later, the system call `openat2` does all this. Elsewhere, the path is opened part by part.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ralph.machine.files.atomic_write import sync_directory
from ralph.machine.files.repository import HELD_DIRECTORY

# From linux/openat2.h. The call has this number on every architecture that ralph is likely to run on. On all others,
# the kernel returns ENOSYS.
_OPENAT2 = 437
_NO_MAGICLINKS = 0x02
_BENEATH = 0x08
# ENOSYS: an old kernel. EPERM: a container's filter that does not know the call. EAGAIN: something was renamed
# while the kernel went through a `..`.
_WALK_INSTEAD = frozenset({errno.ENOSYS, errno.EPERM, errno.EAGAIN})
_MOST_LINKS = 40
# The errors if a link is opened as a directory without following it: ENOTDIR on Linux, ELOOP on other systems.
_PERHAPS_A_LINK = frozenset({errno.ENOTDIR, errno.ELOOP})


def open_parent(root: int, relative: str, *, make: bool = False) -> tuple[int, str]:
    """Opens the directory that contains the file `relative`. Returns the directory's descriptor, which the caller
    must close, and the last part of the path. If the last part is a link, it is not followed. If `make` is True,
    creates missing directories.
    """
    directory, name = os.path.split(relative)
    if name in ("", os.curdir, os.pardir):
        raise _leads_out(relative) if name == os.pardir else IsADirectoryError(errno.EISDIR, "Is a directory")
    return (_make_directory if make else open_directory)(root, directory or os.curdir), name


def open_directory(root: int, relative: str) -> int:
    """Opens a directory below `root`. The descriptor is usable for `dir_fd` but not for reading."""
    if sys.platform == "linux":
        try:
            return open_by_kernel(root, relative)
        except OSError as error:
            if error.errno not in _WALK_INSTEAD:
                raise
    return open_by_walk(root, relative)


def open_by_kernel(root: int, relative: str) -> int:
    how = b"".join(
        number.to_bytes(8, sys.byteorder) for number in (HELD_DIRECTORY, 0, _BENEATH | _NO_MAGICLINKS)
    )
    ctypes, syscall = _syscall()
    while True:
        opened = syscall(
            ctypes.c_long(_OPENAT2), ctypes.c_int(root), os.fsencode(relative), how, ctypes.c_size_t(len(how))
        )
        if opened >= 0:
            return int(opened)
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), relative)


def open_by_walk(root: int, relative: str) -> int:
    """Does the work of `open_directory` on systems without `openat2`. Opens the parts of the path one after the
    other, and resolves links itself. For `..`, closes the current directory and continues with the directory above
    it.
    """
    held = [os.dup(root)]
    ahead = [*reversed(Path(relative).parts)]
    links = 0
    try:
        while ahead:
            part = ahead.pop()
            if part == os.pardir:
                os.close(held.pop())
            if not held or part.startswith(os.sep):
                raise _leads_out(relative)
            link = _step(held, part) if part != os.pardir else ""
            links += bool(link)
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
            ahead.extend(reversed(Path(link).parts))
        return held.pop()
    finally:
        for descriptor in held:
            os.close(descriptor)


def _step(held: list[int], part: str) -> str:
    try:
        held.append(os.open(part, HELD_DIRECTORY | os.O_NOFOLLOW, dir_fd=held[-1]))
    except OSError as error:
        if error.errno not in _PERHAPS_A_LINK:
            raise
        with suppress(OSError):
            return os.readlink(part, dir_fd=held[-1])
        raise
    return ""


def _make_directory(root: int, relative: str) -> int:
    missing: list[str] = []
    while True:
        try:
            opened = open_directory(root, relative or os.curdir)
            break
        except FileNotFoundError:
            if not relative:
                raise
            relative, name = os.path.split(relative)
            missing.append(name)
    for name in reversed(missing):
        above = opened
        try:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=above)
                sync_directory(above)
            opened = open_directory(above, name)
        finally:
            os.close(above)
    return opened


def _leads_out(relative: str) -> OSError:
    return OSError(errno.EXDEV, os.strerror(errno.EXDEV), relative)


@cache
def _syscall() -> tuple[Any, Any]:
    import ctypes  # noqa: PLC0415 - 3 ms that only a run that writes pays

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return ctypes, syscall
