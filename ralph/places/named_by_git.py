# os.path instead of pathlib: these are strings throughout.
# ruff: noqa: PTH111, PTH112, PTH113, PTH118, PTH119, PTH120
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

from ralph.machine.planted_link import leads_into, links_and_file
from ralph.machine.repository import beginning_of, directory_named_in, is_within_any
from ralph.places.git_config import ATTRIBUTES, UNREADABLE, WORKTREE, names_program, settings

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
_WORD = re.compile(r"[^\s\"'`;|&()<>$=!]+")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_GLUED = re.compile(r"^-[A-Za-z]")
_QUOTES = re.compile(r"[\"'`\\]")
# Where an absolute path or one of a home begins, and where it may end: at white space, at a quote, or with the text.
_PATH_BEGINS = re.compile(r"(?:(?<![^\s\"'`;|&()<>=,:!{])|(?<=\s-[A-Za-z]))[/~]")
_PATH_ENDS = tuple(map(re.compile, (r"[\s;|&()<>:,]", r"[\"'`]", r"\Z")))


# Interpreters, which take a module or a directory by its bare name.
_INTERPRETER = re.compile(
    r"(?:python|pypy|node|nodejs|bun|deno|perl|ruby|php|lua|julia|Rscript|guile)[0-9.]*"
)
_ENTERS = frozenset({"cd", "pushd"})
# Programs that find what they run in a file of the directory in which they start.
_FINDS_BY_ITSELF = frozenset(
    """
    make gmake just task rake ant mvn gradle cargo go npm npx pnpm pnpx yarn bunx uv uvx pipx poetry pipenv pdm hatch rye pixi tox nox
    invoke bundle mise direnv devbox nix docker-compose pre-commit
    """.split()
)


class NamedByGit(Struct, frozen=True):
    """Absolute paths of what commands may change. Files need not exist."""

    configuration: tuple[str, ...] = ()
    """The files with settings or attributes, and the links on the way to them."""
    programs: tuple[str, ...] = ()
    """Files that commands in the settings name, and directories of hooks."""


def work_named_by_git(
    roots: Sequence[str],
    git_directories: Sequence[str],
    user_files: Iterable[str],
    home: str,
    search: ProgramSearch,
    *,
    given: Sequence[tuple[str, str]] = (),
) -> NamedByGit:
    """Reads the configuration of the git directories, and the user's own. No path of these contains symbolic links. `home`
    is what `~` stands for. `search` knows where commands may write besides. `given` are settings that the user's environment
    has.
    """
    directories, roots = tuple(git_directories), tuple(roots)
    user_files = tuple(_path(file, next(iter(roots), "/"), home) for file in user_files)
    writable = (*roots, *directories, *search.roots)
    own = [(f"{directory}/config", f"{directory}/config.worktree") for directory in directories]
    configuration = {
        place: None for file in chain(*own) for place in links_and_file(file) if place != file
    } | dict.fromkeys(chain.from_iterable(map(links_and_file, user_files)))
    programs: dict[str, None] = {}
    # Git runs programs in a working tree.
    trees = [(_working_tree(directory),) for directory in directories]
    top = next(iter(roots), "/")
    everything = (*((*one, ()) for one in zip(own, trees, strict=True)), (user_files, roots, given))
    for files, of_files, more in everything:
        for file, name, value in settings_with_included(files, home, given={os.path.join(top, ""): more}):
            if INCLUDES.fullmatch(name):
                configuration |= dict.fromkeys(links_and_file(_path(value, os.path.dirname(file), home)))
            elif name == TEMPLATES:  # `git init` and `git clone` copy both
                copied = _path(value, os.path.dirname(file), home)
                configuration |= dict.fromkeys(links_and_file(f"{copied}/config"))
                programs[f"{copied}/hooks"] = None
            elif name == ATTRIBUTES:
                named = (links_and_file(_path(value, tree, home)) for tree in of_files)
                configuration |= dict.fromkeys(chain.from_iterable(named))
            elif name not in (WORKTREE, UNREADABLE) and names_program(name, value):
                words = [value] if name == _HOOKS else [*paths_in(value, home)]
                programs |= dict.fromkeys(_path(word, tree, home) for tree in of_files for word in words)
    return NamedByGit(
        tuple(one for one in configuration if is_within_any(one, directories) or search.may_be_changed(one)),
        tuple(one for one in programs if leads_into(one, writable)),
    )


def read_by_git(user_files: Iterable[str], home: str, outside: Callable[[str], str | None]) -> Iterator[str]:
    """Yields the files and directories that the user's git configuration names: what it includes, and lists of patterns.
    `outside` is `LinkResolver.outside`: no file is read to which it finds no way.
    """

    def beginning(file: str) -> bytes:
        real = outside(file)
        return b"" if real is None else beginning_of(real)

    for file, name, value in settings_with_included(user_files, home, beginning):
        path = _path(value, os.path.dirname(file), home)
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
    """Yields the settings of files, and of those that they include: the file, the name and the value. `given` are settings that
    stand in no file, each with the path of one in whose directory they count.
    """
    depths = dict.fromkeys((*given, *files), 0)
    pending = [*depths]
    for file in pending:
        for name, value in given[file] if file in given else settings(beginning(file)):
            yield file, name, value
            if INCLUDES.fullmatch(name) and depths[file] < _MOST_DEEP and len(pending) < _MOST_FILES:
                # As git does, from the directory of the name, also if that is a link.
                included = _path(value, os.path.dirname(file), home)
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


def _working_tree(directory: str) -> str:
    named = [value for name, value in settings(beginning_of(f"{directory}/config")) if name == WORKTREE]
    linked = directory_named_in(f"{directory}/gitdir")
    return os.path.realpath(f"{directory}/{named[-1]}") if named else os.path.dirname(linked or directory)


def paths_in(text: str, home: str, variables: Mapping[str, str] = {}) -> Iterator[str]:
    """Yields what may be a path in a command or in another value: absolute paths, with `~` and variables replaced, and every
    word that could be a relative one. A path may have spaces or be quoted, so for each place where one begins there are
    several, of which the longest may have more behind it.
    """
    known = {"HOME": home, **variables}
    text = _VARIABLE.sub(lambda found: known.get(found[1] or found[2], found[0]), text)
    for form in dict.fromkeys((text, _QUOTES.sub("", text))):
        for begin in _PATH_BEGINS.finditer(form):
            ends = (one.search(form, begin.start()) for one in _PATH_ENDS)
            yield from (_path(form[begin.start() : end.start()], "/", home) for end in ends if end)
        yield from (word for word in _WORD.findall(form) if word[0] not in "/~")


def takes_code_from(names: Mapping[str, bool], words: Sequence[str]) -> bool:
    """Whether a command with these words (`paths_in`), started in a directory, runs or reads what the directory holds. `names`
    are the entries there, each with whether it is a file. A bare word names a file there; for an interpreter and `cd`, it also
    names a directory, or a module. The first word is no such name, because it is looked for on PATH.
    """
    programs = {os.path.basename(word) for word in words}
    is_interpreted = bool(programs & _ENTERS) or any(map(_INTERPRETER.fullmatch, programs))
    modules = {name.partition(".")[0] for name in names} if is_interpreted else set[str]()

    def is_there(word: str) -> bool:
        first, slash, _ = os.path.normpath(word).partition("/")
        if slash or "." in word or is_interpreted:
            is_itself = is_interpreted and first == "."
            return is_itself or first in names or first.partition(".")[0] in modules
        return names.get(word, False)

    relative = [word for word in words if not word.startswith("/")]
    begin = words[0] if words else ""
    return not programs.isdisjoint(_FINDS_BY_ITSELF) or any(
        is_there(one)
        for word in relative
        if word != begin or "/" in word
        for one in (word, _GLUED.sub("", word) or word)
    )


def code_in(texts: Sequence[str], directory: str, home: str) -> Iterator[str]:
    """Yields the absolute paths of files from which a command with these words, started in a directory, may take its code: what
    is named in a word, also relative to the directory or to one that another word names, and for an interpreter the module or
    the start of a directory. A directory that another program gets is data.
    """
    words = list(dict.fromkeys(chain.from_iterable(paths_in(one, home, {"PWD": directory}) for one in texts)))
    words += [_GLUED.sub("", word) for word in words if _GLUED.match(word)]
    is_interpreted = any(_INTERPRETER.fullmatch(os.path.basename(word)) for word in words)
    paths = [os.path.join(directory, word) for word in filter(None, words)]
    inside = [os.path.join(one, word) for one in paths if os.path.isdir(one) for word in filter(None, words)]
    for path in dict.fromkeys((*paths, *inside)):
        started = (
            ("", "/__main__.py", "/__init__.py", "/index.js", "/package.json", ".py", ".js")
            if is_interpreted
            else ("",)
        )
        yield from (f"{path}{end}" for end in started if os.path.isfile(f"{path}{end}"))


def names_in(directory: str) -> dict[str, bool]:
    """The names in a directory, each with whether it is a file. Empty if the directory cannot be listed."""
    with suppress(OSError), os.scandir(directory) as listing:
        return {entry.name: entry.is_file() for entry in listing}
    return {}


def _path(value: str, directory: str, home: str) -> str:
    """An absolute path as git reads it (git-config(1), pathname)."""
    if value.startswith("~/"):
        return f"{home}{value[1:]}"
    return os.path.join(directory, os.path.expanduser(value) if value.startswith("~") else value)


def hooks_in(directory: str) -> list[str]:
    """The paths of the hooks in a directory that git would run."""
    with suppress(OSError), os.scandir(directory) as listing:
        files = [entry.path for entry in listing if not entry.name.endswith(".sample") and entry.is_file()]
        return sorted(path for path in files if os.access(path, os.X_OK))
    return []


def is_new(path: str, since_s: float) -> bool:
    """Whether a file, or a link to it, has changed since a time, in seconds of the epoch."""
    since_ns = int(since_s * 1e9) - _TICK_NS
    for look in (os.lstat, os.stat):
        with suppress(OSError):
            if look(path).st_ctime_ns >= since_ns:
                return True
    return False
