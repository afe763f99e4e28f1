"""Finds the top directory of a repository and what its files name by reading the file system. Runs no program, not
even git, because a repository can name programs that git would run. Also compares absolute paths as texts, and says how
a directory is held open.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import opened
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

HELD_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""Flags with which a directory is opened for use as `dir_fd`. On Linux this needs no permission to read the
directory."""

MOST_BYTES = 1 << 20
"""The most that is read of a file of git."""
# Made by git's own daemon. Git does not wait for it: ralph turns it off.
_OF_DAEMON = "fsmonitor--daemon.ipc"


GIT_VARIABLES = ("GIT_DIR", "GIT_COMMON_DIR")


def git_entry(top: str) -> str:
    """The path of `.git` in a directory, which may be the root directory."""
    return f"{top.rstrip('/')}/.git"


def repositories_above(directory: str) -> Iterator[tuple[str, bool]]:
    """Yields each directory in which git may look for a repository: `directory` and those above, the nearest first. The last one,
    with True, is the nearest checkout: it has `.git`. The others have only a `HEAD`, as a bare repository does.
    """
    for above in (directory, *map(str, Path(directory).parents)):
        # A link that leads nowhere counts too: git will report what is wrong with it.
        if os.path.lexists(git_entry(above)):
            yield above, True
            return
        if os.path.lexists(f"{above}/HEAD"):
            yield above, False


def repository_top(directory: Path) -> Path | None:
    """The nearest directory with `.git`: `directory`, without links, or one above. None outside a repository."""
    above = repositories_above(str(directory.resolve()))
    return next((Path(top) for top, is_checkout in above if is_checkout), None)


def project_top(directory: Path, environment: Mapping[str, str]) -> Path | None:
    """The topmost directory with `.git` around `directory`, without links. A command can make another repository below it, and the
    rules of the project still count. The root directory and those with the home directory in them are no projects.
    """
    place, home = directory.resolve(), os.path.realpath(environment.get("HOME") or os.sep)
    above = [one for one in (place, *place.parents) if one.name and not is_within(home, str(one))]
    return next((one for one in reversed(above) if os.path.lexists(git_entry(str(one)))), None)


def up_to_repository_root(cwd: Path) -> Sequence[Path]:
    """The directories from the working directory up to the top of its repository. Outside of one, only the working directory."""
    directories = [cwd, *cwd.parents]
    tops = (directories.index(Path(top)) for top, is_checkout in repositories_above(str(cwd)) if is_checkout)
    return directories[: next(tops, 0) + 1]


def git_directory(top: str) -> str | None:
    """The git directory of the checkout at `top`: `.git`, or what the file `.git` names. None if this names none."""
    place = git_entry(top)
    if not os.path.isfile(place):
        return place
    words = directory_named_in(place)
    named = words.removeprefix("gitdir: ")
    return None if named == words else os.path.join(top, named)


def git_directories_elsewhere(top: str) -> list[str]:
    """The git directories that the file `.git` at `top` names, if git would take them: that of a linked worktree with its main
    checkout's, or a submodule's.
    """
    place = git_directory(top)
    named = () if place in (None, git_entry(top)) else (place, common_directory(place))
    return [one for one in named if one is not None and os.path.exists(f"{one}/HEAD")]


def may_have_moved(directory: Path, since_s: float) -> bool:
    """Whether the commit of the checkout around `directory` may have changed since a time (epoch), by the reflog of HEAD."""
    top = repository_top(directory)
    place = None if top is None else git_directory(str(top))
    if place is None:
        return False
    try:
        return os.stat(f"{place}/logs/HEAD").st_mtime >= int(since_s)
    except OSError:  # git says what is wrong, if anything is
        return True


def common_directory(git_directory: str) -> str | None:
    """The directory that `commondir` in a git directory names (gitrepository-layout(5)), or None."""
    named = directory_named_in(f"{git_directory}/commondir")
    return os.path.join(git_directory, named) if named else None


def directory_named_in(file: str) -> str:
    """The directory that a file of git names, read as git reads it: without the line breaks at the end, and then up to a NUL.
    Other white space is part of the name. Empty if the file names none. See `beginning_of`.
    """
    return os.fsdecode(beginning_of(file).rstrip(b"\r\n").partition(b"\0")[0])


def git_installation() -> str:
    """The directory in which git is installed. That is the one above its program's, unless the program is a shim."""
    return os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("git") or "/usr/bin/git")))


def beginning_of(file: str, most_bytes: int = MOST_BYTES) -> bytes:
    """The first bytes of a file, or empty. Never blocks. Raises OSError if the machine lacks file descriptors or memory."""
    data = b""
    try:
        with opened(file, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
            while len(data) < most_bytes and (chunk := os.read(descriptor, most_bytes - len(data))):
                data += chunk
    except OSError as error:
        if shortage_of(error) is not None:
            raise
        return b""
    return data


def status_of(path: str) -> os.stat_result | None:
    """The status of what is at a path, also of a link itself. None if it cannot be looked at."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory, and no link to one."""
    return entry.is_dir(follow_symlinks=False)


def entries_in(
    directory: str, is_wanted: Callable[[os.DirEntry[str]], bool] = lambda _: True
) -> list[os.DirEntry[str]]:
    """The entries of a directory, without those that cannot be looked at. Empty if the directory itself cannot."""
    found = []
    with suppress(OSError), os.scandir(directory) as listing:
        for entry in listing:
            with suppress(OSError):
                found += [entry] if is_wanted(entry) else []
    return found


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or is inside it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def is_within_any(path: str, directories: Iterable[str]) -> bool:
    return any(is_within(path, directory) for directory in directories)


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Removes each path that lies inside another one of the paths, and keeps the order of the rest."""
    known = dict.fromkeys(paths)
    return tuple(path for path in known if not any(above in known for above in directories_above(path)))


def directories_above(path: str) -> Iterator[str]:
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


def blocking_entry(
    directories: Iterable[str],
    is_read: Callable[[os.DirEntry[str]], bool],
    is_over: Callable[[], bool],
    is_followed: Callable[[str], bool] | None = None,
) -> str | None:
    """The path of a pipe, device or socket in or below the directories, among what `is_read` selects. None if there is none, or
    once `is_over` returns True. Opens no file. `is_followed` says whether links in a directory are followed; without it, none is,
    and no `.git` is searched.
    """
    pending = deque(dict.fromkeys(directories))
    linked: set[str] = set()
    while pending and not is_over():
        directory = pending.popleft()
        follows = is_followed is not None and is_followed(directory)
        with suppress(OSError), os.scandir(directory) as listing:
            for entry in listing:
                if is_folder(entry):
                    if entry.name != ".git" or is_followed is not None:
                        pending.append(entry.path)
                elif follows and os.path.isdir(entry.path):
                    if (place := os.path.realpath(entry.path)) not in linked:
                        linked.add(place)
                        pending.append(entry.path)
                elif is_read(entry) and blocks(entry.path):
                    return entry.path
    return None


def blocks(path: str) -> bool:
    """Whether a program that opens the path for reading may wait for ever, or read for ever."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    is_read = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return not (is_read or os.path.basename(path) == _OF_DAEMON or os.path.samefile(path, os.devnull))
