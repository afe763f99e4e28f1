"""Knows where commands may write, and finds the programs that ralph itself starts: Python interpreters and programs on PATH.
No program and no file of the user counts as the user's own to which a path leads through such a place, because a command may
have put it, or a link to it, there. This rule does not apply to the model's commands, for which the shell searches the user's
PATH.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
import sys
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ralph.machine.files.paths import (
    GIT_VARIABLES,
    beginning_of,
    entries_in,
    git_directories_elsewhere,
    is_folder,
    is_within,
    is_within_any,
    mounts,
    other_paths,
    project_top,
    repository_top,
    status_of,
)
from ralph.machine.own_process import READ_LATER, way_to, written_by_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

TEMPORARY_PREFIX = "ralph-tmp-"
"""How the names of the temporary directories begin that commands may write."""
GUARDED_PYTHON = str(Path(__file__).with_name("guarded_python"))
"""A directory for PYTHONPATH: with it, no Python takes modules from the directory in which it starts for what names them."""

_ABOVE_PACKAGE = str(Path(__file__).absolute().parents[2])
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - nothing is made there
_OF_THE_SYSTEM = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# Directories and files from which the loader and libraries of any program, git, and interpreters of its helpers take code or
# settings.
_LOADER_PREFIXES = ("LD_", "DYLD_")
# There, a link such as `self/cwd` leads elsewhere in each process.
_OF_PROCESSES = "/proc"
_LOADED_FROM = frozenset(
    """
    GIT_EXEC_PATH GIT_TEMPLATE_DIR BASH_ENV ENV PERL5LIB PERLLIB PYTHONHOME PYTHONPATH PYTHONPYCACHEPREFIX PYTHONUSERBASE RUBYLIB
    NODE_PATH VIRTUAL_ENV CONDA_PREFIX UV_PROJECT UV_PROJECT_ENVIRONMENT UV_CONFIG_FILE PIP_CONFIG_FILE NPM_CONFIG_USERCONFIG
    npm_config_userconfig CLASSPATH GEM_HOME GEM_PATH BUNDLE_GEMFILE DOTNET_STARTUP_HOOKS KRB5_CONFIG GSS_MECH_CONFIG SASL_PATH SASL_CONF_PATH SSH_SK_HELPER SSH_PKCS11_HELPER P11_KIT_CONF
    """.split()
).union(READ_LATER)
# Options for interpreters, and uv's word for one. Such a variable counts as a whole, because the options depend on each other.
_OF_OPTIONS = frozenset(
    "NODE_OPTIONS RUBYOPT PERL5OPT UV_PYTHON JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS".split()
)
_LOADED_BY_OPTION = (
    r"(?:-r\s+|-r(?=[./])|--require[\s=]+|--import[\s=]+|--(?:experimental-)?loader[\s=]+|-I\s*|-Mlib=|-javaagent:|-agentpath:|@"
    r"|(?<![\w./:~-])(?=[./]))[\"']?(?:file://)?([^\s\"']+)"
)
# The places whose configuration mise does not read (mise.jdx.dev/configuration/settings.html).
_NOT_READ_BY_MISE = "MISE_IGNORED_CONFIG_PATHS"
# Variables that say where something is, and from which no program loads code.
_IS_DATA = rf"(?:OLD)?PWD|CLAUDE_PROJECT_DIR|RALPH_\w+|{_NOT_READ_BY_MISE}"
# What shells and editors read with all that is below, as far as that is looked at.
_READS_DEEPER = (
    r"/\.(?:oh-my-zsh|zprezto|zsh\w*|bash\w*(?:\.d)?|vim|config/(?:fish|zsh|bash|nvim|tmux))(?:/|\Z)"
)
_DEEPEST, _MOST_DEEPER = 5, 2_000
Settings = Literal["in its directory", "of the work too", "in a file", "of many programs"]
_SETTINGS: tuple[tuple[str, set[Settings]], ...] = (
    (
        r"(?i:.*(?:(?:_|KUBE)CONFIG\w*|HOME|_CACHE_DIR|ERS_PATH|_PREFIX)|GIT_DIR)",
        {"in its directory", "of the work too"},
    ),
    (r"GOPATH|(?i:.*(?:CLASSPATH|LIBS|LUA_C?PATH))", {"of the work too"}),
    (r"ZDOTDIR", {"of the work too", "in a file", "of many programs"}),
    (r"XDG_CONFIG_HOME|CURL_HOME|DOCKER_CONFIG", {"in a file", "of many programs"}),
    (r"XDG_\w+_HOME|GRADLE_USER_HOME|\w+_CONFIG_(?:FILE|DIR|PATH)|AWS_\w+_FILE", {"in a file"}),
    (r"KUBECONFIG|ANSIBLE_CONFIG|WGETRC|GIT_CONFIG_(?:GLOBAL|SYSTEM)|PGSERVICEFILE", {"in a file"}),
)
"""Variables by whole names, and what they lead to: a directory in which programs find settings or code, such as DOCKER_CONFIG,
GIT_DIR and PLAYWRIGHT_BROWSERS_PATH; one that counts even if it is a root of the work; a file or directory of settings, in whatever
form it is named; a directory that many programs read on their own."""
_ABSOLUTE = r"(?<![\w.~-])/[^\s:;,|&\"'`]*"
_SET_ASIDE = "RALPH_SET_ASIDE_"
_SEPARATORS = {"LD_PRELOAD": "[: ]"}
# A fleet worker gets a new checkout with each job.
_MOST_SEARCHES = 64
# execve(2): the interpreter of a script may be a script, and so on.
_MOST_INTERPRETERS = 16
_BETWEEN_WORDS = r"(?:[\s=:'\"]|(?<=\s)-S)+"
_MOST_OF_LINE = 256
# A place with a second name is looked for below this many names, which takes some seconds.
_MOST_NAMES = 1_000_000


class ProgramSearch(Struct, frozen=True):
    """Where ralph looks for its own programs, and where it takes none from."""

    search_path: str = ""
    """The directories to look in, separated as in PATH."""
    roots: tuple[str, ...] = ()
    """The directories that commands may write, without symbolic links."""
    temporary: tuple[str, ...] = ()
    """The directories for temporary files, without symbolic links. Only what nobody else can replace is used there."""

    def why_open(self, path: str) -> str | None:
        """Why commands, or who wrote the checkout, may decide what the file at an absolute path says, which need not exist: a
        clause with the place that is theirs. None if they may not.
        """
        try:
            for place, _, ahead in way_to(path):
                root = place if self._is_of_session(place) else None
                # Commands cannot replace a root itself, so that `..` after it leads to the same place.
                left = place if ahead[-1:] == [os.pardir] else None
                around = (one for one in self.roots if is_within(place, one) and one != left)
                if root or (root := next(around, None)):
                    return f"an agent or a repository's author may write {root}, through which it is found"
        except OSError:
            return "more links lead to it than the system follows"
        return self._why_named_again(path)

    def may_be_changed(self, path: str) -> bool:
        """Whether commands may change what is at an absolute path, and not only a link to it, by its place or a second name."""
        return is_within_any(path, self.roots) or self._why_named_again(path) is not None

    def _why_named_again(self, path: str) -> str | None:
        root = self._second_place(path)
        return None if root is None else f"it has a second name (a hard link) in {root}"

    def _second_place(self, path: str) -> str | None:
        """The root with a second name (a hard link) of a file. None if there is none, or commands cannot write the file."""
        status = _status(path)
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_nlink == 1:
            return None
        is_ours = status.st_uid == os.geteuid() or os.access(path, os.W_OK)
        for root in self.roots if is_ours else ():
            around = _status(root)
            if around and around.st_dev == status.st_dev:
                found = _named_again_in(root)
                if found is None or (status.st_dev, status.st_ino) in found:
                    return root
        return None

    def root_around(self, path: str) -> str | None:
        """The place that commands may write and through which an absolute path leads, by its directories, a link or its target."""
        return next(filter(None, (self._root_of(place) for place, _ in _way(path))), self._second_place(path))

    def is_safe(self, path: str) -> bool:
        """Whether neither a command nor, in a temporary directory, another user can replace what the path names."""
        return not self.why_unsafe(path)

    def why_unsafe(self, path: str) -> str:
        """The reason for people why a path is not safe, or an interpreter that starts it. Empty if all are safe."""
        is_of_system = path.startswith(tuple(f"{one}/" for one in _OF_THE_SYSTEM))
        try:
            lines = () if is_of_system else tuple(interpreters_of(path, self))
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
        for one in (path, *chain.from_iterable(_paths_in(line, self) for line in lines)):
            if why := self._why_replaceable(one):
                return why if one == path else f"it is started by {one}, and {why}"
        return ""

    def _why_replaceable(self, path: str) -> str:
        for place, is_link in _way(path):
            if root := self._root_of(place):
                return f"commands may write {root}"
            if is_within(place, _OF_PROCESSES):
                return f"{place} is another place in each process"
            is_elsewhere = place in self.temporary or not is_within_any(place, self.temporary)
            if not is_elsewhere and (
                self._is_of_session(place) or _others_can_replace(place, is_link=is_link)
            ):
                return f"another user can replace {place}, by its owner, its mode or its group"
        return self._why_named_again(path) or ""

    def _root_of(self, place: str) -> str | None:
        # Who may write the root directory may write all programs: there is none that could be used instead.
        return next((root for root in self.roots if root != os.sep and is_within(place, root)), None)

    def _is_of_session(self, place: str) -> bool:
        above, name = os.path.split(place)
        return name.startswith(TEMPORARY_PREFIX) and is_within_any(above, self.temporary)


def interpreters_of(file: str, search: ProgramSearch) -> Iterator[str]:
    """Yields the interpreter that a script names, with its options, and those of what is named there, if that is a script too.
    `env` finds it on PATH. Raises OSError if this machine lacks file descriptors or memory.
    """
    pending = [file]
    for one in pending:
        if line := interpreter_of(one):
            yield line
            more = (path for path in _paths_in(line, search) if path not in pending)
            pending += islice(more, _MOST_INTERPRETERS - len(pending))


def interpreter_of(file: str) -> str:
    """The interpreter that a script names, with its options. Empty for any other file. Raises as `interpreters_of` does."""
    begin, _, rest = re.split(rb"[\n\0]", beginning_of(file, _MOST_OF_LINE))[0].partition(b"#!")
    return "" if begin else os.fsdecode(rest).strip()


def _paths_in(line: str, search: ProgramSearch) -> list[str]:
    """The interpreter in the first line of a script, and the absolute paths behind it. With `env`, also those of programs on PATH."""
    first, more = line.split(maxsplit=1)[0], re.split(_BETWEEN_WORDS, line)[1:]
    is_env = any(word.rpartition("/")[2] == "env" for word in (first, *more))
    known = programs_by_name(search) if is_env else {}
    return [first, *filter(os.path.isabs, (known.get(word, word) for word in more))]


def _way(path: str) -> Iterator[tuple[str, bool]]:
    with suppress(OSError):  # more links than the system follows: nothing can be started by this path
        yield from ((place, is_link) for place, is_link, _ in way_to(path))


def _status(path: str) -> os.stat_result | None:
    with suppress(OSError):
        return os.stat(path)
    return None


@lru_cache(_MOST_SEARCHES)
def _named_again_in(root: str) -> frozenset[tuple[int, int]] | None:
    """The device and the inode of each file in a place that has several names. None for one with too many names to look at, or
    with a folder that commands can enter and ralph cannot list. Commands cannot link a file from elsewhere: a process looks once.
    """
    pending, count, found = [root], 0, set[tuple[int, int]]()
    for place in pending:
        try:
            with os.scandir(place) as listing:
                for entry in listing:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif (status := entry.stat(follow_symlinks=False)).st_nlink > 1:
                        found.add((status.st_dev, status.st_ino))
        except FileNotFoundError:  # it was removed meanwhile
            continue
        except OSError:
            folder = _status(place)
            # Commands can enter it, or as its owner allow themselves to, or nobody knows.
            if folder is None or folder.st_uid == os.geteuid() or os.access(place, os.X_OK):
                return None
        if count > _MOST_NAMES:
            return None
    if (own := _status(root)) is not None:
        found.add((own.st_dev, own.st_ino))
    return frozenset(found)


def _others_can_replace(place: str, *, is_link: bool) -> bool:
    """Whether a place in a temporary directory belongs to another user, can be written by one, or is not there yet."""
    status = status_of(place)
    if status is None:
        return True
    writers = 0 if is_link else status.st_mode & _WRITABLE_BY_OTHERS
    is_open = bool(writers) and not (writers == stat.S_IWGRP and _is_own_group(status.st_gid))
    return is_open or status.st_uid not in (0, os.geteuid())


def _is_own_group(gid: int) -> bool:
    """Whether a group has only this user, as the one with the user's name that adduser(8) and useradd(8) make."""
    with suppress(KeyError):  # a container's user need not be known to the system
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
        return (user.pw_gid, user.pw_name) == (gid, group.gr_name) and {*group.gr_mem} <= {user.pw_name}
    return False


def search_outside(environment: Mapping[str, str], places: Iterable[Path | str]) -> ProgramSearch:
    """A search in the PATH of `environment`, outside `places`, of the directories for temporary files, and of the caches for
    commands' packages, also of one that was used before a variable named another.
    """
    written = (*map(str, places), *written_by_all(environment))
    roots = _with_other_paths(tuple(dict.fromkeys(map(os.path.realpath, written))))
    given = environment.get("TMPDIR", "")
    temporary = dict.fromkeys(map(os.path.realpath, (*_TEMPORARY, given) if given else _TEMPORARY))
    search_path = environment.get("PATH", os.defpath)
    return ProgramSearch(search_path, roots, tuple(map(str, temporary)))


@lru_cache(_MOST_SEARCHES)
def _with_other_paths(places: tuple[str, ...]) -> tuple[str, ...]:
    """The places, with their further paths on file systems that are mounted more than once. A process looks once."""
    return places if os.sep in places else (*places, *other_paths(places, mounts()))


def search_around(
    environment: Mapping[str, str], roots: Sequence[Path | str], more: Iterable[Path | str] = ()
) -> ProgramSearch:
    """As `search_outside`, for the roots of a run, the working directory first, and `more`. The checkouts around the roots count
    too, because their files came with the work, but not one of the home directory itself. So do git directories elsewhere, such
    as that of a linked worktree: commands commit there.
    """
    tops = (project_top(Path(root), environment) for root in roots)
    work = [str(top) for top in tops if top is not None]
    given = (environment.get(name) for name in GIT_VARIABLES)
    git = [os.path.join(*map(str, roots[:1]), one) for one in given if one]
    nearest = filter(None, (repository_top(Path(root)) for root in roots))
    git += chain.from_iterable(map(git_directories_elsewhere, dict.fromkeys((*work, *map(str, nearest)))))
    return search_outside(environment, (*roots, *work, *git, *more))


def own_python(statement: str, *arguments: str) -> list[str]:
    """The command line of an interpreter that executes `statement`, with `arguments` in `sys.argv[1:]`. It has the `sys.path` of
    this process, so the same ralph with the same dependencies, and ignores the working directory, PYTHON* variables and the
    user's site-packages. Its environment is made by `without_unsafe_loads` or `with_set_aside`.
    """
    # The package is imported first, with only its directory on the path. Other modules there must not be imported.
    statements = (
        f"import os, sys; p = {_SET_ASIDE!r}; "
        "os.environ.update({n[len(p):]: os.environ.pop(n) for n in [*os.environ] if n.startswith(p)}); "
        f"sys.prefix, sys.exec_prefix = {sys.prefix!r}, {sys.exec_prefix!r}; "
        f"sys.path[:] = [{_ABOVE_PACKAGE!r}]; import ralph; "
        f"sys.path[:] = {sys.path!r}; {statement}"
    )
    # They have the effect of PYTHON* variables, which an isolated interpreter ignores.
    options = [
        *(["-B"] if sys.dont_write_bytecode else []),
        *(["-X", "utf8=1"] if sys.flags.utf8_mode else []),
    ]
    # Without `-S`, an editable installation of the work could have a `sitecustomize.py` run.
    return [sys.executable, "-I", "-S", *options, "-c", statements, *arguments]


@lru_cache(_MOST_SEARCHES)
def own_program(name: str, search: ProgramSearch) -> str | None:
    """The absolute path of an executable that commands cannot replace, or None. A process looks once, so no later command
    changes the answer.
    """
    for directory in absolute_entries(search.search_path):
        path = os.path.join(directory, name)
        # Links are followed last, because that takes longer than a look for the program.
        if os.access(path, os.X_OK) and Path(path).is_file() and search.is_safe(path):
            return path
    return None


def why_not_used(name: str, search: ProgramSearch) -> str:
    """The reason for people why the first program of a name in PATH is not used, or empty if there is none."""
    found = (os.path.join(directory, name) for directory in absolute_entries(search.search_path))
    path = next((one for one in found if os.access(one, os.X_OK) and Path(one).is_file()), "")
    why = search.why_unsafe(path) if path else ""
    return f"{path} does not count: {why}" if why else ""


def unsafe_loads(environment: Mapping[str, str], search: ProgramSearch) -> dict[str, list[str]]:
    """The variables that name code or settings which any program loads, each with its entries that are empty, relative or unsafe.
    Options for an interpreter are one entry.
    """

    def is_unsafe(path: str) -> bool:
        return not path.startswith(os.sep) or not search.is_safe(path)

    return {
        name: [one for one in _entries(name, value) if is_unsafe(one)]
        for name, value in environment.items()
        if value and (name in _LOADED_FROM or name.startswith(_LOADER_PREFIXES))
    } | {
        name: [value]
        for name, value in environment.items()
        if name in _OF_OPTIONS and any(map(is_unsafe, re.findall(_LOADED_BY_OPTION, value)))
    }


def _entries(name: str, value: str) -> list[str]:
    return [value] if name in _OF_OPTIONS else re.split(_SEPARATORS.get(name, "[:;]"), value)


def without_unsafe_loads(environment: Mapping[str, str], search: ProgramSearch) -> dict[str, str]:
    """The variables for a program of ralph's own, without the entries of `unsafe_loads`. A program that mise starts is not chosen by
    files where commands may write, such as `.tool-versions`, and one of asdf or rustup only if the user's own names no version.
    """
    # Python's posix_spawn takes no empty name.
    safe = {name: value for name, value in environment.items() if name}
    for name, unsafe in unsafe_loads(environment, search).items():
        kept = ":".join(one for one in _entries(name, environment[name]) if one not in unsafe)
        safe |= {name: kept}
        if not kept:
            del safe[name]
    ignored = filter(None, (environment.get(_NOT_READ_BY_MISE), *search.roots))
    return {**_own_versions(environment, search), **safe, _NOT_READ_BY_MISE: os.pathsep.join(ignored)}


def own_environment(environment: Mapping[str, str], search: ProgramSearch) -> dict[str, str]:
    """The variables for a program of the user's with more rights than commands: as `without_unsafe_loads`, without those that name
    what is where commands may write, and with a PATH of places where they may not. A directory of theirs itself may be data.
    """
    made, home = without_unsafe_loads(environment, search), environment.get("HOME")
    with suppress(KeyError):  # to work in the home directory is a choice of the user's
        home = pwd.getpwuid(os.geteuid()).pw_dir
    for name, value in tuple(made.items()):
        is_root = os.path.realpath(value) in search.roots and not names_settings(name, "of the work too")
        is_kept = is_root or re.fullmatch(_IS_DATA, name) or (name, value) == ("HOME", home)
        if not is_kept and (named_writable(value, search) or _is_from_work(name, value, search)):
            del made[name]
    return made | {"PATH": os.pathsep.join(trusted_directories(search))}


def python_guard(environment: Mapping[str, str], search: ProgramSearch) -> dict[str, str]:
    """The variables with which Python takes modules from where commands may write only after all others (`GUARDED_PYTHON`)."""
    if not search.is_safe(GUARDED_PYTHON):
        return {}
    found = dict.fromkeys(
        (GUARDED_PYTHON, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))
    )
    return {"PYTHONPATH": os.pathsep.join(found), "RALPH_OPEN_PLACES": os.pathsep.join(search.roots)}


def link_from_home(environment: Mapping[str, str], search: ProgramSearch) -> str:
    """A sentence about a link, from what programs read on their own in the home to where commands may write. Empty if there is none."""
    home = environment.get("HOME", "")
    if not os.path.isabs(home) or is_within_any(os.path.realpath(home), search.roots):
        return ""
    named = [value for name, value in environment.items() if names_settings(name, "of many programs")]
    # A variable that leads there itself is not told to such a program.
    given = [one for one in named if os.path.isabs(one) and not search.root_around(one)]
    hidden = entries_in(home, lambda one: one.name.startswith(".") and one.name != ".ssh")  # judged with ssh
    places = [one.path for one in filter(is_folder, hidden)]
    places += [one.path for top in (f"{home}/.config", *given) for one in entries_in(top, is_folder)]
    # A plugin or a part of a shell's configuration lies deeper.
    deeper = [one for one in places if re.search(_READS_DEEPER, one)]
    for place in deeper:
        if place.count("/") - home.count("/") < _DEEPEST and len(deeper) < _MOST_DEEPER:
            deeper += (one.path for one in entries_in(place, is_folder) if one.name != ".git")
    places = [*dict.fromkeys((*places, *deeper))]
    links = [one.path for one in hidden if one.is_symlink()]
    links += [one.path for place in (*places, *given) for one in entries_in(place, os.DirEntry.is_symlink)]
    for link in sorted(links):
        if root := search.root_around(link):
            return f"{link}, which programs read, leads through {root}, where commands may write: replace it by a copy"
    return ""


def names_settings(variable: str, kind: Settings) -> bool:
    """Whether a variable leads to settings of this kind (`_SETTINGS`)."""
    return any(kind in kinds and re.fullmatch(pattern, variable) for pattern, kinds in _SETTINGS)


def named_writable(value: str, search: ProgramSearch) -> list[str]:
    """The absolute paths that the value of a variable names and that lead through places where commands may write."""
    named = dict.fromkeys((value, *value.split(os.pathsep), *re.findall(_ABSOLUTE, value)))
    return [one for one in named if one[:1] == "/" and search.root_around(one)]


def _is_from_work(name: str, value: str, search: ProgramSearch) -> bool:
    """Whether a variable names a file relative to the directory where a program starts, which for many is that of the work. As
    `a/b` may also be a time zone or a repository, it counts if it is there.
    """
    is_of_settings = names_settings(name, "in a file")

    def is_relative(word: str) -> bool:
        return word[:1] not in {"", "/", "~"} and (
            word.startswith(("./", "../"))
            or word in {".", ".."}
            or is_of_settings
            or ("/" in word and os.path.lexists(os.path.join(search.roots[0], word)))
        )

    return bool(search.roots) and any(map(is_relative, re.split(r"[\s:;,=|&\"'`]+", value)))


def _own_versions(environment: Mapping[str, str], search: ProgramSearch) -> dict[str, str]:
    """The versions that the user's own files name for asdf and rustup, as variables, which count more for them than a file in the
    directory where a program starts (asdf-vm.com/manage/configuration.html, rust-lang.github.io/rustup/overrides.html).
    """

    def lines_of(path: str, separator: str | None) -> Iterator[tuple[str, str]]:
        text = os.fsdecode(beginning_of(path)) if os.path.isfile(path) and search.is_safe(path) else ""
        for line in text.splitlines():
            parts = line.partition("#")[0].split(separator, 1)
            if len(parts) > 1:
                yield parts[0].strip(), " ".join(parts[1].split())

    home = environment.get("HOME", "")
    versions = lines_of(f"{home}/.tool-versions", None)
    made = {f"ASDF_{tool.upper().replace('-', '_')}_VERSION": version for tool, version in versions}
    of_rust = dict(lines_of(f"{environment.get('RUSTUP_HOME') or f'{home}/.rustup'}/settings.toml", "="))
    toolchain = of_rust.get("default_toolchain", "").strip('"')
    return made | ({"RUSTUP_TOOLCHAIN": toolchain} if toolchain else {})


def with_set_aside(environment: Mapping[str, str], search: ProgramSearch) -> dict[str, str]:
    """As `without_unsafe_loads`, for another ralph (`own_python`): it has the variables as they were when it runs, for its
    commands. The loader reads them only before that.
    """
    made = without_unsafe_loads(environment, search)
    # Commands need what the project's files say.
    safe = {name: value for name, value in made.items() if name in environment and name != _NOT_READ_BY_MISE}
    changed = {name: value for name, value in environment.items() if name and safe.get(name) != value}
    return safe | {f"{_SET_ASIDE}{name}": value for name, value in changed.items()}


@lru_cache(_MOST_SEARCHES)
def trusted_directories(search: ProgramSearch) -> tuple[str, ...]:
    """The entries of PATH in which ralph's own programs may look for further ones. A process looks once."""
    return tuple(one for one in absolute_entries(search.search_path) if search.is_safe(one))


@lru_cache(_MOST_SEARCHES)
def programs_by_name(search: ProgramSearch) -> Mapping[str, str]:
    """The paths of the programs in these entries, without the system's own. A process looks once."""
    found: dict[str, str] = {}
    for directory in trusted_directories(search):
        if directory not in _OF_THE_SYSTEM:
            found = {one.name: one.path for one in entries_in(directory)} | found
    return found


def absolute_entries(search_path: str) -> list[str]:
    """The entries of a PATH that are neither empty nor relative."""
    return [entry for entry in search_path.split(os.pathsep) if entry.startswith(os.sep)]
