"""Opens files whose text goes to the model, and checks the opened file: the user's named files, and a project's own.

The user may name a regular file or a pipe anywhere. Refuses files that the kernel generates (/proc/self/environ holds
the key). Refuses a link of the repository that leads out of it, because the repository's author is not the user.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from typing import TYPE_CHECKING

from ralph.machine.opened_file import is_made_by_kernel, opened_path
from ralph.machine.planted_link import is_beneath, planted_link, repositories

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK_BYTES = 65_536
# After this time a process substitution has written something, or is stuck.
_SILENT_S = 30.0


def open_named_file(path: str, directories: Sequence[str | Path]) -> int:
    """Opens the file for reading, non-blocking. Raises OSError, whose text names the problem.

    `path`: absolute. `directories`: where ralph was started and where it works. Files of a repository there may come
    from its author.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        refuse_kernel_file(descriptor, path)
        tops = repositories(directories)
        link = planted_link(path, tops)
        if link is not None:
            _refuse_way_out(descriptor, path, link, tops)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_named_file(
    path: str, directories: Sequence[str | Path], most_bytes: int, *, takes_pipe: bool = True
) -> bytes:
    """The whole content of the file. Raises OSError: EINVAL if it is no file, EFBIG for more bytes, ETIMEDOUT
    for a silent pipe. `takes_pipe`: False for a file that will be read again.
    """
    descriptor = open_named_file(path, directories)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or (takes_pipe and stat.S_ISFIFO(mode))):
            raise OSError(
                errno.EINVAL, "it is no regular file" + (" and no pipe" if takes_pipe else ""), path
            )
        return _read_to_end(descriptor, path, most_bytes)
    finally:
        os.close(descriptor)


def refuse_kernel_file(descriptor: int, path: str) -> None:
    """Refuses a regular file that the kernel generates. Pipes and terminals are allowed. Raises OSError."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and is_made_by_kernel(opened_path(descriptor, path) or path, status):
        raise OSError(errno.EPERM, "the kernel makes it up (/proc, /sys): it could hold credentials", path)


def why_not_of_repository(descriptor: int, path: str, top: str) -> str | None:
    """The reason that a file, opened through a link of the repository, is not part of it; None: it is part of it.

    A hard link to a file outside cannot be told from a file of the repository.
    """
    status = os.fstat(descriptor)
    real = opened_path(descriptor, path)
    if not stat.S_ISREG(status.st_mode) or real is None:
        return "it is a link that leads to no regular file"
    if is_made_by_kernel(real, status):
        return f"it is a link to {real}, which the kernel makes up"
    real_top = os.path.realpath(top)
    if not is_beneath(real, (real_top,)):
        return f"it is a link that leads out of {top}, to {real}"
    why = _why_secret(real, real_top)
    return None if why is None else f"it is a link, and {why}"


def _refuse_way_out(descriptor: int, path: str, link: str, tops: Sequence[str]) -> None:
    real = opened_path(descriptor, path)
    top = max((top for top in tops if is_beneath(link, (top,))), key=len)
    if real is None or not is_beneath(real, tops):
        out = f"{link} is a link that leads out of {top}, and may have come with it"
        raise OSError(
            errno.EPERM, f"{out}; name what it leads to ({real or 'no file'}) if that is meant", path
        )
    why = _why_secret(real, top)
    if why is not None:
        raise OSError(errno.EPERM, f"{link} is a link, and {why}", path)


def _why_secret(real: str, top: str) -> str | None:
    """The reason that a file in the repository is secret; None: it is not secret.

    A repository that is a person's home directory holds that person's keys. `.git` holds the token in a remote's
    address.
    """
    from ralph.sandbox.protected_paths import PROTECTED_NAMES  # noqa: PLC0415 - links are rare
    from ralph.sandbox.protected_places import gather_paths  # noqa: PLC0415 - the same

    protection = gather_paths((top,), os.environ).why_not_read(real)
    if protection is not None:
        return f"it leads to {real}: {protection.place} {protection.predicate}"
    git = PROTECTED_NAMES[0]
    return f"it leads to {real}, which {git.predicate}" if git.is_part_of(real) else None


def _read_to_end(descriptor: int, path: str, most_bytes: int) -> bytes:
    data = bytearray()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    until_s = time.monotonic() + _SILENT_S
    while True:
        # A pipe that nobody writes to yet reports nothing to poll; one whose writer is gone is at its end.
        if not poller.poll(max(until_s - time.monotonic(), 0) * 1000):
            raise OSError(errno.ETIMEDOUT, f"it stayed silent for {_SILENT_S:g} s", path)
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return bytes(data)
        data += chunk
        until_s = time.monotonic() + _SILENT_S
        if len(data) > most_bytes:
            raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", path)
