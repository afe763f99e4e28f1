# os.path instead of pathlib: 200,000 paths.
"""Looks once through a tree for git repositories whose configuration or hooks name programs: whoever runs git in their
working tree runs these. The outer repository's own git directories are guarded (`gather.GuardedFiles`), what commands made
below them is not.

It runs no program, follows no link on its way, and opens only the configuration of what looks like a repository.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.repository import beginning_of, common_directory, git_directory, is_within, is_within_any
from ralph.places.git_config import programs_named
from ralph.places.git_places import git_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MOST_ENTRIES = 1_000_000
"""After so many entries the look ends. This takes two seconds."""
_LOOKS_UP_EVERY = 200
_MOST_BYTES = 1 << 16
_MOST_SHOWN = 3
# gitrepository-layout(5): with a `commondir`, git finds the rest there.
_REPOSITORY = ({"HEAD", "objects", "refs"}, {"HEAD", "commondir"})
_TOO_LARGE = "a configuration too large to be read"


class NestedRepository(Struct, frozen=True):
    """A repository below the top of a tree whose configuration names a program."""

    path: str
    """The path of its working tree, or of a bare repository, relative to the top."""
    names: tuple[str, ...]
    """Settings and hooks that name programs."""
    is_bare: bool = False

    def holds(self, path: str) -> bool:
        """Whether a path relative to the top is the repository or lies in it."""
        return is_within(path.rstrip("/"), self.path)


class Look(Struct, frozen=True):
    found: tuple[NestedRepository, ...]
    is_whole: bool
    """Whether the whole tree was looked through."""

    def sentence(self) -> str:
        """For people: one sentence, or empty if there is nothing to tell."""
        names = [
            f"{one.path if one.path.isprintable() else ascii(one.path)} ({', '.join(one.names[:_MOST_SHOWN])})"
            for one in self.found[:_MOST_SHOWN]
        ]
        more = len(self.found) - len(names)
        parts = []
        if names:
            listed = ", ".join(names) + (f" and {more} more" if more else "")
            parts.append(f"git runs programs that these repositories below the work name: {listed}")
        if not self.is_whole:
            parts.append("the tree is too large to be looked through for such repositories")
        return "; ".join(parts)


def look_for_repositories(
    top: str, *, is_over: Callable[[], bool] = lambda: False, most_entries: int = MOST_ENTRIES
) -> Look:
    """Looks through the tree below `top`, a path without symbolic links. `is_over` is asked from time to time whether the
    look must end, and may raise an error.
    """
    guarded = git_places((top,), {}, os.getuid()).claimed
    found: list[NestedRepository] = []
    pending, left = [top], most_entries
    for count, directory in enumerate(pending):
        if count % _LOOKS_UP_EVERY == 0 and is_over():
            return Look(tuple(found), is_whole=False)
        names, folders = _listed(directory)
        left -= len(names)
        if left < 0:
            return Look(tuple(found), is_whole=False)
        above = directory.rstrip("/")
        pending += (f"{above}/{name}" for name in folders if name != ".git")
        if directory != top and (".git" in names or any(names >= one for one in _REPOSITORY)):
            is_bare = ".git" not in names
            named = directory if is_bare else git_directory(directory)
            place = os.path.realpath(named or directory)
            if named is not None and not is_within_any(place, guarded):
                programs = tuple(dict.fromkeys(_programs(place)))
                if programs:
                    found.append(NestedRepository(directory[len(top.rstrip("/")) + 1 :], programs, is_bare))
    return Look(tuple(found), is_whole=True)


def _listed(directory: str) -> tuple[set[str], list[str]]:
    """The names in a directory, and those of its directories. Empty if it cannot be read."""
    names: set[str] = set()
    folders = []
    with suppress(OSError), os.scandir(directory) as listing:
        for entry in listing:
            names.add(entry.name)
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
    return names, folders


def _programs(directory: str) -> Iterator[str]:
    """Yields the names of the programs that a git directory names."""
    common = common_directory(directory)
    for place in (directory, *(() if common is None else (os.path.realpath(common),))):
        for file in ("config", "config.worktree"):
            content = beginning_of(f"{place}/{file}")
            yield from (name for name, _ in programs_named(content))
            if len(content) >= _MOST_BYTES:
                yield _TOO_LARGE
        yield from (f"hooks/{name}" for name in _hooks(f"{place}/hooks"))


def _hooks(directory: str) -> Sequence[str]:
    with suppress(OSError), os.scandir(directory) as listing:
        files = [entry for entry in listing if not entry.name.endswith(".sample") and entry.is_file()]
        return sorted(entry.name for entry in files if os.access(entry.path, os.X_OK))
    return []
