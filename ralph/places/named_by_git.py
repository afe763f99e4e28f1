"""Finds the files that git's configuration names. In the work, these are further configuration, which commands must not
change, and programs, which are the project's own code. In the home, they are what git reads. It runs no program.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.paths import (
    beginning_of,
    directory_named_in,
    entries_in,
    is_within_any,
    leads_into,
    links_and_file,
)
from ralph.places.git_config import ATTRIBUTES, UNREADABLE, WORKTREE, names_program, settings
from ralph.places.named_paths import absolute_path, paths_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ralph.machine.own_programs import ProgramSearch

INCLUDES = re.compile(r"include\.path|includeif\..*\.path", re.DOTALL)
_HOOKS = "core.hookspath"
# git-config(1): the settings whose values are directories or files that git reads.
TEMPLATES = "init.templatedir"
_DIRECTORIES = (_HOOKS, TEMPLATES)
_FILES = re.compile(
    r"core\.(?:excludesfile|attributesfile)|commit\.template|mailmap\.file|gpg\.ssh\.(?:allowedsigners|revocation)file"
)
# Git reads ten files deep (MAX_INCLUDE_DEPTH in its config.c).
_MOST_DEEP = 10
_MOST_FILES = 1_000
_MOST_SHOWN = 3
# The times of files are those of the kernel's last tick, which takes 10 ms at most (CONFIG_HZ).
_TICK_NS = 10_000_000


class NamedByGit(Struct, frozen=True):
    """Absolute paths of what commands may change. Files need not exist."""

    configuration: tuple[str, ...] = ()
    """The files with settings or attributes, and the links on the way to them."""
    programs: tuple[str, ...] = ()
    """Files that commands in the settings name, directories of hooks, and what links in the place of hooks lead to."""


def work_named_by_git(
    roots: Sequence[str],
    git_directories: Sequence[str],
    user_files: Iterable[str],
    home: str,
    search: ProgramSearch,
    *,
    given: Sequence[tuple[str, str]] = (),
) -> NamedByGit:
    """Reads the configuration of the git directories, and the user's own. No path of these contains links. `home` is what `~`
    stands for. `search` knows where commands may write besides. `given` are settings of the user's environment.
    """
    directories, roots = tuple(git_directories), tuple(roots)
    user_files = tuple(absolute_path(file, next(iter(roots), "/"), home) for file in user_files)
    writable = (*roots, *directories, *search.roots)
    own = [(f"{directory}/config", f"{directory}/config.worktree") for directory in directories]
    configuration = {
        place: None for file in chain(*own) for place in links_and_file(file) if place != file
    } | dict.fromkeys(chain.from_iterable(map(links_and_file, user_files)))
    programs: dict[str, None] = {}
    # Git runs programs in a working tree.
    trees = []
    for directory in directories:
        named = [value for name, value in settings(beginning_of(f"{directory}/config")) if name == WORKTREE]
        usual = os.path.dirname(directory_named_in(f"{directory}/gitdir") or directory)
        trees.append((os.path.realpath(f"{directory}/{named[-1]}") if named else usual,))
    top = next(iter(roots), "/")
    all_trees = (*roots, *chain.from_iterable(trees))
    everything = (*((*one, ()) for one in zip(own, trees, strict=True)), (user_files, all_trees, given))
    for files, of_files, more in everything:
        for file, name, value in settings_with_included(files, home, given={os.path.join(top, ""): more}):
            if INCLUDES.fullmatch(name):
                configuration |= dict.fromkeys(
                    links_and_file(absolute_path(value, os.path.dirname(file), home))
                )
            elif name == TEMPLATES:  # `git init` and `git clone` copy both
                copied = absolute_path(value, os.path.dirname(file), home)
                configuration |= dict.fromkeys(links_and_file(f"{copied}/config"))
                programs[f"{copied}/hooks"] = None
            elif name == ATTRIBUTES:
                files_of = (links_and_file(absolute_path(value, tree, home)) for tree in of_files)
                configuration |= dict.fromkeys(chain.from_iterable(files_of))
            else:
                words = [*_words_of(name, value, home)]
                programs |= dict.fromkeys(
                    absolute_path(word, tree, home) for tree in of_files for word in words
                )
    for hooks in (f"{directory}/hooks" for directory in directories):
        linked = [hooks] if os.path.islink(hooks) else filter(os.path.islink, hooks_in(hooks))
        programs |= dict.fromkeys(map(os.path.realpath, linked))
    return NamedByGit(
        tuple(one for one in configuration if is_within_any(one, directories) or search.may_be_changed(one)),
        tuple(one for one in programs if leads_into(one, writable)),
    )


def relative_programs(
    user_files: Iterable[str], home: str, given: Iterable[tuple[str, str]] = ()
) -> tuple[tuple[str, str], ...]:
    """The user's own settings that name a program, or a directory of hooks, in whatever working tree git runs, each with what may
    be a relative path in its value. `given` are settings of the environment.
    """
    found = settings_with_included(user_files, home, given={"/": given})
    words = ((name, word) for _, name, value in found for word in _words_of(name, value, home))
    return tuple(dict.fromkeys((name, word) for name, word in words if word[:1] not in ("", "/", "~", "%")))


def _words_of(name: str, value: str, home: str) -> Iterable[str]:
    if name == _HOOKS:
        return [value]
    is_program = not INCLUDES.fullmatch(name) and name not in (TEMPLATES, WORKTREE, UNREADABLE)
    return paths_in(value, {"HOME": home}) if is_program and names_program(name, value) else ()


def read_by_git(user_files: Iterable[str], home: str, outside: Callable[[str], str | None]) -> Iterator[str]:
    """Yields what the user's git configuration names: what it includes, and lists of patterns. No file is read to which `outside`
    (`LinkResolver`) finds no way.
    """

    def beginning(file: str) -> bytes:
        real = outside(file)
        return b"" if real is None else beginning_of(real)

    for file, name, value in settings_with_included(user_files, home, beginning):
        path = absolute_path(value, os.path.dirname(file), home)
        if os.path.isdir(path):
            if name in _DIRECTORIES:
                yield path
        elif INCLUDES.fullmatch(name) or _FILES.fullmatch(name):
            yield path


def settings_with_included(
    files: Iterable[str],
    home: str,
    beginning: Callable[[str], bytes] = beginning_of,
    given: Mapping[str, Iterable[tuple[str, str]]] = {},
) -> Iterator[tuple[str, str, str]]:
    """Yields the settings of files, and of what they include: the file, the name and the value. `given` are settings that are
    in no file, each with the path of one in whose directory they count.
    """
    depths = dict.fromkeys((*given, *files), 0)
    pending = [*depths]
    for file in pending:
        for name, value in given[file] if file in given else settings(beginning(file)):
            yield file, name, value
            if INCLUDES.fullmatch(name) and depths[file] < _MOST_DEEP and len(pending) < _MOST_FILES:
                # As git does, from the directory of the name, also if that is a link.
                included = absolute_path(value, os.path.dirname(file), home)
                if included not in depths:
                    depths[included] = depths[file] + 1
                    pending.append(included)


def changed_programs(programs: Iterable[str], since_s: float) -> tuple[str, ...]:
    """Those of the programs that have changed since a time, in seconds of the epoch. Of a directory of hooks, these are the
    hooks, or the directory itself if another one may have taken its place.
    """
    changed = []
    for path in programs:
        if os.path.isdir(path):
            hooks = hooks_in(path)
            new = [one for one in hooks if is_new(one, since_s)]
            changed += new or ([path] if hooks and is_new(path, since_s) else [])
        elif os.path.isfile(path) and is_new(path, since_s):
            changed.append(path)
    return tuple(changed)


def about_programs(changed: Sequence[str], roots: Sequence[str]) -> str:
    """A sentence for people. Empty if nothing has changed."""
    if not changed:
        return ""
    names = [os.path.relpath(one, roots[0]) if is_within_any(one, roots[:1]) else one for one in changed]
    return f"git runs {first_of([*map(shown_path, names)])}, which changed during the run"


def shown_path(path: str) -> str:
    """A path in a sentence for people."""
    return path if path.isprintable() else ascii(path)


def first_of(names: Sequence[str]) -> str:
    """The first names in a sentence, and how many more there are."""
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def hooks_in(directory: str) -> list[str]:
    """The paths of the hooks in a directory that git would run: the directory itself if it cannot be listed, which git need not."""
    if os.path.isdir(directory) and not os.access(directory, os.R_OK):
        return [directory]
    files = entries_in(directory, lambda entry: not entry.name.endswith(".sample"))
    return sorted(
        entry.path for entry in files if os.path.isfile(entry.path) and os.access(entry.path, os.X_OK)
    )


def is_new(
    path: str, since_s: float, looks: Sequence[Callable[[str], os.stat_result]] = (os.lstat, os.stat)
) -> bool:
    """Whether a file, or a link to it, has changed since a time, in seconds of the epoch."""
    since_ns = int(since_s * 1e9) - _TICK_NS
    for look in looks:
        with suppress(OSError):
            if look(path).st_ctime_ns >= since_ns:
                return True
    return False
