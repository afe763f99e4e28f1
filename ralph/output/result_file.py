"""Writes the files that the user named with `--result-file` or `--metrics-file`. A regular file is replaced as a
whole or not at all.

If the path is a symbolic link, the link itself is replaced and its target is not changed, because an agent could have
made the link. A path inside a repository is refused if it leads out of the repository through a link.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from typing import TYPE_CHECKING

from ralph.machine.files.atomic_write import replace_at
from ralph.machine.files.opened_file import LINKS_OF_THE_SYSTEM, opened_path
from ralph.machine.files.planted_link import planted_link, repositories
from ralph.machine.files.repository import HELD_DIRECTORY, is_within_any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PRIVATE = 0o600
_READER_S = 5.0  # as the writer of standard output waits for its reader at the end


def result_file_problem(path: str, directories: Sequence[str | Path] = ()) -> str | None:
    """The reason why the file cannot be written, or None if it can be written. Ralph checks this before it sends any
    request.

    `path` is absolute. `directories` are the directory where ralph was called and the working directory. A link
    inside the repositories of these directories must not lead out of the repository.
    """
    if os.path.isdir(path):  # noqa: PTH112 - strings throughout
        return f"{path} is a directory"
    if _is_of_the_system(path):
        return None
    above = os.path.dirname(path)  # noqa: PTH120 - strings throughout
    if not os.path.isdir(above):  # noqa: PTH112 - strings throughout
        return f"the directory {os.path.realpath(above)} does not exist"
    problem = problem_of_directory(above, os.path.realpath(above), directories)
    if problem is not None:
        return problem
    if os.path.exists(path) and not _is_replaced(path):  # noqa: PTH110 - strings throughout
        return None
    return (
        None if os.access(above, os.W_OK) else f"the directory {os.path.realpath(above)} cannot be written to"
    )


def write_result_file(
    path: str, data: bytes, directories: Sequence[str | Path] = (), *, is_private: bool = False
) -> None:
    """Writes the file. Raises OSError. `path` and `directories` are as in `result_file_problem`. A regular file or a
    link is replaced atomically. If `path` is a pipe or a device, the data is written into it. With `is_private`, only
    the user can read the new file, whoever could read the old one.
    """
    if _is_of_the_system(path):
        path = os.path.realpath(path) if _leads_to_file(path) else path
    if not _is_replaced(path):
        _write_into(path, data)
        return
    above, name = os.path.split(path)
    directory = os.open(above, HELD_DIRECTORY)
    try:
        problem = problem_of_directory(above, opened_path(directory, above) or "", directories)
        if problem is not None:
            raise OSError(errno.EPERM, problem, path)
        if is_private:
            replace_at(directory, name, data, None, new_mode=_PRIVATE)
        else:
            replace_at(directory, name, data, _regular_file(directory, name))
    finally:
        os.close(directory)


def problem_of_directory(above: str, real: str, directories: Sequence[str | Path]) -> str | None:
    """The reason why ralph must not write in the directory `above`, or None if it may.

    The reason is a link in the path that leads out of a repository, because an agent may have made the link. `real` is the
    path of the directory with all links resolved, and `directories` are as in `result_file_problem`.
    """
    if real == above:
        return None
    tops = repositories(directories)
    link = planted_link(above, tops)
    is_planted = link is not None or is_within_any(os.path.normpath(above), tops)
    if is_within_any(real, tops) or not is_planted:
        return None
    where = f"{link or above} is a link that leads out of its repository, to {real}"
    return f"{where}; name that directory itself if it is meant"


def _is_of_the_system(path: str) -> bool:
    above = os.path.realpath(os.path.dirname(path))  # noqa: PTH120 - strings throughout
    return above in LINKS_OF_THE_SYSTEM or above.startswith("/proc/")


def _leads_to_file(path: str) -> bool:
    """Whether the path is a link to an open regular file, as /dev/stdout is after `> out.txt`."""
    return os.path.isfile(path) and os.path.exists(os.path.realpath(path))  # noqa: PTH110, PTH113 - strings throughout


def _is_replaced(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return True
    return stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and not _is_of_the_system(path))


def _regular_file(directory: int, name: str) -> os.stat_result | None:
    """The status of the regular file that will be replaced, or None if there is no regular file. The new file gets
    the mode and owner of the old file.
    """
    try:
        before = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return before if stat.S_ISREG(before.st_mode) else None


def _write_into(path: str, data: bytes) -> None:
    """Writes all data to a special file. Raises OSError (EPIPE) if a pipe is full and nobody reads it for
    `_READER_S` seconds. A device such as /dev/null must not be replaced by a regular file, because that would damage
    the system.
    """
    link = 0 if _is_of_the_system(path) else os.O_NOFOLLOW  # it was not a link a moment ago
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | link)
    try:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:
                if not select.select([], [descriptor], [], _READER_S)[1]:
                    raise OSError(errno.EPIPE, "the reader of the pipe has stopped reading", path) from None
    finally:
        os.close(descriptor)
