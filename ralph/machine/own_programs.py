"""Finds the programs that ralph itself starts: Python interpreters and programs on PATH. No program is used to which a
path leads through a place that commands may write, because a command may have put the program or a link there. This
rule does not apply to the model's commands, for which the shell searches the user's PATH.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.planted_link import way_to
from ralph.machine.repository import is_within, is_within_any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TEMPORARY_PREFIX = "ralph-tmp-"
"""How the names of the temporary directories begin that commands may write."""

_ABOVE_PACKAGE = str(Path(__file__).absolute().parents[2])
PACKAGE_CACHES = "ralph/packages"
"""The place of the package caches of all checkouts, below the user's own cache."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - nothing is made there
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - nothing is made there
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# Directories and files from which the loader and libraries of any program, and git, take code or settings.
_LOADER_PREFIXES = ("LD_", "DYLD_")
_LOADED_FROM = frozenset(
    "GCONV_PATH OPENSSL_CONF OPENSSL_MODULES LOCPATH GIT_EXEC_PATH GIT_TEMPLATE_DIR".split()
)
_SEPARATORS = {"LD_PRELOAD": "[: ]"}
# A fleet worker gets a new checkout with each job.
_MOST_SEARCHES = 64


class ProgramSearch(Struct, frozen=True):
    """Where ralph looks for its own programs, and where it takes none from."""

    search_path: str = ""
    """The directories to look in, separated as in PATH."""
    roots: tuple[str, ...] = ()
    """The directories that commands may write, without symbolic links."""
    temporary: tuple[str, ...] = ()
    """The directories for temporary files, without symbolic links. Only what nobody else can replace is used there."""

    def root_around(self, path: str) -> str | None:
        """The place that commands may write and through which the absolute path `path` leads: through its own
        directories, through each link and through what a link names.
        """
        return next(filter(None, (self._root_of(place) for place, _ in _way(path))), None)

    def is_safe(self, path: str) -> bool:
        """Whether neither a command nor, in a temporary directory, another user can replace what the path names."""
        return not any(
            self._root_of(place) or self._is_open(place, is_link=is_link) for place, is_link in _way(path)
        )

    def _root_of(self, place: str) -> str | None:
        # Who may write the root directory may write all programs: there is none that could be used instead.
        return next((root for root in self.roots if root != os.sep and is_within(place, root)), None)

    def _is_open(self, place: str, *, is_link: bool) -> bool:
        if place in self.temporary or not is_within_any(place, self.temporary):
            return False
        is_of_session = os.path.basename(place).startswith(TEMPORARY_PREFIX)  # noqa: PTH119 - strings throughout
        return is_of_session or _others_can_replace(place, is_link=is_link)


def _way(path: str) -> Iterator[tuple[str, bool]]:
    with suppress(OSError):  # more links than the system follows: nothing can be started by this path
        yield from way_to(path)


def _others_can_replace(place: str, *, is_link: bool) -> bool:
    """Whether a place in a temporary directory belongs to another user, can be written by one, or is not there yet."""
    try:
        status = os.lstat(place)
    except OSError:
        return True
    is_open = bool(status.st_mode & _WRITABLE_BY_OTHERS) and not is_link
    return is_open or status.st_uid not in (0, os.geteuid())


def search_outside(environment: Mapping[str, str], places: Iterable[Path | str]) -> ProgramSearch:
    """A search in the PATH of `environment`, outside of `places`, of the caches for commands' packages and of the
    directories for temporary files.
    """
    caches = package_caches(environment)
    roots = dict.fromkeys(
        os.path.realpath(place) for place in (*places, _SHARED_MEMORY, *filter(None, (caches,)))
    )
    given = environment.get("TMPDIR", "")
    temporary = dict.fromkeys(map(os.path.realpath, (*_TEMPORARY, given) if given else _TEMPORARY))
    search_path = environment.get("PATH", os.defpath)
    return ProgramSearch(search_path, tuple(map(str, roots)), tuple(map(str, temporary)))


def package_caches(environment: Mapping[str, str]) -> str | None:
    """The directory of the caches for the packages of commands, one for each checkout. None if the environment names no
    home.
    """
    home, base = environment.get("HOME", ""), environment.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        if not home.startswith("/"):
            return None
        base = f"{home}/.cache"
    return f"{os.path.realpath(base)}/{PACKAGE_CACHES}"


def own_python(statement: str, *arguments: str) -> list[str]:
    """The command line of a Python interpreter that executes `statement`, with `arguments` in `sys.argv[1:]`. The
    interpreter has the same `sys.path` as this process, so it runs the same ralph with the same dependencies. It
    ignores the working directory, PYTHON* variables and the user's site-packages.
    """
    # The package is imported first, with only its directory on the path. Other modules there must not be imported.
    statements = (
        f"import sys; sys.path[:] = [{_ABOVE_PACKAGE!r}]; import ralph; "
        f"sys.path[:] = {sys.path!r}; {statement}"
    )
    return [sys.executable, "-I", *_kept_options(), "-c", statements, *arguments]


def _kept_options() -> list[str]:
    """Command-line options for a new interpreter. They have the effect of this interpreter's PYTHON* variables, which
    an isolated interpreter ignores.
    """
    dont_write = ["-B"] if sys.dont_write_bytecode else []
    return [*dont_write, "-X", "utf8=1"] if sys.flags.utf8_mode else dont_write


@lru_cache(_MOST_SEARCHES)
def own_program(name: str, search: ProgramSearch) -> str | None:
    """The absolute path of an executable in one of the directories of a search, or None if there is none. Skips empty and
    relative entries, and programs that commands can replace. A process looks once, so that nothing that a command does
    later changes the answer.
    """
    for directory in absolute_entries(search.search_path):
        path = os.path.join(directory, name)  # noqa: PTH118 - a Path for each directory takes ten times as long
        # Links are followed last, because that takes longer than a look for the program.
        if os.access(path, os.X_OK) and Path(path).is_file() and search.is_safe(path):
            return path
    return None


def without_unsafe_loads(environment: Mapping[str, str], search: ProgramSearch) -> dict[str, str]:
    """The variables for a program of ralph's own. From those that name code or settings which any program loads, the
    entries are left out that are empty, relative or not safe.
    """
    safe = dict(environment)
    for name in environment:
        if name in _LOADED_FROM or name.startswith(_LOADER_PREFIXES):
            entries = re.split(_SEPARATORS.get(name, "[:;]"), safe.pop(name))
            kept = [one for one in entries if one.startswith(os.sep) and search.is_safe(one)]
            safe |= {name: ":".join(kept)} if kept else {}
    return safe


@lru_cache(_MOST_SEARCHES)
def trusted_directories(search: ProgramSearch) -> tuple[str, ...]:
    """The entries of PATH in which ralph's own programs may look for further ones. A process looks once."""
    return tuple(one for one in absolute_entries(search.search_path) if search.is_safe(one))


def absolute_entries(search_path: str) -> list[str]:
    """The entries of a PATH that are neither empty nor relative."""
    return [entry for entry in search_path.split(os.pathsep) if entry.startswith(os.sep)]


def lies_in(path: str, work: Path) -> bool:
    """Whether a path is `work` or is inside it. Symbolic links are resolved first."""
    return _real(path).startswith(_real(str(work)))


def _real(directory: str) -> str:
    """The real path with a slash at its end, so that the beginning of another path can be compared with it. For the
    root directory the result is `//`, which matches no path.
    """
    return os.path.realpath(directory) + os.sep
