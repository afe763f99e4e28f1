# os.path instead of pathlib: a tree may have many thousand directories.
# ruff: noqa: PTH113, PTH118, PTH120
"""Finds the file for which a git call waits: a named pipe, a device or a socket in the place of a file that git reads. Git
opens such a file without looking at it first, and then waits for ever. This module opens only regular files.
"""

from __future__ import annotations

import os
import re
from collections import deque
from typing import TYPE_CHECKING

from ralph.machine.files.repository import (
    beginning_of,
    blocking_entry,
    blocks,
    common_directory,
    git_directory,
    git_entry,
    is_within,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# The files that git reads in each directory of a working tree, and `.git` itself, which may be a file.
_READ_IN_TREE = frozenset((".gitignore", ".gitattributes", ".gitmodules", ".mailmap", ".git"))
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
    for path in _named(files, home):
        if blocks(path):
            return path
    own += _alternates(own)

    def is_gits(path: str) -> bool:
        """Whether a path is in the repository's git directory, in one that lends it objects, or in one of a repository below."""
        return "/.git/" in f"{path[len(top) :]}/" or any(is_within(path, place) for place in own)

    return blocking_entry(
        (*own, top), lambda entry: entry.name in _READ_IN_TREE or is_gits(entry.path), is_over, is_gits
    )


def _alternates(own: Sequence[str]) -> list[str]:
    """The directories of objects that `info/alternates` names (gitrepository-layout(5)), also those that these name."""
    pending = deque(f"{place}/objects" for place in own)
    found: dict[str, None] = {}
    while pending and len(found) < _MOST_CONFIGURATIONS:
        objects = pending.popleft()
        file = f"{objects}/info/alternates"
        for line in () if blocks(file) else beginning_of(file).splitlines():
            path = os.path.join(objects, os.fsdecode(line).replace("\0", ""))
            if path not in found:
                found[path] = None
                pending.append(path)
    return list(found)


def _named(files: list[str], home: str) -> Iterator[str]:
    pending = deque(files)
    seen = set[str]()
    while pending and len(seen) < _MOST_CONFIGURATIONS:
        file = pending.popleft()
        if file in seen:
            continue
        seen.add(file)
        yield file
        if blocks(file) or not os.path.isfile(file):
            continue
        for value in _VALUE.findall(beginning_of(file)):
            named = os.fsdecode(value).replace("\0", "")
            named = home + named[1:] if named.startswith("~/") else named
            pending.append(os.path.join(os.path.dirname(file), named))
