"""Directories with everything in them, at any depth. Commands can make them deeper than Python's stack and than the
longest path, which the functions of the standard library do not survive.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import opened
from ralph.machine.files.repository import (
    HELD_DIRECTORY,
    beginning_of,
    git_directory,
    is_folder,
    repository_top,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEEPEST = 50
"""The levels of directories that are open at a time."""
_MOST_PATHS = 50_000
"""The maximum number of paths in a directory that are compared with the rules. A larger directory counts as one that
contains a denied file."""
_MOST_INDEX_BYTES = 64 * 1024 * 1024
"""A larger index of git is not read: any file may be tracked."""


def entries_below(top: str) -> Iterator[os.DirEntry[str]]:
    """Yields all that is below a directory. Follows no links. Leaves out what cannot be listed."""
    pending = [top]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as listing:
            entries = list(listing)
            pending += [one.path for one in entries if is_folder(one)]
            yield from entries


def remove_tree(top: str | os.PathLike[str]) -> None:
    """Removes a directory, whatever the modes in it, or a file. Follows no links. Removes what it can, then raises the first
    OSError.
    """
    top = os.fspath(top).rstrip(os.sep)  # with it, a link would be followed
    if not stat.S_ISDIR(os.lstat(top).st_mode):
        return os.unlink(top)
    errors: list[OSError] = []
    with _opened_up(top, None) as directory:
        moved = _emptied(directory, directory, 0, errors)
        while moved:
            name = moved.pop()
            try:
                with _opened_up(name, directory) as below:
                    moved += _emptied(below, directory, 0, errors)
                os.rmdir(name, dir_fd=directory)
            except OSError as error:
                errors.append(error)
    if errors:
        raise errors[0]
    return os.rmdir(top)


def remove_tree_if_possible(top: str | os.PathLike[str]) -> None:
    """Like `remove_tree`, but what cannot be removed stays."""
    with suppress(OSError):
        remove_tree(top)


def _emptied(directory: int, top: int, depth: int, errors: list[OSError]) -> list[str]:
    """Removes what is in a directory. What is `_DEEPEST` levels down is moved into `top`, to be removed later: its new names."""
    moved: list[str] = []
    for name in os.listdir(directory):
        try:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                os.unlink(name, dir_fd=directory)
                continue
            with _opened_up(name, directory) as below:  # a directory that may not be changed cannot be moved
                if depth >= _DEEPEST:
                    new = os.urandom(8).hex()
                    os.rename(name, new, src_dir_fd=directory, dst_dir_fd=top)
                    moved.append(new)
                    continue
                moved += _emptied(below, top, depth + 1, errors)
            os.rmdir(name, dir_fd=directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            errors.append(error)
    return moved


@contextmanager
def _opened_up(name: str, directory: int | None) -> Iterator[int]:
    """Opens a directory, after its owner has got the right to list and to change it. Raises OSError."""
    give_back_rights(name, directory)
    with opened(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory) as listed:
        yield listed


def give_back_rights(name: str, directory: int | None = None) -> None:
    """Lets the owner of a directory list, change and enter it. Follows no link. Raises OSError."""
    with opened(name, HELD_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory) as held:
        mode = stat.S_IMODE(os.fstat(held).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{held}", mode | stat.S_IRWXU)


class LocalDisk:
    """Answers questions about the paths on this machine's disk. Implements `Disk` of the permission rules."""

    def real(self, path: str) -> str:
        return os.path.realpath(path)

    def names_in(self, directory: str) -> list[str]:
        with suppress(OSError):
            return os.listdir(directory)
        return []

    def may_be_tracked(self, path: str) -> bool:
        top = repository_top(Path(path).parent)
        index = (
            beginning_of(f"{git_directory(str(top))}/index", _MOST_INDEX_BYTES) if top is not None else b""
        )
        # gitformat-index(5): version 2 has each path whole, behind two bytes with its length, unless the index is split.
        if not index.startswith(b"DIRC\0\0\0\2") or b"link" in index or len(index) == _MOST_INDEX_BYTES:
            return True
        name = os.fsencode(os.path.relpath(path, top or "/"))
        begins = (found.start() for found in re.finditer(re.escape(name) + b"\0", index))
        return any(int.from_bytes(index[at - 2 : at]) & 0xFFF == min(len(name), 0xFFF) for at in begins)

    def paths_below(self, directory: str) -> list[str] | None:
        found = [entry.path for entry in islice(entries_below(directory), _MOST_PATHS + 1)]
        return found if len(found) <= _MOST_PATHS else None
