"""The protected paths: paths that file tools must not write, and paths that they must not read either.

One value, built here. Pure. It judges absolute paths after links are followed. `tools/files/path_guard.py` collects
the facts, follows the links and knows which file was opened. The writable directories (`--add-dir`) are not decided
here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ralph.sandbox.secret_places import SECRET_PLACES, Bases, expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_ASK_TO_COPY = "Whoever starts ralph can put what the task needs of it into the working directory"
_ASK_TO_CHANGE = "Whoever starts ralph can change it"
_USE_GIT = "Use git itself, with Bash (git commit, git config, git remote, ...)"
_FROM_ELSEWHERE = "Whoever starts ralph can start one that is installed elsewhere"

_OWN = "is ralph's own configuration"
_STATE = "holds ralph's own state: sessions and the records of loops"
_GIT = "is git's own: what stands there can make git run programs"
_PACKAGE = "is the ralph that runs"
_INTERPRETER = "holds the Python that ralph runs on"


class Protection(Struct, frozen=True):
    """Why a path is protected. `{place} {predicate}. {advice}` is a sentence for the model."""

    place: str
    predicate: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place} {self.predicate}. {self.advice}"


class ProtectedPath(Struct, frozen=True):
    """A file, or a directory with everything beneath it. It need not exist."""

    path: str
    """Absolute, links followed."""
    predicate: str
    advice: str
    may_be_read: bool = False


class ProtectedName(Struct, frozen=True):
    """Names that are never written, at any depth. Case is ignored, because some file systems ignore it."""

    name: str
    """A name, or the end of a path; `*` stands for anything but a slash."""
    predicate: str
    advice: str

    def is_part_of(self, path: str) -> bool:
        pattern = re.escape(self.name).replace(r"\*", "[^/]*")
        return re.search(f"/{pattern}(/|$)", path, re.IGNORECASE) is not None


PROTECTED_NAMES = (
    ProtectedName(".git", _GIT, _USE_GIT),
    ProtectedName("ralph.toml", _OWN, _ASK_TO_CHANGE),
    ProtectedName(".claude/settings*.json", "says what agents may do here", _ASK_TO_CHANGE),
    ProtectedName(".mcp.json", "says which programs agents start", _ASK_TO_CHANGE),
)

# Characters that HFS+ ignores in a name when it compares (as git's own check of `.git` knows).
_IGNORED_CHARACTERS = dict.fromkeys(
    (*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF)
)

# Entries that git itself uses in a git directory. A bare repository may also hold other files there:
# worktrees.
_GIT_NAMES = (
    *(
        "HEAD",
        "FETCH_HEAD",
        "ORIG_HEAD",
        "config",
        "config.worktree",
        "hooks",
        "info",
        "objects",
        "refs",
        "reftable",
    ),
    *(
        "packed-refs",
        "logs",
        "index",
        "worktrees",
        "modules",
        "commondir",
        "gitdir",
        "branches",
        "remotes",
        "shallow",
    ),
    *("lfs", "rebase-merge", "rebase-apply", "sequencer", "description"),
)
# The entries of ralph's state directory, wherever that is.
_STATE_NAMES = ("sessions", "loops", "loop.key")


class PlaceFacts(Struct, frozen=True):
    """The facts of this machine and this run. All paths are absolute."""

    roots: tuple[str, ...]
    """The directories in which Write and Edit may write, links followed; the working directory first."""
    homes: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment that ralph was started with."""
    configuration: tuple[str, ...] = ()
    """Files and directories of ralph's settings, credentials among them."""
    state: tuple[str, ...] = ()
    """Directories with ralph's sessions and loops."""
    package: str | None = None
    """The directory of this ralph's package."""
    prefixes: tuple[str, ...] = ()
    """The Python environment that ralph is installed in, and the Python installation that this environment is based on.
    """
    code: tuple[str, ...] = ()
    """The parts of the prefixes that programs load code from, for a prefix that is too large to protect as a whole
    (/usr).
    """
    git_directories: tuple[str, ...] = ()
    """The git directories of the checkouts around the roots, including those that linked working trees share."""


class ProtectedPaths(Struct, frozen=True):
    paths: tuple[ProtectedPath, ...]
    roots: tuple[str, ...]
    homes: tuple[str, ...] = ()
    """The home directories, links followed. If a root contains a home directory, that directory's dotfiles are
    protected.
    """
    names: tuple[ProtectedName, ...] = PROTECTED_NAMES

    def why_not_read(self, path: str) -> Protection | None:
        """The rule that protects a path from reading; None: it may be read."""
        for place in self.paths:
            if not place.may_be_read and is_within(path, place.path):
                return Protection(place.path, place.predicate, place.advice)
        return None

    def why_not_written(self, path: str) -> Protection | None:
        """The rule that protects a path from writing; None: this table allows writing."""
        for place in self.paths:
            if is_within(path, place.path):
                return Protection(place.path, place.predicate, place.advice)
        plain = path.translate(_IGNORED_CHARACTERS)
        for known in self.names:
            if known.is_part_of(plain):
                return Protection(known.name, known.predicate, known.advice)
        return self._as_dotfile(path)

    def hidden_beneath(self, directory: str) -> tuple[str, ...]:
        """The unreadable paths beneath a directory, relative to it, without the directory itself."""
        above = directory.rstrip("/") + "/"
        return tuple(
            place.path[len(above) :]
            for place in self.paths
            if not place.may_be_read and place.path.startswith(above)
        )

    def listed(self) -> Iterator[tuple[str, str, bool]]:
        """The table for people: each place, the reason, and whether it may be read."""
        yield from ((place.path, place.predicate, place.may_be_read) for place in self.paths)
        yield from ((name.name, name.predicate, True) for name in self.names)
        yield from ((f"{home}/.*", "is read by programs that start", True) for home in self._exposed_homes())

    def _exposed_homes(self) -> Iterator[str]:
        return (home for home in self.homes if any(is_within(home, root) for root in self.roots))

    def _as_dotfile(self, path: str) -> Protection | None:
        """The rule for a dotfile of a home directory.

        The rule does not apply in a root below the home (`--add-dir ~/.config/x`), even if a dotfile is above that
        root.
        """
        root = max((root for root in self.roots if is_within(path, root)), key=len, default=None)
        for home in self.homes:
            if root is None or not is_within(home, root):
                continue
            if is_within(path, home) and path[len(home) :].lstrip("/").startswith("."):
                where = "is a dotfile of the home directory: programs run what stands there"
                return Protection(path, where, "Whoever starts ralph can name a project by --cd or --add-dir")
        return None


def is_within(path: str, directory: str) -> bool:
    """Whether a path is the directory, or beneath it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def protected_paths(facts: PlaceFacts, resolved: Callable[[str], str]) -> ProtectedPaths:
    """The table for these places. `resolved` follows the links of a path whose last parts need not exist."""
    found: dict[str, ProtectedPath] = {}
    for place in (*_own_places(facts), *_secret_places(facts), *_git_places(facts), *_code_places(facts)):
        path = resolved(place.path)
        found.setdefault(path, ProtectedPath(path, place.predicate, place.advice, place.may_be_read))
    homes = tuple(dict.fromkeys(map(resolved, facts.homes)))
    return ProtectedPaths(tuple(found.values()), facts.roots, homes)


def _own_places(facts: PlaceFacts) -> Iterator[ProtectedPath]:
    for path in facts.configuration:
        yield ProtectedPath(path, _OWN, _ASK_TO_CHANGE)
    for directory in facts.state:
        for path in _narrowed(directory, _STATE_NAMES, facts.roots):
            yield ProtectedPath(path, _STATE, "`ralph sessions show` shows a session to whoever starts ralph")


def _secret_places(facts: PlaceFacts) -> Iterator[ProtectedPath]:
    bases = _bases(facts)
    for holds, templates in SECRET_PLACES:
        for template in templates:
            for path in expanded(template, bases):
                # A variable that names the work itself (DOCKER_CONFIG=.) is no reason to refuse the work.
                if not (template.startswith("$") and _contains_any(path, facts.roots)):
                    yield ProtectedPath(path, f"holds {holds}", _ASK_TO_COPY)


def _bases(facts: PlaceFacts) -> Bases:
    def below(variable: str, usual: str) -> tuple[str, ...]:
        """The directory in the variable, and the usual one, which may hold files from before the variable was set."""
        named = facts.variables.get(variable, "")
        usuals = (f"{home.rstrip('/')}/{usual}" for home in facts.homes)
        return tuple(dict.fromkeys((*([named] if named.startswith("/") else ()), *usuals)))

    runtime = facts.variables.get("XDG_RUNTIME_DIR", "")
    return Bases(
        homes=facts.homes,
        config=below("XDG_CONFIG_HOME", ".config"),
        data=below("XDG_DATA_HOME", ".local/share"),
        cache=below("XDG_CACHE_HOME", ".cache"),
        runtime=(runtime,) if runtime else (),
        variables=facts.variables,
    )


def _git_places(facts: PlaceFacts) -> Iterator[ProtectedPath]:
    for directory in facts.git_directories:
        for path in _narrowed(directory, _GIT_NAMES, facts.roots):
            yield ProtectedPath(path, _GIT, _USE_GIT, may_be_read=True)


def _code_places(facts: PlaceFacts) -> Iterator[ProtectedPath]:
    if facts.package is not None:
        yield ProtectedPath(facts.package, _PACKAGE, _FROM_ELSEWHERE, may_be_read=True)
    for path in (*facts.prefixes, *facts.code):
        if not _contains_any(path, facts.roots):  # /usr, with the work in /usr/src
            yield ProtectedPath(path, _INTERPRETER, _FROM_ELSEWHERE, may_be_read=True)


def _narrowed(directory: str, names: Iterable[str], roots: Sequence[str]) -> Iterator[str]:
    """The directory itself. If it contains one of the `roots`, only its entries whose names are in `names`."""
    if _contains_any(directory, roots):
        yield from (f"{directory.rstrip('/')}/{name}" for name in names)
    else:
        yield directory


def _contains_any(directory: str, roots: Sequence[str]) -> bool:
    return any(is_within(root, directory) for root in roots)
