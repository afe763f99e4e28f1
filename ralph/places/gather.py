"""Finds out where the places of the table are on this machine and in this run: home directories, ralph's own files, its
Python and git directories.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import stat
import sys
from contextlib import suppress
from glob import escape, iglob
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ralph.machine.files.paths import (
    LinkResolver,
    beginning_of,
    directories_above,
    entries_in,
    is_folder,
    is_within,
    is_within_any,
    links_and_file,
    outermost,
    project_top,
    status_of,
)
from ralph.machine.own_process import temporary_directory
from ralph.machine.own_programs import absolute_entries, search_outside
from ralph.machine.trusted_programs import RIPGREP, packaged_program
from ralph.places.git_config import settings, submodules_named
from ralph.places.git_places import git_places
from ralph.places.home import (
    checkouts,
    editable_packages,
    existing_in,
    holds_credentials,
    other_homes,
    program_directories,
)
from ralph.places.named_paths import (
    INCLUDES,
    TEMPLATES,
    about_programs,
    changed_programs,
    read_by_git,
    relative_programs,
    ssh_files_of_agents,
    work_named_by_git,
)
from ralph.places.places import names_at, places_of, xdg_bases
from ralph.places.state import chosen_state_directory, named_state_directories
from ralph.places.table import (
    COMPARED,
    FILTERED,
    PATTERNS,
    SHOWN,
    UNREAD,
    expanded,
    git_entries_with,
    paths_with,
)
from ralph.values.credentials import SANDBOX_HIDE, callers_places, credential_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ralph.machine.own_programs import ProgramSearch
    from ralph.places.named_paths import NamedByGit
    from ralph.places.places import GuardedPlaces
    from ralph.places.table import Bases

Kind = Literal["around", "tree", "file"]
"""The kind of a guarded path: only a directory around guarded ones, a path with everything in it, or a single file."""
_NESTED_IN = ("modules", "worktrees")
"""The folders of a git directory that contain further git directories (gitrepository-layout(5))."""
_MOST_NESTED = 10_000
"""The maximum number of folders in which git directories are looked for. The look takes 10 ms for a thousand. With more, no
command starts."""
_GIT_FILES = (
    "~/.gitconfig",
    "{config}/git/config",
    "$GIT_CONFIG_GLOBAL",
    "$GIT_CONFIG_SYSTEM",
    "/etc/gitconfig",
    "{beside git}/etc/gitconfig",
)
_KEY = "GIT_CONFIG_KEY_"
# The condition of an include may have the sign.
_PARAMETER = re.compile(rf"({INCLUDES.pattern}|[^=]*)=(.*)", re.DOTALL | re.IGNORECASE)
_OWN_FILES = ("{config}/ralph/config.toml",)
_AGENTS = ("~/.claude/settings.json", "~/.claude/settings.local.json")
_OF_PROJECTS = (".claude/settings.json", ".claude/settings.local.json", ".mcp.json", "ralph.toml")
_MAGIC = re.compile(r"[*?[]")
PACKAGE = str(Path(__file__).parents[1])
_PACKAGES = frozenset({"site-packages", "dist-packages"})
# What a virtual environment has at its top: the programs that start, and the file that says which Python they are.
_FIRST = ("bin/ralph", "bin/python", "bin/python3", "pyvenv.cfg")
# Prefixes into which everything is installed, also by commands that may write them.
_OF_THE_SYSTEM = ("/usr", "/usr/local")


def gather_places(
    roots: Sequence[str],
    environment: Mapping[str, str],
    configuration: Iterable[Path | None] = (),
    session_directory: Path | None = None,
    *,
    agents: Iterable[Path] = (),
    denied: Iterable[str] = (),
    given: Iterable[str] = (),
) -> GuardedPlaces:
    """Applies the table to this machine and this run. `roots` have no symbolic links and begin with the working directory.

    `configuration`, `session_directory` and `agents` (settings of agents and of MCP servers) are paths from the command line.
    `denied` and `given` are those, without links, that the user's settings deny and allow.
    """
    homes, given = home_directories(environment), tuple(given)
    others = other_homes(environment, homes, roots)
    git = git_places(roots, environment, os.getuid())
    search = search_outside(environment, (*roots, *given, *git.granted, *git.parts))
    writable = search.roots
    outside = LinkResolver(writable).outside
    known = {"~": homes, **xdg_bases(homes, environment)}
    own = (path for template in _OWN_FILES for path in expanded(template, known))
    named = (str(path.absolute()) for path in configuration if path is not None)
    of_agents = (path for one in _AGENTS for path in expanded(one, known))
    chosen = tuple(str(one) for one in (chosen_state_directory(environment), session_directory) if one)
    private = (one for one in known["runtime"] if _is_private(one))
    bases = {
        "root": tuple(roots),
        "~": homes,
        "other homes": others,
        "secrets of others": tuple(_secrets_of(others, known, environment)),
        "shown of others": tuple(existing_in(others, SHOWN)),
        "configuration": tuple(_ways((*named, *own), writable)),
        "settings of agents": tuple(
            _ways((*map(str, agents), *of_agents, *_behind_links(roots, environment)), writable)
        ),
        "state": tuple(one for one in state_directories(environment, homes) if one not in chosen),
        "sessions": chosen,
        "package": (PACKAGE,),
        "prefix": python_prefixes(),
        "code": tuple(_code()),
        "own code": own_code(writable),
        "own start": tuple(_ways(_own_start(environment, writable, next(iter(roots), "/")), writable)),
        "git": git.claimed,
        "named by git": named_in(roots, git.claimed, environment, search).configuration,
        "named by ssh": tuple(_named_by_ssh(search, homes, environment)),
        "checkout": tuple(checkouts(roots, git)),
        "path": tuple(program_directories(environment, outside)),
        "editable": tuple(editable_packages(environment, outside)),
        "denied": tuple(denied),
        "given": given,
        "credential files": tuple(filter(os.path.isfile, credential_files(environment))),
        "hidden": callers_places(SANDBOX_HIDE, environment.get(SANDBOX_HIDE, "")),
        "runtime directory": tuple(one for one in private if not any(is_within(it, one) for it in homes)),
        "gitconfig": (
            *read_by_git(_git_files(homes, environment), next(iter(homes), "/"), outside),
            *_tokens_of_checkouts(git.claimed, next(iter(homes), "/"), outside),
        ),
    }
    bases |= _with_credentials({**known, **bases}, environment)
    return places_of(bases, environment, LinkResolver(), outside)


def _tokens_of_checkouts(
    git_directories: Sequence[str], home: str, outside: Callable[[str], str | None]
) -> Iterator[str]:
    """Yields the files that a checkout's own configuration includes and that hold tokens for git alone, as actions/checkout makes
    them since version 6. Nobody knows who wrote that configuration, so no other file that it names is shown.
    """
    own = {f"{directory}/config": f"{directory}/config" for directory in git_directories}
    for path in read_by_git(own, home, lambda file: own.get(file) or outside(file)):
        real = outside(path)
        names = [name for name, _ in settings(beginning_of(real))] if real is not None else []
        if names and all(name.startswith("http.") and name.endswith(".extraheader") for name in names):
            yield path


def unread_by_git(
    roots: Sequence[str],
    environment: Mapping[str, str],
    *,
    denied: Sequence[str] = (),
    given: Sequence[str] = (),
    has_copies: bool,
) -> Iterator[str]:
    """Yields the files that git reads because the configuration of the roots' checkouts names them, but that commands may not
    read: there each git command fails. `has_copies` says whether commands see files that may hold credentials without these.
    """
    homes = home_directories(environment)
    git = git_places(roots, environment, os.getuid())
    files = [f"{directory}/config" for directory in git.claimed]
    named = [*read_by_git(files, next(iter(homes), "/"), os.path.realpath)]
    if named:
        places = gather_places(roots, environment, denied=denied, given=given)
        copied = places.guarded(FILTERED, {}) if has_copies else ()
        yield from (
            path
            for path in map(os.path.realpath, named)
            if os.path.exists(path) and path not in copied and places.why_not_read(path) is not None
        )


def _secrets_of(others: Sequence[str], known: Bases, environment: Mapping[str, str]) -> Iterator[str]:
    """Yields the secret places in homes of others. What a variable names is the user's own, such as the login of an agent."""
    if others:
        own = frozenset(paths_with(UNREAD, known, environment))
        yield from (path for path in existing_in(others, UNREAD) if path not in own)


def _with_credentials(known: Bases, environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The bases that stand for files with credentials, which depend on what is there."""
    names = [name for name in PATTERNS if name != "services" or os.getuid() == 0]
    homes, found = known["~"], {name: tuple(_matching(known, environment, name)) for name in names}
    own = (pattern.replace("*", str(os.getuid())) for pattern in PATTERNS["tickets"].split())
    # A link in /tmp may be another user's, and would close what it leads to.
    tickets = tuple(one for one in (*own, *found["tickets"]) if not os.path.islink(one))
    # The deny list wins over a pattern that another name happens to match.
    found["mixed files"] = tuple(one for one in found["mixed files"] if one not in found["secret files"])
    known = {**known, **found}
    may_be_mixed = paths_with(FILTERED, known, environment)
    # What lies directly in a home or in a base directory is not shown, and neither are copies of it.
    unshown = {*homes, *chain.from_iterable(known[name] for name in ("config", "data", "cache", "runtime"))}
    secret = (
        path
        for path in set(paths_with(UNREAD, known, environment)).difference(may_be_mixed)
        if path.rpartition("/")[0] not in unshown and is_within_any(path, homes)
    )
    for name, beside in (("secret files", secret), ("mixed files", may_be_mixed)):
        found[name] = (*found[name], *_beside(beside))
    mixed = filter(holds_credentials, paths_with(FILTERED, {**known, **found}, environment))
    outside = (path for path in mixed if not is_within_any(os.path.realpath(path), known["root"]))
    return {**found, "tickets": tickets, "mixed": tuple(outside)}


def _matching(bases: Bases, environment: Mapping[str, str], name: str) -> Iterator[str]:
    """Yields the existing paths that match those of `PATTERNS` of a name."""
    literal = {base: [*map(escape, paths)] for base, paths in bases.items()}
    variables = {variable: escape(value) for variable, value in environment.items()}
    is_there: dict[str, bool] = {}
    for template in PATTERNS[name].split():
        for pattern in expanded(template, literal, variables):
            above = _MAGIC.split(pattern, maxsplit=1)[0].rpartition("/")[0] or "/"
            if above not in is_there:
                is_there[above] = os.path.isdir(above)
            if is_there[above]:  # most toolchains are not there, and a glob takes longer than this
                yield from iglob(pattern)


def _beside(paths: Iterable[str]) -> Iterator[str]:
    """Yields the existing copies beside files, as editors and people make them: `x.bak`, `x~`, `.x.swp`, `#x#`."""
    names: dict[str, list[str]] = {}
    for path in paths:
        above, name = os.path.split(path)
        names.setdefault(above, []).append(name.lstrip("."))
    for above, known in names.items():
        for entry in entries_in(above):
            plain = entry.name.lstrip(".#")
            start = next((name for name in known if plain.startswith(name)), plain)
            rest = plain.removeprefix(start)
            if rest and not rest[0].isalpha():
                yield os.path.join(above, entry.name)


def _is_private(directory: str) -> bool:
    """Whether a directory is this user's alone, as a runtime directory must be: the variable may also name one such as /tmp."""
    status = status_of(directory)
    if status is None or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return False
    return not stat.S_IMODE(status.st_mode) & 0o077


def _ways(files: Iterable[str], writable: Sequence[str]) -> dict[str, None]:
    """The files, the links in writable places on the way to each, and where they really are. A command can change no other link,
    and one such as a home directory's would stand for all that it leads to.
    """
    ways = {file: links_and_file(file) for file in files}
    return dict.fromkeys(
        path
        for file, way in ways.items()
        for path in (file, *(one for one in way if is_within_any(one, writable) or not os.path.islink(one)))
    )


def _behind_links(roots: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yields the project's settings that lie behind links: their names protect them only where they really are."""
    for root in map(Path, roots):
        top = project_top(root, environment) or root
        above = [one for one in (root, *root.parents) if one.is_relative_to(top)]
        for path in (f"{directory}/{name}" for directory in above for name in _OF_PROJECTS):
            if os.path.realpath(path) != path:
                yield path


def named_in(
    roots: Sequence[str],
    git_directories: Sequence[str],
    environment: Mapping[str, str],
    search: ProgramSearch,
) -> NamedByGit:
    """The files that the git directories, those in them, and the user's own configuration name, if commands may change them."""
    homes = home_directories(environment)
    directories = GuardedFiles(COMPARED, roots, git_directories).git_directories
    files = _git_files(homes, environment, *roots[:1])
    given = [*_settings_of(environment)]
    return work_named_by_git(roots, directories, files, next(iter(homes), "/"), search, given=given)


def users_relative_programs(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """As `relative_programs`, for the user's own configuration on this machine."""
    homes = home_directories(environment)
    files = _git_files(homes, environment)
    return relative_programs(files, next(iter(homes), "/"), [*_settings_of(environment)])


def _git_files(homes: Sequence[str], environment: Mapping[str, str], directory: str = "/") -> list[str]:
    """A relative path of a variable is relative to `directory`."""
    # Its own file of the system lies beside the directory of its programs, but for /usr.
    beside = [
        one.rpartition("/")[0]
        for one in absolute_entries(environment.get("PATH", os.defpath))
        if os.path.lexists(f"{one}/git")
    ]
    known = {"~": homes, **xdg_bases(homes, environment), "beside git": beside}
    variables = {
        name[1:]: os.path.join(directory, value)
        for name in _GIT_FILES
        if (value := environment.get(name[1:], ""))
    }
    return [path for template in _GIT_FILES for path in expanded(template, known, variables)]


def _settings_of(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the settings of git that the environment has, each with its value (git-config(1), git(1))."""
    if template := environment.get("GIT_TEMPLATE_DIR"):
        yield TEMPLATES, template
    for name, key in environment.items():
        if name.startswith(_KEY):
            yield key.lower(), environment.get(f"GIT_CONFIG_VALUE_{name.removeprefix(_KEY)}", "")
    # What `git -c` and `git --config-env` pass on: 'name=value' or 'name'='value'.
    with suppress(ValueError):  # git does not begin with it
        for word in shlex.split(environment.get("GIT_CONFIG_PARAMETERS", "")):
            if found := _PARAMETER.fullmatch(word):
                yield found[1].lower(), found[2]


def _named_by_ssh(
    search: ProgramSearch, homes: Sequence[str], environment: Mapping[str, str]
) -> Iterator[str]:
    """Yields what leads to ssh's configuration, and its files, where commands may write: for plain ssh, and as git starts it."""
    for commands in ((), (environment.get("GIT_SSH_COMMAND", ""),)):
        for _, parts in ssh_files_of_agents(commands, search, homes, environment):
            yield from (one for one in parts if not any(is_within(place, one) for place in search.roots))


def changed_by_run(
    roots: Sequence[str],
    since_s: float,
    environment: Mapping[str, str],
    claimed: Sequence[str],
    search: ProgramSearch,
) -> str:
    """A sentence for people about programs in the roots that git's configuration names and that have changed since the run began,
    in seconds of the epoch, or an empty text. `claimed` are the git directories of the roots.
    """
    named = named_in(roots, claimed, environment, search)
    return about_programs(changed_programs(named.programs, since_s), roots)


def why_protected(path: str, directories: Iterable[str | Path], environment: Mapping[str, str]) -> str | None:
    """Why ralph must not write its output to a file that the user names by an absolute path: it is protected. None if it is not.
    Agents work in `directories`. A link at `path` itself does not count, because it is replaced.
    """
    above, name = os.path.split(path)
    places = gather_places([os.path.realpath(one) for one in directories], environment)
    place = places.why_not_written(f"{os.path.realpath(above).rstrip('/')}/{name}")
    return None if place is None else f"{path} is protected: {place.path} {place.row.why}"


def home_directories(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The home directories of the user: the directory in HOME, and the one in the user database, which ssh uses."""
    found = [environment.get("HOME", "")]
    with suppress(KeyError):  # a container's user need not be known to the system
        found.append(pwd.getpwuid(os.getuid()).pw_dir)
    return tuple(dict.fromkeys(home for home in found if home.startswith("/")))


def state_directories(environment: Mapping[str, str], homes: Sequence[str]) -> Iterator[str]:
    """Yields every directory in which a run of this user may store sessions or the records of loops."""
    yield from named_state_directories(environment)
    yield from (f"{home.rstrip('/')}/.local/state/ralph" for home in homes)
    yield str(Path(temporary_directory(), f"ralph-sessions-{os.getuid()}"))


def python_prefixes() -> tuple[str, ...]:
    """The directory of the Python environment in which ralph is installed, and of the installation on which that is based."""
    return tuple(dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)))


def own_code(writable: Sequence[str]) -> tuple[str, ...]:
    """The package of this ralph, its virtual environment and the Python of that, where they lie in a place that commands may
    write, and contain none. Empty if `_is_work`.
    """
    if _is_work(writable):
        return ()
    own = (sys.prefix, sys.base_prefix, PACKAGE) if sys.prefix != sys.base_prefix else (PACKAGE,)
    return outermost(
        path
        for path in map(os.path.realpath, own)
        if path not in _OF_THE_SYSTEM
        and is_within_any(path, writable)
        and not any(is_within(one, path) for one in writable)
    )


def _is_work(writable: Sequence[str]) -> bool:
    """Whether commands may write the package itself, as in a checkout of ralph with an editable installation: it is the work."""
    package = os.path.realpath(PACKAGE)
    return is_within_any(package, writable) and _PACKAGES.isdisjoint(package.split("/"))


def _own_start(environment: Mapping[str, str], writable: Sequence[str], directory: str) -> Iterator[str]:
    """Yields the files of this ralph that run first, or that say what runs, and the paths by which it is started. Empty and
    relative entries of PATH mean the working directory `directory`.
    """
    if _is_work(writable):
        return
    yield from (f"{PACKAGE}/{name}" for name in ("__init__.py", "__main__.py"))
    entries = environment.get("PATH", os.defpath).split(os.pathsep)
    on_path = [os.path.normpath(f"{os.path.join(directory, one)}/ralph") for one in entries]
    first = next((one for one in on_path if os.access(one, os.X_OK)), "")
    prefix = os.path.realpath(sys.prefix)
    for script in (sys.argv[0], first):
        if script.startswith("/") and is_within(os.path.realpath(script), prefix):
            yield script
    for one in on_path:
        # A new one before the first that commands cannot write, a shim too, would start in its place.
        above, name = os.path.split(one)
        if is_within_any(f"{os.path.realpath(above)}/{name}", writable):
            yield one
        elif os.access(one, os.X_OK):
            break
    if sys.prefix != sys.base_prefix:
        yield sys.executable
        yield from (f"{sys.prefix}/{name}" for name in _FIRST)
        for packages in (
            one for one in sys.path if is_within(one, sys.prefix) and one.endswith(tuple(_PACKAGES))
        ):
            yield from (f"{packages}/{name}" for name in ("sitecustomize.py", "usercustomize.py"))
            yield from (entry for entry in files_in(packages, 0) if entry.endswith(".pth"))


def _code() -> Iterator[str]:
    """Yields the library, programs, `pyvenv.cfg` and installed packages of this Python, and the ripgrep of its packages."""
    yield str(Path(os.__file__).parent)
    yield str(Path(sys.executable).parent)
    yield str(Path(sys.prefix, "pyvenv.cfg"))
    if ripgrep := packaged_program(RIPGREP):
        yield ripgrep
    names = ("site-packages", "dist-packages", "lib-dynload")
    yield from (entry for entry in sys.path if entry.startswith("/") and entry.rstrip("/").endswith(names))


class GuardedFiles:
    """The files on the disk with the guard READ_ONLY or COMPARED: its paths, its names at the top of each root, and its entries
    of each git directory, also of those of submodules and linked worktrees in it.
    """

    def __init__(
        self,
        guard: str,
        roots: Sequence[str],
        git_directories: Sequence[str],
        paths: Iterable[str] = (),
        *,
        writable: Iterable[str] = (),
    ) -> None:
        """Commands may write `git_directories`, to which `.git` at the top of each root belongs, and the other directories
        `writable`. `paths` are those of the guard (`GuardedPlaces.guarded`).
        """
        own = (os.path.join(root, ".git") for root in roots)
        self.outer = tuple(dict.fromkeys((*own, *git_directories)))
        """The git directories that contain all others."""
        self.nested: dict[str, None] = {}
        """The git directories inside these that `look_for_nested` has found until now. They may be gone."""
        self.around: dict[str, None] = {}
        """The directories on the way to them, such as `.git/modules`."""
        self.overfull = ""
        """A folder with so many others that not all are guarded, or empty if there is none."""
        self._entries = git_entries_with(guard)
        around_entries = (reversed([*directories_above(f"/{one}")][:-1]) for one in self._entries)
        self._folders = tuple(dict.fromkeys(one[1:] for one in chain.from_iterable(around_entries)))
        names = (os.path.join(root, name) for root in roots for name in names_at(root, guard))
        self._names = [os.path.split(path) for path in dict.fromkeys(names)]
        self._tops = {root for root in roots if not any(is_within(root, one) for one in roots if one != root)}
        self._paths = tuple(paths)
        tops = (*roots, *self.outer, *writable)
        self.folders: dict[str, None] = {}
        """The folders between a directory that commands may write and a path of the guard in it, outer ones first."""
        for path in self._paths:
            around = [top for top in tops if is_within(path, top) and path != top]
            top = min(around, key=len, default=path)
            above = (one for one in directories_above(path) if is_within(one, top) and one != top)
            self.folders |= dict.fromkeys([*above][::-1])
        inside = (*self._paths, *self.outer, *(os.path.join(*name) for name in self._names))
        outside = {one for path in inside for one in directories_above(path)}
        self.above = tuple(sorted(outside.difference(self.folders, self.outer)))
        """All other directories above the paths, outer ones first."""
        self.look_for_nested()

    @property
    def git_directories(self) -> tuple[str, ...]:
        return (*self.outer, *(one for one in self.nested if one not in self.outer))

    @property
    def removable(self) -> set[str]:
        """The directories that git itself removes, as by `git worktree remove`."""
        return {*self.around, *self.nested}.difference(self.outer)

    def look_for_nested(self) -> None:
        """Finds the git directories of submodules and linked worktrees that exist now. Follows no link. Those of the submodules
        that a guarded configuration names come first, whatever lies around them.
        """
        self.overfull, count = "", 0
        pending = [directory for directory in self.outer if _is_directory(directory)]
        known = {*pending}
        for directory in pending:
            for folder in _NESTED_IN:
                above = f"{directory}/{folder}"
                between = [above] if _is_directory(above) else []
                found = [*self._configured(directory)] if between and folder == "modules" else []
                self.nested |= dict.fromkeys(found)
                for one in between:
                    self.around[one] = None
                    inside = () if self.overfull else entries_in(one, is_folder)
                    for path in sorted(entry.path for entry in inside):
                        count += 1
                        if count > _MOST_NESTED:
                            self.overfull = above
                            break
                        is_known = path in self.nested or os.path.lexists(f"{path}/HEAD")
                        if folder == "modules" and not is_known:  # a submodule may have a name with slashes
                            between.append(path)
                            continue
                        self.nested[path] = None
                        found.append(path)
                pending += (path for path in dict.fromkeys(found) if path not in known)
                known.update(found)

    def _configured(self, directory: str) -> Iterator[str]:
        """Finds the git directories of the submodules that a configuration names."""
        for name in submodules_named(beginning_of(f"{directory}/config")):
            parts = f"modules/{name}".split("/")
            ways = [f"{directory}/{'/'.join(parts[:count])}" for count in range(1, len(parts) + 1)]
            if not {"", ".", ".."}.intersection(parts) and all(map(_is_directory, ways)):
                self.around |= dict.fromkeys(ways[:-1])
                yield ways[-1]

    def found(self) -> Iterator[tuple[str, Kind]]:
        """Yields the paths. A directory comes before its content. Files need not exist."""
        for directory in (*self.around, *self.git_directories):
            yield directory, "around"
        for directory in filter(_is_directory, self.git_directories):
            yield from self._found_in(directory)
        for path in self.folders:
            yield path, "around"
        for path in self._paths:
            yield path, "tree"
        for above, name in self._names:
            if above not in self._tops:
                yield above, "around"
            if "*" not in name:
                yield os.path.join(above, name), "file"
            elif _is_directory(above):
                start, _, end = name.partition("*")
                for one in entries_in(above):
                    if one.name.startswith(start) and one.name.endswith(end):
                        yield one.path, "file"

    def _found_in(self, directory: str) -> Iterator[tuple[str, Kind]]:
        open_folders = {""}
        for folder in self._folders:
            yield f"{directory}/{folder}", "around"
            if folder.rpartition("/")[0] in open_folders and _is_directory(f"{directory}/{folder}"):
                open_folders.add(folder)
        for entry in self._entries:
            if entry.rpartition("/")[0] in open_folders:
                yield f"{directory}/{entry}", "tree"


def files_in(place: str, depth: int = sys.maxsize) -> Iterator[str]:
    """Yields `place`, and if it is a directory, the paths in it and in `depth` levels of subdirectories. Follows no links."""
    yield place
    for entry in entries_in(place):
        if not is_folder(entry):
            yield entry.path
        elif depth:
            yield from files_in(entry.path, depth - 1)


def _is_directory(path: str) -> bool:
    status = status_of(path)
    return status is not None and stat.S_ISDIR(status.st_mode)
