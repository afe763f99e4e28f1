# os.path instead of pathlib: the places are strings, and the kernel takes strings.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH113, PTH114, PTH116, PTH120
"""The sandbox of a run's commands and searches: makes the Landlock ruleset, the seccomp filter and the command line of
namespaces when the first command starts, and keeps them until the run ends.
"""

from __future__ import annotations

import os
import platform
from contextlib import contextmanager, suppress
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.machine import restriction
from ralph.machine.command_supervisor import Confinement
from ralph.machine.repository import is_within
from ralph.machine.short_digest import short_digest
from ralph.machine.spill_directory import OwnDirectory
from ralph.machine.starting import start_confined
from ralph.places.gather import PACKAGE, GuardedFiles, home_directories, python_prefixes, state_directories
from ralph.places.git_places import git_places
from ralph.places.table import CACHES, EMPTY, READ_ONLY, VISIBLE, WRITABLE, paths_with
from ralph.sandbox.bubblewrap import TEMPORARY, bwrap_command
from ralph.sandbox.kernel.landlock import build_ruleset
from ralph.sandbox.kernel.seccomp import make_filter
from ralph.sandbox.policy import BoxPolicy, landlock_rules, outermost, own_mounts
from ralph.sandbox.protected_files import ProtectedFiles
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from subprocess import Popen

    from ralph.places.places import GuardedPlaces
    from ralph.sandbox.box_plan import BoxPlan
    from ralph.sandbox.kernel.seccomp import Internet
    from ralph.sandbox.network.proxy import ProxyDoor, RefusedConnection

_PREFIX = "ralph-tmp-"
# With namespaces, each command adds rules for its own mounts to the ruleset, and restricting copies all rules. So the
# ruleset is built again sometimes, which takes milliseconds.
_MOST_USES = 100
# Sockets of other programs that act for the user: agents with keys, the desktop, containers.
_SOCKET_VARIABLES = ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "DOCKER_HOST")


class _Parts(Struct, frozen=True):
    """The parts of a sandbox that are made on the disk."""

    temporary: str
    cache: str
    """The directory for package caches, or the one for temporary files if there can be no such directory."""
    git_directories: tuple[str, ...]
    policy: BoxPolicy
    has_own_temporary: bool
    """Whether the session's directory is mounted on /tmp. It is not mounted if commands may write to the machine's
    /tmp."""
    visible: tuple[str, ...]
    """Paths that commands must see although they may lie in /tmp."""
    empty: tuple[str, ...]
    """Directories and files that appear empty to commands with namespaces."""
    read_only: GuardedFiles
    protected: ProtectedFiles


class CommandBox:
    """The sandbox of a run's commands and searches. It is made when it is first needed.

    Any thread may call the methods, and one thread works at a time. A method may never return if a file system does
    not answer. So the main thread first lets `BoxTurns` call `prepare` on another thread.
    """

    def __init__(
        self,
        plan: BoxPlan,
        roots: Sequence[str],
        environment: Mapping[str, str],
        places: Callable[[], GuardedPlaces],
        own_files: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`roots` are the working directory and the other directories that commands may write, with symbolic links
        resolved. `environment` is the user's own: its variables say where the user's secrets and caches are. `places`
        returns the places that the tools must not use. `own_files` returns the directory with the long outputs of
        commands, or None if there is none yet.
        """
        assert plan.means is not None  # noqa: S101 - there is no box without means
        self._plan = plan
        self._means = plan.means
        self._roots = tuple(roots)
        self._environment = environment
        self._places = places
        self._find_own_files = own_files
        self._lock = RLock()
        """Held while a part is made, and while a ruleset is used: the next use may close it."""
        self._temporary: OwnDirectory | None = None
        self._made: _Parts | None = None
        self._ruleset = restriction.NO_RULESET
        self._changed_ns: dict[str, int] = {}
        self._uses = 0
        self._door: ProxyDoor | None = None

    # --- Parts

    @contextmanager
    def _parts(self) -> Iterator[_Parts]:
        """Holds the lock. Raises OSError if the sandbox cannot be made."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            yield self._made

    def _make(self) -> _Parts:
        plan, roots = self._plan, self._roots
        self._temporary = self._temporary or OwnDirectory(_PREFIX, (*roots, *plan.write))
        temporary = self._temporary.path
        cache = package_cache(self._environment, roots[0]) or temporary
        git = git_places(roots, self._environment, os.getuid())
        for part in git.parts:
            with suppress(OSError):
                os.mkdir(part)  # git makes `logs` at the first commit, and a place must exist to be opened
        bases = {
            "root": roots,
            "temporary": (temporary,),
            "packages": (os.path.realpath(cache),),
            "writable git": (*git.granted, *filter(os.path.isdir, git.parts)),
        }
        unreadable = (*_unreadable(self._places()), *plan.read_deny, *plan.rules_deny)
        policy = BoxPolicy(
            outermost((*paths_with(WRITABLE, bases), *plan.write)),
            outermost(unreadable),
            tuple(dict.fromkeys((*self._own_files, *plan.read))),
            plan.sockets,
        )
        environment = self._environment
        state = next(iter(state_directories(environment, home_directories(environment), None)))
        given = (*policy.writable, *policy.readable, *policy.sockets)
        programs = tuple(map(_home_of, os.get_exec_path()))
        return _Parts(
            temporary,
            cache,
            git.granted,
            policy,
            self._means.bwrap is not None
            and os.path.realpath(TEMPORARY) == TEMPORARY
            and not policy.is_writable(TEMPORARY),
            paths_with(VISIBLE, {"prefix": python_prefixes(), "package": (PACKAGE,), "programs": programs}),
            tuple(
                place
                for place in paths_with(EMPTY, {})
                if os.path.realpath(place) == place
                and os.path.exists(place)
                and not any(is_within(one, place) or is_within(place, one) for one in given)
            ),
            GuardedFiles(READ_ONLY, roots, git.granted),
            ProtectedFiles(roots, git.granted, state),
        )

    @property
    def _own_files(self) -> tuple[str, ...]:
        own = self._find_own_files()
        return () if own is None else (os.path.realpath(own),)

    @property
    def temporary(self) -> str:
        """The directory for temporary files of commands. It exists until the run ends. Raises OSError."""
        with self._parts() as made:
            return made.temporary

    @property
    def policy(self) -> BoxPolicy:
        """The policy that says which files commands may use. Raises OSError."""
        with self._parts() as made:
            return made.policy

    @property
    def protected(self) -> ProtectedFiles:
        """The protected files of the run. They are not thread-safe: only `BoxTurns` uses them. Raises OSError."""
        with self._parts() as made:
            return made.protected

    # --- Commands

    def prepare(self) -> None:
        """Makes all parts that the next command needs. Raises OSError."""
        with self._parts() as made:
            self._fresh_ruleset(made.policy)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Makes the environment of a command from `environment`, as `command_variables` does. Raises OSError."""
        with self._parts() as made:
            return command_variables(
                environment,
                temporary=_inside(made, made.temporary),
                cache=_inside(made, made.cache),
                gives_sockets=bool(self._plan.sockets),
            )

    def confinement(self, directory: str) -> Confinement:
        """The sandbox of the next command, which starts in `directory`. The result must not be used after the next
        call. Raises OSError.
        """
        with self._parts() as made:
            self._close_door()
            if self._has_own_network and self._plan.net == "proxy":
                from ralph.sandbox.network.allowed_hosts import allowed_hosts  # noqa: PLC0415 - only with a proxy
                from ralph.sandbox.network.proxy import ProxyDoor  # noqa: PLC0415 - only with a proxy

                self._door = ProxyDoor(allowed_hosts(self._plan.allow_hosts))
            return Confinement(
                self._fresh_ruleset(made.policy),
                self._program,
                self._plan.most_file_bytes,
                self._bwrap_words(made),
                os.path.realpath(directory),
                self._mounts,
                -1 if self._door is None else self._door.descriptor,
            )

    def refusals(self) -> tuple[str, ...]:
        """Describes the connections of the last command that the proxy refused, for people and the model. Each
        connection is one line.
        """
        return tuple(
            f"the sandbox refused a connection to {one.host}:{one.port}: {one.reason}"
            + (f" ({one.count} times)" if one.count > 1 else "")
            for one in self._close_door()
        )

    def _close_door(self) -> tuple[RefusedConnection, ...]:
        door, self._door = self._door, None
        return () if door is None else door.close()

    def denial_note(self, output: str, working_directory: str) -> str | None:
        """A sentence that says what the sandbox denied to a failed command. None if the output shows no denial. Reads
        the paths that the output names, so that it may never return.
        """
        from ralph.sandbox.denials import denial_note  # noqa: PLC0415 - only for failed commands

        with self._parts() as made:
            policy, protected = made.policy, self._read_only(made) if self._means.bwrap is not None else ()
        others = (*self._roots[1:], *self._plan.write)
        return denial_note(
            output, policy, working_directory, others, protected=protected, outside=self.outside
        )

    # --- Searches and file tools

    def start(self, arguments: Sequence[str], **options: Any) -> Popen[bytes]:
        """Starts a process in the sandbox. Takes the arguments of `starting.start_process`."""
        with self._parts() as made:
            return start_confined(
                arguments, self._fresh_ruleset(made.policy), self._search_program, **options
            )

    def outside(self, path: str) -> str:
        """Converts a path inside the sandbox to the path outside. Both paths are the same, except in /tmp. In those
        places of /tmp that are mounted there again, they are the same too. `path` is absolute and contains no `..`.
        Raises OSError.
        """
        with self._parts() as made:
            if not (made.has_own_temporary and is_within(path, TEMPORARY)):
                return path
            shared = (*made.policy.writable, *self._visible(made))
            if any(is_within(path, place) for place in shared if place != made.temporary):
                return path
            return made.temporary + path.removeprefix(TEMPORARY)

    def inside(self, path: str) -> str:
        """Converts a path outside of the sandbox to the path inside."""
        with self._parts() as made:
            return _inside(made, path)

    def close(self) -> None:
        """Closes the ruleset and the proxy, and removes the temporary files. Must be called when no command runs."""
        self._close_door()
        if self._made is not None:
            self._made.protected.close()
        self._close_ruleset()
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = self._made = None

    # --- Means

    @property
    def _has_own_network(self) -> bool:
        return self._plan.net != "full" and self._means.has_own_network

    @cached_property
    def _program(self) -> bytes:
        """The packed seccomp filter of commands, or `restriction.NO_FILTER`."""
        if self._plan.net == "full":
            return self._filter("all")
        return self._filter("streams" if self._has_own_network else "none")

    @cached_property
    def _search_program(self) -> bytes:
        """The packed seccomp filter of searches, which need no network at all."""
        return self._filter("none")

    def _filter(self, internet: Internet) -> bytes:
        if self._means.why_no_filter:
            return restriction.NO_FILTER
        made = make_filter(
            platform.machine(),
            internet=internet,
            unix_sockets=bool(self._plan.sockets) or self._means.landlock.has_socket_paths,
            without_landlock=not self._means.landlock.abi,
        )
        return restriction.NO_FILTER if made is None else made

    @cached_property
    def _mounts(self) -> tuple[str, ...]:
        """The mounts inside the namespaces, in the form PATH=RIGHTS. Landlock needs a rule for each of them."""
        bwrap, abi = self._means.bwrap, self._means.landlock.abi
        return tuple(f"{place}={rights}" for place, rights in own_mounts(abi)) if bwrap and abi else ()

    def _fresh_ruleset(self, policy: BoxPolicy) -> int:
        """The descriptor of a ruleset that fits the present state of the disk, or `restriction.NO_RULESET`. The next
        call may close this descriptor. Raises OSError.

        The ruleset is built again after an entry was made or removed in a directory above an unreadable path. Until
        then, commands cannot read a new entry in such a directory.
        """
        abi = self._means.landlock.abi
        if not abi:
            return restriction.NO_RULESET
        is_worn = bool(self._mounts) and self._uses >= _MOST_USES
        is_old = any(_changed_ns(directory) != known for directory, known in self._changed_ns.items())
        if self._ruleset == restriction.NO_RULESET or is_worn or is_old:
            self._close_ruleset()
            self._changed_ns, self._uses = {}, 0
            self._ruleset = build_ruleset(abi, landlock_rules(policy, self._entries))
        self._uses += 1
        return self._ruleset

    def _close_ruleset(self) -> None:
        ruleset, self._ruleset = self._ruleset, restriction.NO_RULESET
        if ruleset != restriction.NO_RULESET:
            os.close(ruleset)

    def _entries(self, directory: str) -> Iterator[str]:
        # The time is read before the listing, so that an entry made meanwhile counts as a change.
        self._changed_ns[directory] = _changed_ns(directory)
        try:
            with os.scandir(directory) as listing:
                yield from [entry.name for entry in listing if not entry.is_symlink()]
        except OSError as error:
            if shortage_of(error) is not None:
                raise
            return  # it cannot be listed: no rule is made, and everything in it stays closed to commands

    # --- Mounts

    def _bwrap_words(self, made: _Parts) -> tuple[str, ...]:
        """The command line of bubblewrap for a command that starts now. Empty without namespaces."""
        bwrap = self._means.bwrap
        if bwrap is None:
            return ()
        policy = made.policy
        read_only = self._read_only(made)
        around = {os.path.dirname(path) for path in read_only}.difference(self._roots, made.git_directories)
        words = bwrap_command(
            bwrap,
            temporary=made.temporary if made.has_own_temporary else None,
            writable=policy.writable,
            visible=self._visible(made),
            pinned=(*filter(os.path.isdir, made.git_directories), *sorted(around)),
            read_only=read_only,
            empty_directories=filter(os.path.isdir, made.empty),
            empty_files=(place for place in made.empty if not os.path.isdir(place)),
            has_network=not self._has_own_network,
        )
        return tuple(words)

    def _visible(self, made: _Parts) -> tuple[str, ...]:
        places = dict.fromkeys((*made.visible, *made.policy.readable, *self._own_files))
        return tuple(filter(os.path.exists, places))

    def _read_only(self, made: _Parts) -> tuple[str, ...]:
        """The protected files, and the directories of git hooks, that exist. A mount on a symbolic link would protect
        the link's target, and the link could still be replaced.
        """
        return tuple(
            path
            for path, kind in made.read_only.found()
            if (os.path.isfile(path) or (kind == "tree" and os.path.exists(path)))
            and not os.path.islink(path)
        )


def _inside(made: _Parts, path: str) -> str:
    if made.has_own_temporary and is_within(path, made.temporary):
        return TEMPORARY + path.removeprefix(made.temporary)
    return path


def _unreadable(places: GuardedPlaces) -> Iterable[str]:
    """The paths that the tools must not read. /tmp changes all the time: for a path there that does not exist, each entry
    of /tmp would need a rule, and all rules would have to be made again after each change.
    """
    shared = os.path.realpath(TEMPORARY)
    return (path for path in places.unread if os.path.dirname(path) != shared or os.path.lexists(path))


def _changed_ns(directory: str) -> int:
    """The time when an entry was last made, removed or renamed in a directory. 0 if the directory cannot be read."""
    try:
        return os.stat(directory).st_mtime_ns
    except OSError:
        return 0


def _home_of(programs: str) -> str:
    """The directory with everything that the programs in a directory of PATH need, such as `.venv` for `.venv/bin`.
    If this directory is in /tmp, it is mounted there again, because commands would not see it otherwise.
    """
    real = os.path.realpath(programs)
    above = os.path.dirname(real)
    return above if real.endswith(("/bin", "/sbin")) and above not in ("/", TEMPORARY) else real


def command_variables(
    environment: Mapping[str, str], *, temporary: str, cache: str, gives_sockets: bool
) -> dict[str, str]:
    """The environment of a command, made from `environment`. Adds the directories for temporary files and packages,
    as the command sees their paths. Removes the addresses of the user's agents, such as the SSH agent, unless
    `gives_sockets` is True.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if gives_sockets or not (name in _SOCKET_VARIABLES or name.startswith("DBUS_"))
    }
    return {**kept, **{name: cache + below for name, below in CACHES.items()}, "TMPDIR": temporary}


def package_cache(environment: Mapping[str, str], root: str) -> str | None:
    """The directory for the package caches of the checkout at `root`. Makes the directory if it is missing.

    None if this directory cannot be made or a symbolic link leads to it. A command of an earlier run could have made
    that link, and commands could then write to its target.
    """
    home, base = environment.get("HOME", ""), environment.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        if not home.startswith("/"):
            return None
        base = f"{home}/.cache"
    name = short_digest(os.fsencode(root), 16)
    path = f"{os.path.realpath(base)}/ralph/packages/{name}"
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError:
        return None
    return path if os.path.realpath(path) == path else None
