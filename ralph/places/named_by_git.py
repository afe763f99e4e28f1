# os.path instead of pathlib: these are strings throughout.
# ruff: noqa: PTH112, PTH113, PTH116, PTH118, PTH120
"""Finds the files in the work that git's configuration names: further configuration, which commands must not change, and
programs, which are the project's own code. It runs no program.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.planted_link import links_and_file
from ralph.machine.repository import beginning_of, directory_named_in, is_within_any
from ralph.places.git_config import ATTRIBUTES, WORKTREE, settings_with_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_INCLUDES = re.compile(r"include\.path|includeif\..*\.path", re.DOTALL)
_HOOKS = "core.hookspath"
# Git reads ten files deep (MAX_INCLUDE_DEPTH in its config.c).
_MOST_DEEP = 10
_MOST_FILES = 1_000
_MOST_SHOWN = 3
# The times of files are those of the kernel's last tick, which takes 10 ms at most (CONFIG_HZ).
_TICK_NS = 10_000_000
_WORD = re.compile(r"[^\s\"'`;|&()<>$=!]+")


class NamedByGit(Struct, frozen=True):
    """Absolute paths in the roots or in their git directories. Files need not exist."""

    configuration: tuple[str, ...] = ()
    """The files with settings or attributes, and the links on the way to them."""
    programs: tuple[str, ...] = ()
    """Files that commands in the settings name, and directories of hooks."""


def work_named_by_git(
    roots: Sequence[str], git_directories: Iterable[str], user_files: Iterable[str], home: str
) -> NamedByGit:
    """Reads the configuration of the git directories, and the user's own. No path of these contains symbolic links. `home`
    is what `~` stands for.
    """
    writable = (*roots, *git_directories)
    configuration: dict[str, None] = {}
    programs: dict[str, None] = {}
    # Git runs programs in the working tree, the second value.
    pending = [
        (f"{directory}/{name}", _working_tree(directory), 0)
        for directory in writable[len(roots) :]
        for name in ("config", "config.worktree")
    ]
    configuration |= {
        place: None for file, _, _ in pending for place in links_and_file(file) if place != file
    }
    for user_file in user_files:
        configuration |= dict.fromkeys(links_and_file(user_file))
        pending += [(user_file, root, 0) for root in roots]
    read = set[tuple[str, str]]()
    for file, tree, depth in pending:
        if (file, tree) in read or len(read) >= _MOST_FILES:
            continue
        read.add((file, tree))
        for name, value in settings_with_paths(beginning_of(file)):
            if _INCLUDES.fullmatch(name):
                # As git does, from the directory of the name, also if that is a link.
                included = _path(value, os.path.dirname(file), home)
                configuration |= dict.fromkeys(links_and_file(included))
                if depth < _MOST_DEEP:
                    pending.append((included, tree, depth + 1))
            elif name == ATTRIBUTES:
                configuration |= dict.fromkeys(links_and_file(_path(value, tree, home)))
            elif name != WORKTREE:
                words = [value] if name == _HOOKS else _WORD.findall(value)
                programs |= dict.fromkeys(_path(word, tree, home) for word in words)
    return NamedByGit(
        tuple(one for one in configuration if is_within_any(one, writable)),
        tuple(one for one in programs if is_within_any(os.path.realpath(one), writable)),
    )


def changed_programs(programs: Iterable[str], since_s: float) -> tuple[str, ...]:
    """Those of the programs that have changed since a time, in seconds of the epoch. Of a directory of hooks, these are the
    hooks, or the directory itself if another one may have taken its place.
    """
    since_ns = int(since_s * 1e9) - _TICK_NS
    changed = []
    for path in programs:
        if os.path.isdir(path):
            hooks = [*_hooks_in(path)]
            new = [one for one in hooks if _is_new(one, since_ns)]
            changed += new or ([path] if hooks and _is_new(path, since_ns) else [])
        elif os.path.isfile(path) and _is_new(path, since_ns):
            changed.append(path)
    return tuple(changed)


def about_programs(changed: Sequence[str], roots: Sequence[str]) -> str:
    """A sentence for people. Empty if nothing has changed."""
    if not changed:
        return ""
    names = [os.path.relpath(one, roots[0]) if is_within_any(one, roots[:1]) else one for one in changed]
    shown = ", ".join(name if name.isprintable() else ascii(name) for name in names[:_MOST_SHOWN])
    more = len(names) - _MOST_SHOWN
    return f"git runs {shown}{f' and {more} more' if more > 0 else ''}, which changed during the run"


def _working_tree(directory: str) -> str:
    named = [
        value for name, value in settings_with_paths(beginning_of(f"{directory}/config")) if name == WORKTREE
    ]
    linked = directory_named_in(f"{directory}/gitdir")
    return os.path.realpath(f"{directory}/{named[-1]}") if named else os.path.dirname(linked or directory)


def _path(value: str, directory: str, home: str) -> str:
    return os.path.join(directory, f"{home}{value[1:]}" if value.startswith("~/") else value)


def _hooks_in(directory: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(directory) as listing:
        for entry in sorted(islice(listing, _MOST_FILES), key=lambda one: one.name):
            if not entry.name.endswith(".sample") and entry.is_file() and os.access(entry, os.X_OK):
                yield entry.path


def _is_new(path: str, since_ns: int) -> bool:
    """Whether a file, or a link to it, has changed."""
    with suppress(OSError):
        return max(os.lstat(path).st_ctime_ns, os.stat(path).st_ctime_ns) >= since_ns
    return False
