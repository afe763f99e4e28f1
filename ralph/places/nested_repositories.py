# os.path instead of pathlib: 200,000 paths.
"""Looks once through a tree for what commands may have planted below its top. These are git repositories whose configuration
or hooks name programs, because whoever runs git in their working tree runs these, and protected files, such as `.mcp.json`,
that were made or changed during the run. What is at the top is guarded (`gather.GuardedFiles`).

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
from ralph.places.places import below_tops
from ralph.places.table import names_below_tops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MOST_ENTRIES = 1_000_000
"""After so many entries the look ends. This takes two seconds."""
_LOOKS_UP_EVERY = 200
_MOST_BYTES = 1 << 16
_MOST_SHOWN = 3
# The times of files are those of the kernel's last tick, which takes 10 ms at most (CONFIG_HZ).
_TICK_NS = 10_000_000
# gitrepository-layout(5): with a `commondir`, git finds the rest there.
_REPOSITORY = ({"head", "objects", "refs"}, {"head", "commondir"})
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
    changed: tuple[str, ...] = ()
    """The protected files below the top that were made or changed during the run. The paths are relative to the top."""

    def sentence(self) -> str:
        """For people: one sentence, or empty if there is nothing to tell."""
        parts = []
        if self.found:
            names = [f"{_shown(one.path)} ({', '.join(one.names[:_MOST_SHOWN])})" for one in self.found]
            parts.append(f"git runs programs that these repositories below the work name: {_first(names)}")
        if self.changed:
            names = [_shown(path) for path in self.changed]
            parts.append(
                "these files below the work, which agents and later runs obey there, were made or changed: "
                + _first(names)
            )
        if not self.is_whole:
            parts.append("the tree is too large to be looked through for such repositories and files")
        return "; ".join(parts)


def look_below(
    top: str,
    *,
    roots: Sequence[str] = (),
    since_s: float | None = None,
    is_over: Callable[[], bool] = lambda: False,
    most_entries: int = MOST_ENTRIES,
) -> Look:
    """Looks through the tree below `top`. Without `since_s`, the time when the run began (in seconds of the epoch), it looks
    for repositories only. `roots` are all directories where commands may write; those elsewhere do not matter. No path
    contains symbolic links. `is_over` is asked from time to time whether the look must end, and may raise an error.
    """
    guarded = git_places((top,), {}, os.getuid()).claimed
    found: list[NestedRepository] = []
    changed: list[str] = []
    since_ns = 0 if since_s is None else int(since_s * 1e9) - _TICK_NS
    telling = frozenset[str]() if since_s is None else _telling_names()
    is_below = below_tops(roots or (top,))
    pending, left, is_whole = [top], most_entries, True
    for count, directory in enumerate(pending):
        if count % _LOOKS_UP_EVERY == 0 and is_over():
            is_whole = False
            break
        names, folders = _listed(directory)
        left -= len(names)
        if left < 0:
            is_whole = False
            break
        above = directory.rstrip("/")
        is_telling = above.rpartition("/")[2].lower() in telling
        if is_telling or not telling.isdisjoint(names):
            paths = filter(is_below, sorted(f"{above}/{name}" for name in _files(directory)))
            # An old folder can get a protected name.
            changed += (path for path in paths if _is_new((path, above) if is_telling else (path,), since_ns))
        pending += (f"{above}/{name}" for name in folders if name != ".git")
        if directory != top and (".git" in names or any(names >= one for one in _REPOSITORY)):
            is_bare = ".git" not in names
            named = directory if is_bare else git_directory(directory)
            place = os.path.realpath(named or directory)
            if named is not None and not is_within_any(place, guarded):
                programs = tuple(dict.fromkeys(_programs(place)))
                if programs:
                    found.append(NestedRepository(directory[len(top.rstrip("/")) + 1 :], programs, is_bare))
    return Look(tuple(found), is_whole, tuple(path[len(top.rstrip("/")) + 1 :] for path in changed))


def _shown(path: str) -> str:
    return path if path.isprintable() else ascii(path)


def _first(names: Sequence[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _telling_names() -> frozenset[str]:
    """The names in small letters by which a directory that may have protected files is recognised: they are in it, or it has
    one of them. Few directories do.
    """
    folders_or_names = (name.rpartition("/")[0] or name for name in names_below_tops())
    return frozenset(one.rpartition("/")[2].lower() for one in folders_or_names)


def _is_new(paths: Iterable[str], since_ns: int) -> bool:
    with suppress(OSError):
        return any(os.lstat(path).st_ctime_ns >= since_ns for path in paths)
    return False


def _listed(directory: str) -> tuple[set[str], list[str]]:
    """The names in a directory in small letters, because some file systems do not distinguish them, and the names of its
    directories. Empty if it cannot be read.
    """
    with suppress(OSError), os.scandir(directory) as listing:
        entries = [*listing]
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return {entry.name.lower() for entry in entries}, folders
    return set(), []


def _files(directory: str) -> list[str]:
    with suppress(OSError), os.scandir(directory) as listing:
        return [entry.name for entry in listing if not entry.is_dir(follow_symlinks=False)]
    return []


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
