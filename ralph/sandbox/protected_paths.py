"""The table of protected paths. File tools must not write to any protected path, and must not read most protected
paths. No I/O happens here.

The rules apply to absolute paths without symbolic links. `tools/files/path_guard.py` resolves links, and checks which
file was really opened. A separate rule in `tools/files/roots.py` says that file tools write only inside certain
directories.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.machine.repository import is_within
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
_DENIED = "must not be read, as your user's settings say (sandbox.read_deny)"
_HIDDEN = "is hidden by the program that started ralph (RALPH_SANDBOX_HIDE)"
_PACKAGE = "is the ralph that runs"
_INTERPRETER = "holds the Python that ralph runs on"


class Protection(Struct, frozen=True):
    """The reason why a path is protected. `str()` of it is two sentences for the model."""

    place: str
    predicate: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place} {self.predicate}. {self.advice}"


class ProtectedPath(Struct, frozen=True):
    """A protected file, or a protected directory with everything inside it. The file or directory need not exist."""

    path: str
    """The absolute path, without symbolic links."""
    predicate: str
    advice: str
    may_be_read: bool = False
    spares_roots: bool = False
    """True if the roots in the directory are not protected with it."""


class ProtectedName(Struct, frozen=True):
    """A file name that file tools must not write in any directory. Upper and lower case count as equal, because some
    file systems do not distinguish them.
    """

    name: str
    """A file name, or several parts at the end of a path. `*` matches any characters but a slash."""
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

# Characters that HFS+ ignores when it compares names. Git's own check of the name `.git` ignores them too.
_IGNORED_CHARACTERS = dict.fromkeys(
    (*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF)
)

# Entries that git itself uses in a git directory. The directory of a bare repository may also contain other files,
# such as working trees.
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
    """The facts about this machine and this run from which the table of protected paths is made. All paths are
    absolute.
    """

    roots: tuple[str, ...]
    """The directories where Write and Edit may write, without symbolic links. The first is the working directory."""
    homes: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment variables with which ralph was started."""
    configuration: tuple[str, ...] = ()
    """Files and directories with ralph's settings, which may contain credentials."""
    state: tuple[str, ...] = ()
    """Directories that contain ralph's sessions and loop records."""
    package: str | None = None
    """The directory of the `ralph` package that is running."""
    prefixes: tuple[str, ...] = ()
    """The directory of the Python environment in which ralph is installed, and the directory of the Python
    installation on which this environment is based."""
    code: tuple[str, ...] = ()
    """Files and directories from which Python and ralph load code. They are listed separately because a prefix is not
    protected if it contains a root (as the prefix /usr contains the root /usr/src/x)."""
    git_directories: tuple[str, ...] = ()
    """The git directories of the checkouts that contain the roots. A git directory that several working trees share
    is included."""
    denied: tuple[str, ...] = ()
    """Files and directories that must not be read because of the user's settings."""
    given: tuple[str, ...] = ()
    """Secret files and directories that may be read because of the user's settings, without symbolic links."""
    hidden: tuple[str, ...] = ()
    """Files and directories that the program that started ralph hides. The roots in them are not hidden."""


class ProtectedPaths(Struct, frozen=True):
    paths: tuple[ProtectedPath, ...]
    roots: tuple[str, ...]
    homes: tuple[str, ...] = ()
    """The home directories, without symbolic links. Dotfiles in a home directory are protected if a root contains
    this home directory."""
    names: tuple[ProtectedName, ...] = PROTECTED_NAMES
    given: tuple[str, ...] = ()
    """As in `PlaceFacts`."""

    def why_not_read(self, path: str) -> Protection | None:
        """The reason why a path must not be read, or None if it may be read."""
        if any(is_within(path, place) for place in self.given):
            return None
        for place in self.paths:
            if not place.may_be_read and self._covers(place, path):
                return Protection(place.path, place.predicate, place.advice)
        return None

    def why_not_written(self, path: str) -> Protection | None:
        """The reason why a path must not be written, or None if this table allows writing it."""
        for place in self.paths:
            if self._covers(place, path):
                return Protection(place.path, place.predicate, place.advice)
        plain = path.translate(_IGNORED_CHARACTERS)
        for known in self.names:
            if known.is_part_of(plain):
                return Protection(known.name, known.predicate, known.advice)
        return self._as_dotfile(path)

    def _covers(self, place: ProtectedPath, path: str) -> bool:
        if not is_within(path, place.path):
            return False
        return not place.spares_roots or not any(
            is_within(path, root) and is_within(root, place.path) for root in self.roots
        )

    def hidden_beneath(self, directory: str) -> tuple[str, ...]:
        """The paths inside a directory that must not be read, relative to the directory. The directory itself is not
        among them.
        """
        above = directory.rstrip("/") + "/"
        return tuple(
            place.path[len(above) :]
            for place in self.paths
            if not place.may_be_read and place.path.startswith(above)
        )

    def listed(self) -> Iterator[tuple[str, str, bool]]:
        """The table as rows for the user: the path, the reason, and whether it may be read."""
        yield from ((place.path, place.predicate, place.may_be_read) for place in self.paths)
        yield from ((name.name, name.predicate, True) for name in self.names)
        yield from ((f"{home}/.*", "is read by programs that start", True) for home in self._exposed_homes())

    def _exposed_homes(self) -> Iterator[str]:
        return (home for home in self.homes if any(is_within(home, root) for root in self.roots))

    def _as_dotfile(self, path: str) -> Protection | None:
        """The reason why a path is protected as a dotfile in a home directory, or None. A root inside the home
        directory, such as `--add-dir ~/.config/x`, is an exception: this rule does not protect the paths in it.
        """
        root = max((root for root in self.roots if is_within(path, root)), key=len, default=None)
        for home in self.homes:
            if root is None or not is_within(home, root):
                continue
            if is_within(path, home) and path[len(home) :].lstrip("/").startswith("."):
                where = "is a dotfile of the home directory: programs run what stands there"
                return Protection(path, where, "Whoever starts ralph can name a project by --cd or --add-dir")
        return None


def protected_paths(facts: PlaceFacts, resolved: Callable[[str], str]) -> ProtectedPaths:
    """Makes the table from the facts. `resolved` resolves the symbolic links of a path that need not exist."""
    found: dict[str, ProtectedPath] = {}
    denied = (ProtectedPath(path, _DENIED, _ASK_TO_COPY) for path in facts.denied)
    hidden = (ProtectedPath(path, _HIDDEN, _ASK_TO_COPY, spares_roots=True) for path in facts.hidden)
    found_places = (*_own_places(facts), *_secret_places(facts), *denied, *hidden)
    for place in (*found_places, *_git_places(facts), *_code_places(facts)):
        path = resolved(place.path)
        found.setdefault(path, replace(place, path=path))
    homes = tuple(dict.fromkeys(map(resolved, facts.homes)))
    return ProtectedPaths(tuple(found.values()), facts.roots, homes, given=facts.given)


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
                # If a variable names the working directory itself (DOCKER_CONFIG=.), that must not block all work.
                if not (template.startswith("$") and _contains_any(path, facts.roots)):
                    yield ProtectedPath(path, f"holds {holds}", _ASK_TO_COPY)


def _bases(facts: PlaceFacts) -> Bases:
    def below(variable: str, usual: str) -> tuple[str, ...]:
        """The directory that the environment variable names, and the usual directory. The usual one may contain files
        that were made before the variable was set.
        """
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
        if not _contains_any(path, facts.roots):  # not /usr if the work is in /usr/src/x
            yield ProtectedPath(path, _INTERPRETER, _FROM_ELSEWHERE, may_be_read=True)


def _narrowed(directory: str, names: Iterable[str], roots: Sequence[str]) -> Iterator[str]:
    """Yields the directory if it contains no root. Otherwise yields only the entries `names` in it, because a
    directory that contains a root cannot be protected as a whole.
    """
    if _contains_any(directory, roots):
        yield from (f"{directory.rstrip('/')}/{name}" for name in names)
    else:
        yield directory


def _contains_any(directory: str, roots: Sequence[str]) -> bool:
    return any(is_within(root, directory) for root in roots)
