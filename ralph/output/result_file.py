"""Writes the files that the user named, with `--result-file` or `--debug-file` for example. A regular file is replaced as a
whole or not at all, unless it is one to append to.

If the path is a symbolic link, the link itself is replaced and its target is not changed, because an agent could have
made the link. A path inside a directory that commands may write, or its repository, is refused if it leads out through a link.
What was opened counts, and not what was there before.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import LINKS_OF_THE_SYSTEM, opened, opened_path, replace_at
from ralph.machine.files.paths import HELD_DIRECTORY, followed_link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_PRIVATE = 0o600
_REPLACED = (stat.S_IFREG, stat.S_IFLNK)  # others, such as /dev/null, are written to
_READER_S = 5.0  # as the writer of standard output waits for its reader at the end


def result_file_problem(path: str, directories: Sequence[str | Path] = ()) -> str | None:
    """The reason why the file cannot be written, or None. Ralph checks this before it sends any request.

    `path` is absolute. `directories` are the directory where ralph was called and those where commands may write. A
    link inside the repositories of these directories must not lead out of them.
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
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.islink(path):  # noqa: PTH110, PTH113, PTH114 - strings throughout
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
    is_of_system = _is_of_the_system(path)
    if is_of_system and _leads_to_file(path):
        path, is_of_system = os.path.realpath(path), False
    with _judged_directory(path, directories) as (directory, name):
        before = _status(directory, name)
        if before is not None and (is_of_system or stat.S_IFMT(before.st_mode) not in _REPLACED):
            _write_into(directory, name, data, 0 if is_of_system else os.O_NOFOLLOW)
        elif is_private:
            replace_at(directory, name, data, None, new_mode=_PRIVATE)
        else:
            replace_at(directory, name, data, before if before and stat.S_ISREG(before.st_mode) else None)


def opened_to_append(path: str, directories: Sequence[str | Path], mode: int) -> int:
    """Opens a file for appending, without waiting, and makes it with `mode` if it is missing. Raises OSError, also for a link.
    `path` and `directories` are as in `result_file_problem`.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with _judged_directory(path, directories) as (directory, name):
        try:
            return os.open(name, flags, mode, dir_fd=directory)
        except OSError as error:
            why = (
                "it is a link, which ralph does not follow" if error.errno == errno.ELOOP else error.strerror
            )
            raise OSError(error.errno, why, path) from None


@contextmanager
def _judged_directory(path: str, directories: Sequence[str | Path]) -> Iterator[tuple[int, str]]:
    """The opened directory of a file, and the file's name in it. Raises OSError for one where ralph must not write."""
    above, name = os.path.split(path)
    with opened(above, HELD_DIRECTORY) as directory:
        problem = problem_of_directory(above, opened_path(directory, above) or "", directories)
        if problem is not None:
            raise OSError(errno.EPERM, problem, path)
        yield directory, name


def problem_of_directory(above: str, real: str, directories: Sequence[str | Path]) -> str | None:
    """The reason why ralph must not write in the directory `above`, or None if it may.

    The reason is a link in the path that leads out of a repository, because an agent may have made it. `real` is
    the path of `above` with all links resolved. `directories` are as in `result_file_problem`.
    """
    link, around = (None, "") if real == above else followed_link(above, real, directories)
    if link is None or around:
        return None
    where = f"{link} is a link that leads out of its repository, to {real}"
    return f"{where}; name that directory itself if it is meant"


def _is_of_the_system(path: str) -> bool:
    above = os.path.dirname(os.path.normpath(path))  # noqa: PTH120 - a command could make a link to such a place
    return above in LINKS_OF_THE_SYSTEM or above.startswith("/proc/")


def _leads_to_file(path: str) -> bool:
    """Whether the path is a link to an open regular file, as /dev/stdout is after `> out.txt`."""
    return os.path.isfile(path) and os.path.exists(os.path.realpath(path))  # noqa: PTH110, PTH113 - strings throughout


def _status(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _write_into(directory: int, name: str, data: bytes, link: int) -> None:
    """Writes all data to a special file. Raises OSError (EPIPE) if a pipe is full and nobody reads it for
    `_READER_S` seconds. A device such as /dev/null must not be replaced by a regular file, which would damage the
    system.
    """
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | link
    with opened(name, flags, dir_fd=directory) as descriptor:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:
                if not select.select([], [descriptor], [], _READER_S)[1]:
                    raise OSError(errno.EPIPE, "the reader of the pipe has stopped reading", name) from None


class DiagnosticsFile:
    """The file of `--debug-file`, to which lines are appended. A symbolic link is not opened, because a repository
    may have put it there. If a line cannot be written, it is lost and the run continues.
    """

    def __init__(self, path: str, redact: Callable[[str], str], directories: Sequence[str] = ()) -> None:
        """Opens the file. Raises OSError if that fails. `path` and `directories` are as in `result_file_problem`."""
        self._descriptor = opened_to_append(path, directories, 0o600)
        self._redact = redact

    def write(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._descriptor, self._redact(line).encode("utf-8", "backslashreplace") + b"\n")
