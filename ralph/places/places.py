"""Applies the table of places to one run: which paths its tools must not read or write. No I/O happens here.

The rules apply to absolute paths without symbolic links: `tools/path_guard.py` resolves links, and checks which file
was really opened.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.files.paths import directories_above, is_within, is_within_any, outermost
from ralph.places import table
from ralph.places.table import (
    COMPARED,
    FILTERED,
    JUDGED,
    READ_ONLY,
    SANDBOX_GUARDS,
    SHOWN,
    UNREAD,
    UNWRITTEN,
    PlaceRow,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ralph.places.table import Bases

_NAME, _DOTFILES = "**/", "/.*"
# Characters that HFS+ ignores when it compares names. Git's own check of the name `.git` ignores them too.
IGNORED_CHARACTERS = dict.fromkeys(
    (*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF)
)
# Directories of the system (hier(7)). Those of accounts of the system, such as daemon, may be among them.
_PROGRAMS = tuple("/bin /boot /dev /etc /lib /lib32 /lib64 /nix /proc /sbin /sys /usr".split())
_SHARED = ("/opt", "/run", "/snap", "/srv", "/tmp", "/var", "/var/lib", "/var/tmp")  # noqa: S108 - only names
_AROUND_HOMES = frozenset({"home", "homes", "Users"})
# XDG Base Directory Specification: the variable, and the usual place below the home directory.
XDG = {
    "config": ("XDG_CONFIG_HOME", ".config"),
    "data": ("XDG_DATA_HOME", ".local/share"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
}


class GuardedPlace(Struct, frozen=True):
    """A guarded file, or a guarded directory with everything inside it. `str()` of it is two sentences for the model."""

    path: str
    """The absolute path, without symbolic links. A path that ends with `/.*` stands for all dotfiles there. One that
    begins with `**/` stands for a name in any directory."""
    row: PlaceRow

    def __str__(self) -> str:
        return f"{self.path} {self.row.why}. {self.row.advice}"

    @property
    def is_secret(self) -> bool:
        """Whether it must not be read, and is not a home of which only a part is shown."""
        return self.is_unread and self.row.around_work != "unshown"

    @property
    def is_unread(self) -> bool:
        return UNREAD in self.row.guards

    def has(self, path: str) -> bool:
        """Whether `path` is this place or is inside it. Upper and lower case of a name are equal, as for some file systems."""
        if self.path.startswith(_NAME):
            return is_named(path, self.path.removeprefix(_NAME))
        if self.path.endswith(_DOTFILES):
            return path.startswith(self.path[:-1])
        return is_within(path, self.path)


def is_named(path: str, name: str) -> bool:
    """Whether a part of `path` has a name from the table: one or several parts. `*` matches any characters but a slash."""
    found = re.search(f"{_pattern(name)}(/|$)", path.translate(IGNORED_CHARACTERS), re.IGNORECASE)
    return found is not None


def _pattern(name: str) -> str:
    return "/" + re.escape(name).replace(r"\*", "[^/]*")


def names_at(root: str, guard: str) -> tuple[str, ...]:
    """The names that are guarded at the top of a root, relative to it. A root may itself be the folder of one: in `x/.claude`,
    the name `.claude/settings*.json` is `settings*.json`.
    """
    folders = root.split("/")
    found = []
    for name in table.names_with(guard):
        parts = name.split("/")
        for count in range(len(parts)):
            around = "/".join(("", *folders[len(folders) - count :]))
            if not count or is_named(around, "/".join(parts[:count])):
                found.append("/".join(parts[count:]))
    return tuple(found)


def below_tops(roots: Iterable[str]) -> Callable[[str], bool]:
    """Returns a function that tells whether a file has a protected name below the top of each root (at least one) that contains
    it. At the top, changes of commands are undone. A file or link in the place of a folder of such a name counts too.
    Repositories do not: see `nested_repositories.py`.
    """
    names = table.names_below_tops()
    folders = (f"{_pattern(name.rpartition('/')[0])}$" for name in names if "/" in name)
    obeyed = re.compile("|".join((*(f"{_pattern(name)}(?:/|$)" for name in names), *folders)), re.IGNORECASE)
    tops = [root.rstrip("/") for root in roots]

    def is_below(path: str) -> bool:
        inside = [path[len(top) + 1 :].translate(IGNORED_CHARACTERS) for top in tops if is_within(path, top)]
        return bool(inside) and all(obeyed.search("".join(rest.partition("/")[1:])) for rest in inside)

    return is_below


class GuardedPlaces(Struct, frozen=True):
    """The places that the tools of a run must not read or write, in the order of the table."""

    found: tuple[GuardedPlace, ...]
    roots: tuple[str, ...]
    """The directories where Write and Edit may write. The first is the working directory."""
    given: tuple[str, ...] = ()
    """Files and directories that may be read because of the user's settings. A secret place inside one stays closed."""
    shown: tuple[str, ...] = ()
    """The parts of the closed homes that may be read."""
    judged: tuple[tuple[str, PlaceRow], ...] = ()
    """The rows of names that are judged by what a file holds, each with a regular expression for the names."""
    by_guard: Mapping[str, tuple[str, ...]] = {}
    """For each guard of commands (`SANDBOX_GUARDS`), its paths on this machine. They may contain symbolic links. Names and
    the entries of git directories are not among them."""

    def guarded(self, guard: str, sandbox: Bases) -> tuple[str, ...]:
        """The paths with a guard of commands. `sandbox` has the places that exist only in the sandbox."""
        return tuple(dict.fromkeys((*self.by_guard.get(guard, ()), *table.paths_with(guard, sandbox))))

    def why_not_read(self, path: str, more_given: Iterable[str] = ()) -> GuardedPlace | None:
        """The place because of which a path must not be read, or None. `more_given` may be read like `given`."""
        given = [one for one in (*self.given, *more_given) if is_within(path, one)]
        return self._place_of(path, UNREAD, given)

    def in_or_around(self, directory: str) -> GuardedPlaces:
        """Only those of these places that decide what may be read in a directory: they answer faster for many paths there."""
        near = (one for one in self.found if is_within(one.path, directory) or is_within(directory, one.path))
        return replace(self, found=tuple(near))

    def secrets_around(self, path: str) -> tuple[PlaceRow, ...]:
        """The rows of the secret places that a path is, or is in, whatever the settings allow."""
        return tuple(place.row for place in self.found if place.is_secret and place.has(path))

    def why_judged(self, path: str) -> GuardedPlace | None:
        """The row because of whose name a file must not be read if it holds credentials: it is in what is shown of a home. None
        if its content does not matter.
        """
        name = path.rpartition("/")[2]
        row = next((row for names, row in self.judged if re.fullmatch(names, name, re.IGNORECASE)), None)
        if row is None or is_within_any(path, (*self.roots, *self.given)):
            return None
        return GuardedPlace(path, row) if is_within_any(path, self.closed_homes) else None

    def why_not_written(self, path: str) -> GuardedPlace | None:
        """The place because of which a path must not be written, or None if the table allows writing it."""
        return self._place_of(path, UNWRITTEN)

    def open_of(self, roots: Iterable[str]) -> tuple[str, ...]:
        """Those of the roots that commands may write: a root that is, or is in, a protected place is none of them."""
        return tuple(root for root in roots if self._place_of(root, UNWRITTEN) is None)

    def _place_of(self, path: str, guard: str, given: Iterable[str] = ()) -> GuardedPlace | None:
        for place in self.found:
            if (
                guard in place.row.guards
                and place.has(path)
                and not self._spares(place, path)
                and not any(map(place.has, given))
            ):
                shown = path if place.path.endswith(_DOTFILES) else place.path.removeprefix(_NAME)
                return GuardedPlace(shown, place.row)
        return None

    def _spares(self, place: GuardedPlace, path: str) -> bool:
        spared = {"rest": self.roots, "unshown": (*self.roots, *self.shown)}.get(place.row.around_work, ())
        return any(is_within(path, one) and place.has(one) for one in spared)

    @property
    def unread(self) -> tuple[str, ...]:
        """The secret paths, which must not be read. Those that the settings allow are among them."""
        return tuple(place.path for place in self.found if place.is_secret)

    @property
    def closed_homes(self) -> tuple[str, ...]:
        """The home directories of which only `shown`, the roots and `given` may be read."""
        return tuple(place.path for place in self.found if place.row.around_work == "unshown")

    def hidden_beneath(self, directory: str) -> tuple[str, ...]:
        """The paths inside a directory that must not be read, relative to it, and not the directory itself."""
        above = directory.rstrip("/") + "/"
        beneath = (path for path in (*self.closed_homes, *self.unread) if path.startswith(above))
        return tuple(path[len(above) :] for path in outermost(beneath))


def places_of(
    bases: Bases,
    variables: Mapping[str, str],
    resolved: Callable[[str], str],
    outside: Callable[[str], str | None],
) -> GuardedPlaces:
    """Applies the table. `bases` has the roots without links, and `given`, what the settings allow to be read. `variables` are
    those with which ralph was started. `resolved` resolves the links of a path that need not exist. `outside` does the same, and
    returns None if the way leads through a place that commands may write.
    """
    roots, homes = tuple(bases.get("root", ())), bases.get("~", ())
    in_roots = [home for home in map(resolved, homes) if is_within_any(home, roots)]
    given = tuple(bases.get("given", ()))
    own = [*dict.fromkeys(home for home in map(resolved, homes) if _may_be_closed(home, (*roots, *given)))]
    of_others = bases.get("other homes", ())
    others = [one for one in of_others if _may_be_closed(one, (*roots, *given)) and is_of_a_person(one)]
    xdg = xdg_bases(homes, variables)
    # Whatever names them, these are not shown as a whole.
    wide = [*own, *others]
    wide += [resolved(f"{one}/{name}") for one in (*homes, *others) for name in (".local", ".linuxbrew")]
    wide += [resolved(one) for name in XDG for one in xdg[name] if one.startswith("/")]
    wide += [f"{one}/{usual}" for one in others for _, usual in XDG.values()]
    bases = {**bases, **xdg, "home in a root": in_roots, "closed home": own, "other homes": others}
    closed = {*own, *others}
    found: dict[tuple[str, int], GuardedPlace] = {}
    for number, row in enumerate(table.ROWS):
        if UNREAD in row.guards or UNWRITTEN in row.guards:
            for template in row.where:
                if template.startswith(_NAME):
                    found[template, number] = GuardedPlace(template, row)
                for path in _around_work(row, template, table.expanded(template, bases, variables), roots):
                    real = path if path.endswith(_DOTFILES) else resolved(path)
                    # A link may lead from the place of one row to that of another.
                    found.setdefault((real, number), GuardedPlace(real, row))
    for_commands = [row for row in table.ROWS if not SANDBOX_GUARDS.isdisjoint(row.guards)]
    secret = {path for (path, _), place in found.items() if UNREAD in place.row.guards and path not in closed}
    named = table.paths_with(SHOWN, {**bases, "checkout": ()}, variables)
    around = {one for path in wide for one in (path, *directories_above(path))}
    shown = (
        path
        # The checkouts have no links, and commands may write the git directories among them.
        for path in (*_real(named, outside), *bases.get("checkout", ()))
        if path not in around
        if secret.isdisjoint(way := (path, *directories_above(path))) and not closed.isdisjoint(way)
    )
    judged = (
        ("|".join(_pattern(name.removeprefix(_NAME))[1:] for name in row.where), row)
        for row in table.ROWS
        if JUDGED in row.guards
    )
    made = GuardedPlaces(tuple(found.values()), roots, given, outermost(shown), tuple(judged))
    without_git = {**bases, "git": (), "root": made.open_of(roots)}
    by_guard = {
        guard: table.paths_with(guard, without_git, variables, for_commands) for guard in SANDBOX_GUARDS
    }
    by_guard[FILTERED] = tuple(_real(by_guard[FILTERED], outside))
    for guard in (READ_ONLY, COMPARED):  # the directory is resolved, not the entry: a link is guarded itself
        split = (path.rpartition("/") for path in by_guard[guard])
        by_guard[guard] = tuple(f"{resolved(above or '/').rstrip('/')}/{name}" for above, _, name in split)
    return replace(made, by_guard=by_guard)


def _may_be_closed(home: str, opened: Sequence[str]) -> bool:
    """Whether only a part of a home may be shown. One in an open place is open."""
    return not is_within_any(home, opened) and not is_needed_as_a_whole(home)


def is_needed_as_a_whole(home: str) -> bool:
    """Whether a home is a directory of the system, contains one, or is in one with programs."""
    return is_within_any(home, _PROGRAMS) or any(is_within(one, home) for one in (*_PROGRAMS, *_SHARED))


def is_of_a_person(home: str) -> bool:
    """Whether a home is where those of people are, such as `/home/x`, and not that of a program, such as `/app` or `/var/www`."""
    above = home.split("/")[1:-1]
    return not _AROUND_HOMES.isdisjoint(above) or (bool(above) and not is_within_any(home, _SHARED))


def _real(paths: Iterable[str], outside: Callable[[str], str | None]) -> dict[str, None]:
    return dict.fromkeys(real for real in map(outside, paths) if real is not None)


def _around_work(row: PlaceRow, template: str, paths: Iterable[str], roots: Sequence[str]) -> Iterator[str]:
    """Yields what is guarded of each path. One that contains a root can often not be guarded as a whole."""
    for path in paths:
        if not any(is_within(root, path) for root in roots):
            yield path
        elif row.around_work == "entries" or (row.around_work == "itself" and path not in roots):
            yield from (f"{path.rstrip('/')}/{name}" for name in row.entries)
        # If a variable names the working directory itself (DOCKER_CONFIG=.), that must not block all work.
        elif row.around_work != "nothing" and not template.startswith("$"):
            yield path


def xdg_bases(homes: Sequence[str], variables: Mapping[str, str]) -> Bases:
    """For each name, the directory that the variable names, and the usual one, whose files may be older than the variable."""
    return {
        name: tuple(
            dict.fromkeys((variables.get(variable, ""), *(f"{home.rstrip('/')}/{usual}" for home in homes)))
        )
        for name, (variable, usual) in XDG.items()
    } | {"runtime": (variables.get("XDG_RUNTIME_DIR", ""),)}
