"""Opens files whose text goes to the model, and checks which file was really opened. The user may name a regular file or a
pipe in any place, but no file that the kernel generates, because /proc/self/environ contains the API key, and none to which
a link in a repository leads from outside, because somebody else may have written the repository.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import closed_after, is_made_by_kernel, opened_path
from ralph.machine.files.planted_link import link_inside
from ralph.machine.files.repository import is_within_any
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK_BYTES = 65_536
# A command whose output is read through a pipe has written something after this time, or is stuck.
_SILENT_S = 30.0


def open_named_file(path: str, directories: Sequence[str | Path]) -> int:
    """Opens a file by its absolute path for reading, without waiting. `directories` are those where ralph was started and those
    where commands may write: links in the repositories around them are not trusted. Raises OSError.
    """
    descriptor = os.open(path, FLAGS)
    try:
        refuse_kernel_file(descriptor, path)
        _refuse_link(descriptor, path, directories)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_planted(paths: Iterable[str], directories: Sequence[str | Path]) -> None:
    """Raises UsageError if `open_named_file` refuses one of these files, which were read before all `directories` were known."""
    for path in paths:
        try:
            os.close(open_named_file(path, directories))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error


def read_named_file(
    path: str, directories: Sequence[str | Path], most_bytes: int, *, takes_pipe: bool = True
) -> bytes:
    """The whole content of a file. `path` and `directories` are as in `open_named_file`. A pipe must have a process at its other
    end, as that of `<(command)` has: nobody may ever write to one that has a name. Raises OSError: EINVAL for another kind of
    file, or any pipe without `takes_pipe`, EFBIG beyond `most_bytes`, and ETIMEDOUT if a pipe sends nothing for 30 s.
    """
    with closed_after(open_named_file(path, directories)) as descriptor:
        mode = os.fstat(descriptor).st_mode
        if takes_pipe and stat.S_ISFIFO(mode):
            if _has_name(descriptor, path):
                raise OSError(errno.EINVAL, "it is a named pipe, which may never have a writer", path)
        elif not stat.S_ISREG(mode):
            raise OSError(
                errno.EINVAL, "it is not a regular file" + (" and no pipe" if takes_pipe else ""), path
            )
        return _read_to_end(descriptor, path, most_bytes)


def refuse_kernel_file(descriptor: int, path: str) -> None:
    """Raises OSError if the descriptor belongs to a regular file that the kernel generates."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and is_made_by_kernel(opened_path(descriptor, path) or path, status):
        raise OSError(errno.EPERM, "it is a kernel file (/proc, /sys), which could hold credentials", path)


def why_not_inside(
    descriptor: int, path: str, top: str | None, top_name: str, denied: Sequence[str] = ()
) -> str | None:
    """The reason why an opened file must not be read, or None. It must be a regular file inside `top`, which messages call
    `top_name`, or anywhere if that is None, and no secret file by another name (a hard link). `denied` are further paths
    without symbolic links that must not be read.
    """
    status = os.fstat(descriptor)
    real = opened_path(descriptor, path)
    if not stat.S_ISREG(status.st_mode) or real is None:
        return "it is not a regular file"
    where = "it" if real == path else f"it is {real}, which"
    if is_made_by_kernel(real, status):
        return f"{where} is made up by the kernel"
    real_top = os.path.dirname(real) if top is None else os.path.realpath(top)  # noqa: PTH120 - it is a str
    if not is_within_any(real, (real_top,)):
        return f"{where} is outside {top_name}"
    return _why_secret(real, real_top, denied, status)


def _refuse_link(descriptor: int, path: str, directories: Sequence[str | Path]) -> None:
    inside = link_inside(descriptor, path, directories)
    if inside is None:
        return
    link, real, around = inside
    if why := _why_secret(real, around):
        raise OSError(errno.EPERM, f"{link} is a link, and {why}", path)


def _has_name(pipe: int, path: str) -> bool:
    try:
        return opened_path(pipe, path) is not None
    except OSError:  # macOS reports no path then
        return False


def _read_to_end(descriptor: int, path: str, most_bytes: int) -> bytes:
    data = bytearray()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    until_s = time.monotonic() + _SILENT_S
    while True:
        # If a pipe has no writer yet, poll reports nothing. If its writer has closed it, poll reports its end.
        if not poller.poll(max(until_s - time.monotonic(), 0) * 1000):
            raise OSError(errno.ETIMEDOUT, f"it stayed silent for {_SILENT_S:g} s", path)
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return bytes(data)
        data += chunk
        until_s = time.monotonic() + _SILENT_S
        if len(data) > most_bytes:
            raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", path)


def _why_secret(
    real: str, top: str, denied: Sequence[str] = (), status: os.stat_result | None = None
) -> str | None:
    from ralph.prompt.secret_file import why_secret  # noqa: PLC0415 - few files are links, and it takes 10 ms

    return why_secret(real, top, denied, status)
