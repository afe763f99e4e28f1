# os.path instead of pathlib: 200,000 paths.
"""Looks once through a tree for what commands may have planted below its top. These are git repositories whose configuration
or hooks name programs, because whoever runs git in their working tree runs these, and protected files, such as `.mcp.json`,
that were made or changed during the run. What is at the top is guarded (`gather.GuardedFiles`), and so are the git directories
that git itself makes for submodules and linked worktrees. All others are looked at, wherever a file `.git` says that they are.

It runs no program, follows no link but to where commands may write and those that they made, and opens only the configuration of what looks like a repository.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.files.paths import (
    HELD_DIRECTORY,
    MOST_BYTES,
    beginning_of,
    common_directory,
    directories_above,
    entries_in,
    git_directory,
    is_folder,
    is_within,
    is_within_any,
    status_of,
)
from ralph.machine.own_programs import search_outside
from ralph.machine.starting import start_job
from ralph.places.gather import GuardedFiles, changed_by_run, users_relative_programs
from ralph.places.git_config import programs_named, settings
from ralph.places.git_places import git_places
from ralph.places.named_paths import first_of, hooks_in, is_new, shown_path
from ralph.places.places import IGNORED_CHARACTERS, below_tops
from ralph.places.planted_in_git import planted_below, planted_in_git
from ralph.places.table import COMPARED, names_below_tops
from ralph.values.outcome import ShortageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from ralph.places.git_places import GitPlaces

MOST_ENTRIES = 1_000_000
"""After so many entries the look ends. This takes two seconds."""
_LOOKS_UP_EVERY = 200
_MOST_SHOWN = 3
_ENTRIES_PER_LINK = 20
"""A link that leads out of the tree takes as long as so many entries."""
# gitrepository-layout(5): with a `commondir`, git finds the rest there.
_REPOSITORY = ({"head", "objects", "refs"}, {"head", "commondir"})
_GIT = ".git"
# The names of a repository, as git asks for them where a directory cannot be listed.
_ASKED = (_GIT, "HEAD", "objects", "refs", "commondir")
_LOOKS_FOR_S, _MOST_S = 1.8, 2.5
"""A run ends soon, also if a file system does not answer."""
_PARTS = 3
"""The parts of the last look besides that through the tree."""
# The settings with the address of a remote (git-config(1)).
_REMOTE = re.compile(
    r"(?s)remote\..*\.(?:push)?url|branch\..*\.(?:push)?remote|remote\.pushdefault|url\.(.*)\.(?:push)?insteadof"
)
_TOO_LARGE = "a configuration too large to be read"


class NestedRepository(Struct, frozen=True):
    """A repository below the top of a tree whose configuration names a program."""

    path: str
    """The path of its working tree, or of a bare repository, relative to the top. Empty for a bare repository at the top."""
    names: tuple[str, ...]
    """Settings and hooks that name programs."""
    is_bare: bool = False

    def takes_out(self, path: str, *, is_tracked: bool) -> bool:
        """Whether a path relative to the top must not be committed: it is in the repository, and no tracked file of the outer one."""
        inside = path.rstrip("/")
        return inside == self.path or (is_within(inside, self.path) and (self.is_bare or not is_tracked))


class Look(Struct, frozen=True):
    """The result of a look through a tree. All paths are relative to its top."""

    found: tuple[NestedRepository, ...]
    is_cut: bool = False
    """Whether the look ended before its end."""
    changed: tuple[str, ...] = ()
    """The protected files below the top that were made or changed during the run."""
    closed: tuple[str, ...] = ()
    """Directories that cannot be listed, in which commands may have planted something: git needs only the right to search them."""
    git_directories: tuple[str, ...] = ()
    """The absolute paths of the git directories of repositories below the top that commands may write."""
    overfull: str = ""
    """The absolute path of a folder of a git directory with so many others that not all are guarded, or empty."""

    def is_closed(self, path: str) -> bool:
        """Whether a path is in a directory that could not be looked into."""
        return is_within_any(path, self.closed)

    def sentence(self) -> str:
        """For people: one sentence, or empty if there is nothing to tell."""
        parts = []
        if self.found:
            programs = [
                f"{shown_path(one.path or '.')} ({', '.join(one.names[:_MOST_SHOWN])})" for one in self.found
            ]
            parts.append(
                f"git runs programs that these repositories below the work name: {first_of(programs)}"
            )
        for paths, what in (
            (
                self.changed,
                "files below the work, which agents and later runs obey there, were made or changed",
            ),
            (self.closed, "could not be looked into for such repositories and files"),
        ):
            if paths:
                parts.append(f"these {what}: {first_of([shown_path(path or '.') for path in paths])}")
        if self.overfull:
            parts.append(
                f"{shown_path(self.overfull)} holds more folders than ralph guards: look at them, and remove those that no "
                "submodule and no worktree needs"
            )
        if self.is_cut:
            parts.append("the tree is too large to be looked through for such repositories and files")
        return "; ".join(parts)


def look_below(
    top: str,
    *,
    roots: Sequence[str] = (),
    since_s: float | None = None,
    gitlinks: Iterable[str] = (),
    users: Sequence[tuple[str, str]] = (),
    writable: Sequence[str] = (),
    places: GitPlaces | None = None,
    is_over: Callable[[], bool] = lambda: False,
    most_entries: int = MOST_ENTRIES,
) -> Look:
    """Looks through the tree below `top`. Without `since_s`, when the run began (in seconds of the epoch), it looks for
    repositories only. `roots` are all directories where commands may write; those elsewhere do not matter. No path contains
    links. `gitlinks` are the repositories in git's index, relative to `top`, which are looked at even if the walk does not reach
    them. `users` are the user's own settings that count in each (`users_relative_programs`). `writable` are further places, without
    links, that commands may write: what a link leads to there is looked at too. `places` are those of git for `top` and the roots,
    if they are known. `is_over` says now and then whether to end, and may
    raise.
    """
    walk = _Walk(
        *(top, roots, places),
        since_s=since_s,
        users=users,
        writable=writable,
        most_entries=most_entries,
    )
    is_cut, count = False, 0
    for count, directory in enumerate(walk.pending):
        is_cut = (count % _LOOKS_UP_EVERY == 0 and is_over()) or not walk.look_into(directory)
        if is_cut:
            break
    links = {f"{top.rstrip('/')}/{link}" for link in gitlinks}
    reached = walk.pending[:count] if is_cut else walk.pending
    # A link in the place of one is followed here.
    unseen = {*links.difference(reached), *links.intersection(walk.links)} if links else ()
    for directory in sorted(unseen):
        walk.found += walk.repositories(directory, _asked(directory), _below(top, directory))
    return Look(
        *(tuple(dict.fromkeys(walk.found)), is_cut, tuple(dict.fromkeys(walk.changed))),
        *(tuple(walk.closed), tuple(walk.git_directories), walk.overfull),
    )


class _Linked(Struct, frozen=True):
    """A directory that the look has reached by a link."""

    path: str
    """Its path by the link, relative to the top."""
    is_open: bool
    """Whether commands may write it, so that all below is looked at. Of another one, only its protected files are."""
    is_new: bool
    """Whether the link was made during the run."""


class _Walk:
    """The directories of one look, and what was found in them. The parameters are those of `look_below`."""

    def __init__(
        self,
        top: str,
        roots: Sequence[str],
        places: GitPlaces | None,
        *,
        since_s: float | None,
        users: Sequence[tuple[str, str]],
        writable: Sequence[str],
        most_entries: int,
    ) -> None:
        self._top, self._since_s, self._users, self._left = top, since_s, users, most_entries
        # Changes in these are undone, if commands may write them at all.
        self._tops = tuple(dict.fromkeys((top, *roots)))
        places = git_places(self._tops, {}, os.getuid()) if places is None else places
        compared = GuardedFiles(COMPARED, (), places.claimed)
        self._guarded, self.overfull = frozenset(compared.git_directories), compared.overfull
        self._writable = (*self._tops, *places.granted, *places.parts, *writable)
        # A directory that may have protected files has one of these names, or one of them in it. Few directories do.
        folders_or_names = (
            name.rpartition("/")[0] or name for name in names_below_tops() if since_s is not None
        )
        self._telling = frozenset(one.rpartition("/")[2].lower() for one in folders_or_names)
        self._is_below = below_tops(roots or (top,))
        self.pending = [top]
        """Directories, and links that may lead to some."""
        self.links: set[str] = set()
        self._linked: dict[str, _Linked] = {}
        self._around: dict[str, list[NestedRepository]] = {}
        self.git_directories: dict[str, None] = {}
        self.found: list[NestedRepository] = []
        self.changed: list[str] = []
        self.closed: list[str] = []

    def look_into(self, directory: str) -> bool:
        """Looks into one of `pending`, and adds what is in it to them. False if there are too many entries."""
        if directory in self.links:
            self._follow(directory)
            return self._left >= 0
        linked = self._linked.get(directory)
        path = _below(self._top, directory) if linked is None else linked.path
        listed = _listed(directory)
        if listed is None:
            status = status_of(directory)
            # This user, and so a command, may have made something there, or nobody knows.
            if status is None or status.st_uid == os.getuid() or os.access(directory, os.W_OK | os.X_OK):
                self.closed.append(path)
            listed = _asked(directory), [], []
        names, folders, links = listed
        self._left -= len(names)
        if self._left < 0:
            return False
        above = directory.rstrip("/")
        self._add_protected(above, path, names)
        for name in folders:
            child = f"{above}/{name}"
            if linked is None:
                self.pending += [child] if name != _GIT else []
            elif name != _GIT and (linked.is_open or name.lower() in self._telling):
                self._reach(child, _Linked(f"{path}/{name}", linked.is_open, linked.is_new))
        if linked is None or linked.is_open:
            # The one of a repository leads to its git directory, which is looked at with it.
            found = [f"{above}/{name}" for name in links if name != _GIT]
            self.links.update(found)
            self.pending += found
            if _GIT in names or "head" in names:
                self.found += self.repositories(directory, names, path)
        return True

    def _add_protected(self, above: str, path: str, names: Collection[str]) -> None:
        linked = self._linked.get(above)
        shown = f"{self._top.rstrip('/')}/{path}".rstrip("/")
        is_telling = shown.rpartition("/")[2].lower() in self._telling
        if not is_telling and self._telling.isdisjoint(names):
            return
        since_s = self._since_s
        # An old folder can get a protected name.
        has_new_name = is_telling and is_new(above, since_s or 0.0)
        is_all_new = has_new_name or (linked is not None and linked.is_new)
        files = sorted(entry.name for entry in entries_in(above or "/", lambda entry: not is_folder(entry)))
        self.changed += (
            _below(self._top, f"{shown}/{name}")
            for name in files
            if self._is_below(f"{shown}/{name}") and (is_all_new or is_new(f"{above}/{name}", since_s or 0.0))
        )

    def _reach(self, directory: str, linked: _Linked) -> None:
        known = self._linked.get(directory)
        if directory in self._tops:
            return
        if known is None or (linked.is_open and not known.is_open):
            self._linked[directory] = linked
            self.pending.append(directory)

    def _follow(self, link: str) -> None:
        """Looks at what a link leads to, if the walk itself does not come there: for the repository that git would find there, and
        for what is below it. What commands cannot write matters only if they made the link.
        """
        target = _directory_behind(link)
        if target is None or any(_is_walked(target, top) for top in self._tops):
            return
        around = self._linked.get(os.path.dirname(link))
        path = _below(self._top, link) if around is None else f"{around.path}/{os.path.basename(link)}"
        is_open = is_within_any(target, self._writable)
        is_made = (
            around is None and self._since_s is not None and is_new(link, self._since_s, looks=(os.lstat,))
        )
        if not (is_open or is_made):
            return
        self._left -= _ENTRIES_PER_LINK
        self._reach(target, _Linked(path, is_open, is_made))
        for count, directory in enumerate((target, *directories_above(target))):
            is_commands = is_within_any(directory, self._writable)
            if directory in self._tops or not (is_made or is_commands):
                return
            names = _asked(directory)
            if directory not in self._around:
                self._around[directory] = [*self.repositories(directory, names, "")]
            self.found += (replace(one, path=path) for one in self._around[directory])
            if is_commands and count:  # agents look for their files there too
                self._reach(directory, _Linked(path + "/.." * count, is_open=False, is_new=is_made))
            # What commands make may only look like a repository, and then git looks further.
            elif not is_commands and any(one.issubset(names) for one in (*_REPOSITORY, {_GIT})):
                return

    def repositories(self, directory: str, names: Collection[str], path: str) -> Iterator[NestedRepository]:
        """Yields what git may take for a repository in a directory, if it names a program, or holds one that the user's settings
        name: it has `.git`, or looks like a bare one. Git looks at the second if the first is not a repository. `path` is its
        path for people.
        """
        is_top = directory == self._top
        places = git_places((directory,), {}, os.getuid()) if _GIT in names and not is_top else None
        if places is not None:
            self._add_git_directories(places.claimed)
        # Git would run here what the configuration of another checkout, which is guarded too, means for that one.
        if places is not None and (places.refused or not self._guarded.issuperset(places.claimed)):
            named = git_directory(directory)
            if named is not None and (programs := self._programs_of(os.path.realpath(named), directory)):
                yield NestedRepository(path, programs)
        # What is at the top may be a repository only since this run, and nothing was guarded then.
        is_bare = any(one.issubset(names) for one in _REPOSITORY) and (
            is_top or directory not in self._guarded
        )
        if is_bare and not is_top:
            self._add_git_directories((directory,))
        # There it decides where the user's next commit and push go: in place of a damaged `.git`, or of a repository above.
        is_instead = _GIT in names or (
            self._since_s is not None and is_new(f"{directory}/HEAD", self._since_s)
        )
        replaces = ("HEAD",) if is_top and is_instead else ()
        if is_bare and (programs := self._programs_of(directory, directory) or replaces):
            yield NestedRepository(path, programs, is_bare=True)

    def _programs_of(self, directory: str, tree: str) -> tuple[str, ...]:
        """The names of the programs that a git directory names, and of the hooks of remotes on this machine that commands can write:
        a push runs them.
        """
        programs = _programs(directory, tree, self._users)
        for place in {directory, common_directory(directory) or directory}:
            for name, value in settings(beginning_of(f"{place}/config")):
                found = _REMOTE.fullmatch(name)
                address = value if found is None or found[1] is None else found[1]
                path = os.path.join(tree, os.path.expanduser(address.removeprefix("file://")))
                remote = next((one for one in (path, f"{path}/{_GIT}", f"{path}.git") if _asked(one)), None)
                if found and remote and is_within_any(os.path.realpath(remote), self._writable):
                    programs += tuple(f"{name}: {one}" for one in _all_programs(remote))
        return programs

    def _add_git_directories(self, found: Iterable[str]) -> None:
        new = (one for one in found if one not in self._guarded and is_within_any(one, self._writable))
        self.git_directories.update(dict.fromkeys(new))


def _is_walked(directory: str, top: str) -> bool:
    """Whether a walk through `top` comes to a directory: it passes by what is in a `.git`."""
    return is_within(directory, top) and f"/{_GIT}/" not in f"/{_below(top, directory)}/"


def _directory_behind(link: str) -> str | None:
    """The directory to which a link leads, without links. None if it leads to none. Takes a fifth of the time of `realpath`."""
    try:
        descriptor = os.open(link, HELD_DIRECTORY)
    except OSError:
        return None
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return os.path.realpath(link)
    finally:
        os.close(descriptor)


def _below(top: str, path: str) -> str:
    return path[len(top.rstrip("/")) + 1 :]


def _listed(directory: str) -> tuple[set[str], list[str], list[str]] | None:
    """The names in a directory, in small letters and without ignored characters, which some file systems do not distinguish, those
    of its directories, and those of its links. Empty if it is gone, and None if it cannot be read.
    """
    try:
        with os.scandir(directory) as listing:
            entries = [*listing]
            folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            links = [entry.name for entry in entries if entry.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return set(), [], []
    except OSError:
        return None
    names = {entry.name.lower() for entry in entries}
    if not "".join(names).isascii():
        names |= {name.translate(IGNORED_CHARACTERS) for name in names}
    return names, folders, links


def _asked(directory: str) -> set[str]:
    """Those of the names of a repository that are in a directory, which need not be readable."""
    return {name.lower() for name in _ASKED if os.path.lexists(f"{directory}/{name}")}


def _programs(directory: str, tree: str, users: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The names of the programs that a git directory names, and of the user's settings that name one in its working tree."""
    places = ((name, f"{tree}/{word}") for name, word in users)
    theirs = (name for name, place in places if os.path.isfile(place) or hooks_in(place))
    return tuple(dict.fromkeys((*_all_programs(directory), *theirs)))


def _all_programs(directory: str) -> Iterator[str]:
    common = common_directory(directory)
    for place in (directory, *(() if common is None else (os.path.realpath(common),))):
        for file in ("config", "config.worktree"):
            content = beginning_of(f"{place}/{file}")
            yield from (name for name, _ in programs_named(content))
            if len(content) >= MOST_BYTES:
                yield _TOO_LARGE
        yield from (path.removeprefix(f"{place}/") for path in hooks_in(f"{place}/hooks"))


def last_look(roots: Sequence[str], since_s: float, environment: Mapping[str, str]) -> str:
    """The look through the working directories at the end of a run: sentences for people. Empty if nothing was found. `since_s` is the time when the run began, in seconds of the epoch."""
    until_s = time.monotonic() + _LOOKS_FOR_S
    outermost = [root for root in roots if not any(root != one and is_within(root, one) for one in roots)]
    looks: list[Look] = []
    told: list[str] = []

    def look() -> None:
        with suppress(OSError):  # a shortage of this machine, after the work is done
            search = search_outside(environment, roots)
            places = git_places(roots, environment, os.getuid())
            told.append(changed_by_run(roots, since_s, environment, places.claimed, search))
            told.append(planted_in_git(roots, since_s, places))
            if told[-1]:  # without the links that are removed, git may find other directories
                places = git_places(roots, environment, os.getuid())
            users = users_relative_programs(environment)
            looks.extend(
                look_below(
                    one,
                    roots=roots,
                    since_s=since_s,
                    users=users,
                    writable=search.roots,
                    places=places,
                    is_over=lambda: time.monotonic() > until_s,
                )
                for one in outermost
            )
            below = [directory for one in looks for directory in one.git_directories]
            told.append(planted_below(below, since_s, places.claimed))

    try:
        start_job(look, name="last look").join(_MOST_S)
    except ShortageError:
        look()
    sentences = [one.sentence() for one in [*looks]]
    if len(told) < _PARTS:  # too many entries, or the file system does not answer
        sentences.append("git's own directories could not all be looked through for links")
    if len(looks) < len(outermost):
        sentences.append(Look((), is_cut=True).sentence())
    return "; ".join(filter(None, (*told, *sentences)))
