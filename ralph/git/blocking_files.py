# os.path instead of pathlib: a tree may have many thousand directories.
# ruff: noqa: PTH113, PTH116, PTH118, PTH119, PTH120, PTH121
"""Finds the file for which a git call waits: a named pipe, a device or a socket in the place of a file that git reads. Git
opens such a file without looking at it first, and then waits for ever. This module opens only regular files.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.machine.repository import beginning_of, common_directory, git_directory, git_entry, is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# The files that git reads in each directory of a working tree, and `.git` itself, which may be a file.
_READ_IN_TREE = frozenset((".gitignore", ".gitattributes", ".gitmodules", ".mailmap", ".git"))
# Made by git's own daemon. Git does not wait for it: ralph turns it off.
_OF_DAEMON = "fsmonitor--daemon.ipc"
_CONFIGURATIONS = ("config", "config.worktree")
_VALUE = re.compile(rb'^\s*[A-Za-z][A-Za-z0-9-]*\s*=\s*"?([^"\r\n]+?)"?\s*$', re.MULTILINE)
_MOST_CONFIGURATIONS = 100


def blocking_file(top: str, environment: Mapping[str, str], is_over: Callable[[], bool]) -> str | None:
    """The path of a pipe, device or socket that git would open for the repository at `top`, a working tree or a git
    directory. None if there is none, or if `is_over` returned True before the end of the search. `environment` are git's
    variables.
    """
    named = environment.get("GIT_DIR") or (git_directory(top) if os.path.lexists(git_entry(top)) else top)
    own = [] if named is None else [os.path.join(top, named)]
    own += [common for place in own if (common := common_directory(place))]
    home = environment.get("HOME", "")
    files = [f"{place}/{name}" for place in own for name in _CONFIGURATIONS]
    files += [f"{home}/.gitconfig", f"{environment.get('XDG_CONFIG_HOME') or f'{home}/.config'}/git/config"]
    for path in (*_named(files, home), *_entries(own, top, is_over)):
        if _blocks(path):
            return path
    return None


def _named(files: list[str], home: str) -> Iterator[str]:
    """Yields the configuration files, those that they include, and every path that is a value in one of them."""
    pending = deque(files)
    seen = set[str]()
    while pending and len(seen) < _MOST_CONFIGURATIONS:
        file = pending.popleft()
        if file in seen:
            continue
        seen.add(file)
        yield file
        if _blocks(file) or not os.path.isfile(file):
            continue
        for value in _VALUE.findall(beginning_of(file)):
            named = os.fsdecode(value).replace("\0", "")
            named = home + named[1:] if named.startswith("~/") else named
            pending.append(os.path.join(os.path.dirname(file), named))


def _entries(own: list[str], top: str, is_over: Callable[[], bool]) -> Iterator[str]:
    """Yields the entries of the git directories `own`, and the entries of the working tree that git reads."""
    pending = deque(dict.fromkeys((*own, top)))
    while pending and not is_over():
        directory = pending.popleft()
        is_gits = any(is_within(directory, place) for place in own)
        with suppress(OSError), os.scandir(directory) as listing:
            for entry in listing:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != ".git":
                        pending.append(entry.path)
                elif is_gits or entry.name in _READ_IN_TREE:
                    yield entry.path


def _blocks(path: str) -> bool:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    is_read = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return not (is_read or os.path.basename(path) == _OF_DAEMON or os.path.samefile(path, os.devnull))
