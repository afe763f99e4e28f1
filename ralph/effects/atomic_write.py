"""Replaces a file's content so that at every instant there is the old file or the new one, whole.

Mode, owner (where allowed) and extended attributes of an existing file are kept.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace_file(target: Path, data: bytes, before: os.stat_result | None) -> None:
    """Write `data` as `target`, which is no link. `before`: its stat, None when it does not exist yet.

    Raises OSError, the old file intact and nothing left beside it.
    """
    temporary = _written_beside(target, data, before)
    try:
        temporary.rename(target)
    except BaseException:
        temporary.unlink()
        raise
    _sync_directory(target.parent)


def _written_beside(target: Path, data: bytes, before: os.stat_result | None) -> Path:
    """A finished, synced file next to `target`; nothing is left there on failure."""
    temporary = target.parent / f".ralph-{os.urandom(6).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            if before is not None:
                _copy_attributes(target, descriptor, before)
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        temporary.unlink()
        raise
    return temporary


def _copy_attributes(source: Path, descriptor: int, before: os.stat_result) -> None:
    """Before any content is there to be read by others. The owner first: changing it clears mode bits."""
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        with suppress(OSError):  # only root may
            os.fchown(descriptor, before.st_uid, before.st_gid)
    if hasattr(os, "listxattr"):  # Linux
        _copy_extended_attributes(source, descriptor)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _copy_extended_attributes(source: Path, descriptor: int) -> None:
    try:
        names = os.listxattr(source)
    except OSError:  # a file system without any
        return
    for name in names:
        try:
            os.setxattr(descriptor, name, os.getxattr(source, name))
        except OSError:  # the system's own, which it sets itself
            continue


def _sync_directory(directory: Path) -> None:
    """So that the new name survives a power cut too. The file is written by now: nothing here is a failure."""
    # Some file systems cannot sync a directory, and one without read permission cannot be opened.
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
