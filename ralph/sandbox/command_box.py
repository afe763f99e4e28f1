"""Makes the sandbox of a run's commands from a `BoxPlan` when the first command starts, and keeps the sandbox until
the run ends.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from threading import Lock, current_thread
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.machine.command_supervisor import Confinement
from ralph.machine.spill_directory import OwnDirectory
from ralph.machine.starting import start_confined, start_thread
from ralph.sandbox.box import Box
from ralph.sandbox.box_places import box_facts
from ralph.sandbox.killed_command import CommandMark
from ralph.sandbox.policy import GivenPlaces, box_policy
from ralph.sandbox.protected_changes import changed_since_kill_note, undone_note
from ralph.sandbox.protected_places import home_directories, state_directories
from ralph.sandbox.protected_snapshot import ProtectedSnapshot
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from subprocess import Popen
    from threading import Thread

    from ralph.sandbox.box_plan import BoxPlan
    from ralph.sandbox.policy import BoxFacts, BoxPolicy
    from ralph.sandbox.protected_changes import Undone
    from ralph.sandbox.protected_paths import ProtectedPaths
    from ralph.sandbox.proxy import ProxyDoor, RefusedConnection

# Sockets of other programs that act for the user: agents with keys, the desktop, containers.
_SOCKET_VARIABLES = ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "DOCKER_HOST")
# Where programs keep what they have downloaded, beneath the cache of the checkout.
_CACHES = {
    "XDG_CACHE_HOME": "",
    "PIP_CACHE_DIR": "/pip",
    "npm_config_cache": "/npm",
    "CARGO_HOME": "/cargo",
    "GOCACHE": "/go-build",
    "GOMODCACHE": "/go-mod",
}
# The directory in ralph's state for what commands wrote to protected files.
_UNDONE = "undone"
# The directory in ralph's state for the description of protected files while a command runs.
_RUNNING = "running"
_PREFIX = "ralph-tmp-"
# As long as Bash waits for a file system that does not answer.
_MOST_WAITED_S = 30.0


class BoxPlaces(Struct, frozen=True):
    """The paths of a run from which its sandbox is made."""

    roots: tuple[str, ...]
    """The working directory and the other directories that commands may write, with symbolic links resolved."""
    environment: Mapping[str, str]
    """The user's own environment. Its variables say where the user's secrets and caches are."""
    protected: Callable[[], ProtectedPaths]
    """Returns the table of protected paths of the file tools."""
    own_files: Callable[[], str | None] = lambda: None
    """Returns the directory with the long outputs of commands, or None if there is none yet."""


class CommandBox:
    """The sandbox of a run's commands and searches.

    `start` may be called on any thread. All other methods must be called on one thread, and not while another thread
    starts a search. Exceptions to this rule are named at the methods.
    """

    def __init__(self, plan: BoxPlan, places: BoxPlaces) -> None:
        self._plan = plan
        self._places = places
        self._lock = Lock()
        self._door: ProxyDoor | None = None
        self._working: Thread | None = None
        """The thread that `in_turn` has started last."""
        self._has_turn: Thread | None = None
        """The thread in which `in_turn` calls its work at the moment."""
        self._is_watching = False
        self._between: tuple[Undone, ...] = ()
        self._has_looked = False
        self._after_kill: tuple[str, ...] = ()

    @cached_property
    def _temporary(self) -> OwnDirectory:
        return OwnDirectory(_PREFIX, (*self._places.roots, *self._plan.write))

    @property
    def temporary(self) -> str:
        """The directory for temporary files of commands. It exists until the run ends. Raises OSError."""
        return self._temporary.path

    @cached_property
    def _facts(self) -> BoxFacts:
        places = self._places
        own = places.own_files()
        facts, _ = box_facts(
            places.roots,
            places.protected(),
            environment=places.environment,
            scratch=(self.temporary, self._cache),
            own_files=() if own is None else (own,),
        )
        return facts

    @cached_property
    def policy(self) -> BoxPolicy:
        """The policy that says which files and which network commands may use. Raises OSError."""
        plan = self._plan
        given = GivenPlaces(plan.write, plan.read, plan.sockets, (*plan.read_deny, *plan.rules_deny))
        return box_policy(self._facts, given, plan.net)

    @cached_property
    def _snapshot(self) -> ProtectedSnapshot:
        return ProtectedSnapshot(self._places.roots, self._facts.git_directories, f"{self._state}/{_UNDONE}")

    @cached_property
    def _mark(self) -> CommandMark:
        directories = (*self._places.roots, *self._snapshot.git_directories)
        return CommandMark(f"{self._state}/{_RUNNING}", directories)

    @cached_property
    def _state(self) -> str:
        environment = self._places.environment
        return next(iter(state_directories(environment, home_directories(environment), None)))

    def watch(self) -> None:
        """Call this if other processes, such as MCP servers, may change protected files between two commands. From
        then on, changes between commands are undone too. Raises OSError.
        """
        self._join_working()
        if not self._is_watching:
            self._remember()
            self._is_watching = True

    def look(self) -> None:
        """Stores the state of the protected files. If `watch` was called, first undoes the changes since the last
        command. Must be called before each command. Raises OSError.
        """
        self._join_working()
        if self._is_watching:
            self._between += self._snapshot.undo_changes()
        self._remember()

    def _remember(self) -> None:
        self._snapshot.look()
        if not self._has_looked:
            self._has_looked = True
            self._after_kill = self._mark.changed_since_kill(
                self._snapshot.known, self._snapshot.git_directories
            )
        self._mark.begin(self._snapshot.known)

    def undo_changes(self, working_directory: str) -> str:
        """Undoes the changes that the command has made to protected files since the last `look`. Returns a note for
        the model. The note is empty if there were no changes.
        """
        undone = self._snapshot.undo_changes()
        self._mark.end()
        if self._is_watching:
            self._remember()
        return undone_note(undone, working_directory)

    def undone_between(self, working_directory: str) -> str:
        """A note about changes to protected files that no command of this run made, and that `look` has undone or
        found since the last call of this method. Empty if there were no such changes.
        """
        undone, self._between = self._between, ()
        paths, self._after_kill = self._after_kill, ()
        notes = (
            undone_note(undone, working_directory, is_between=True),
            changed_since_kill_note(paths, working_directory),
        )
        return "\n".join(filter(None, notes))

    def end_watch(self, working_directory: str) -> str:
        """Undoes the changes to protected files since the last command. Must be called after the MCP servers have
        ended. Returns the note that `undone_between` returns.
        """
        if self._is_watching:
            self._between += self._snapshot.undo_changes()
        return self.undone_between(working_directory)

    @cached_property
    def _cache(self) -> str:
        """The directory for the package caches of this checkout.

        If this directory cannot be made or a symbolic link leads to it, the result is the directory for temporary
        files. A command of an earlier run could have made that link, and commands could then write to its target.
        """
        environment = self._places.environment
        home, base = environment.get("HOME", ""), environment.get("XDG_CACHE_HOME", "")
        if not base.startswith("/"):
            if not home.startswith("/"):
                return self.temporary
            base = f"{home}/.cache"
        name = hashlib.sha256(os.fsencode(self._places.roots[0])).hexdigest()[:16]
        path = f"{os.path.realpath(base)}/ralph/packages/{name}"
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103 - strings throughout
        except OSError:
            return self.temporary
        return path if os.path.realpath(path) == path else self.temporary

    @cached_property
    def _box(self) -> Box:
        assert self._plan.means is not None  # noqa: S101 - there is no box without means
        facts = self._facts
        return Box(
            self._plan.means,
            self.policy,
            temporary=self.temporary,
            roots=facts.roots,
            git_directories=facts.git_directories,
        )

    def prepare(self) -> None:
        """Builds the ruleset in advance, while the model is still writing the arguments of a call. Raises OSError."""
        self._box.ruleset()

    def in_turn(self, work: Callable[[], None]) -> None:
        """Calls `work`, which reads the disk for the sandbox, in a thread, because a file system may never answer.
        The thread calls `work` after all earlier threads of `in_turn` have ended. If no thread can be started, `work`
        is called in the current thread.
        """
        before = self._working

        def do() -> None:
            if before is not None:
                before.join()
            self._has_turn = current_thread()
            try:
                work()
            finally:
                self._has_turn = None

        try:
            self._working = start_thread(do, name="sandbox")
        except ShortageError:
            do()

    def _join_working(self) -> None:
        """Waits until the thread of `in_turn` has ended, because two threads must not make parts of the sandbox at the
        same time. Raises TimeoutError if the thread does not end, for example because a file system does not answer.
        """
        working = self._working
        if working is not None and self._has_turn is not current_thread():
            working.join(_MOST_WAITED_S)
            if working.is_alive():
                raise TimeoutError(f"the sandbox was not ready after {_MOST_WAITED_S:g} s")

    def confinement(self, directory: str) -> Confinement:
        """The sandbox of the next command, which starts in `directory`. The result must not be used after the next
        call. Raises OSError.
        """
        self._join_working()
        self._close_door()
        if self._box.has_own_network and self._plan.net == "proxy":
            from ralph.sandbox.allowed_hosts import allowed_hosts  # noqa: PLC0415 - only with a proxy
            from ralph.sandbox.proxy import ProxyDoor  # noqa: PLC0415 - as above

            self._door = ProxyDoor(allowed_hosts(self._plan.allow_hosts))
        return Confinement(
            self._box.ruleset(),
            self._box.program,
            self._plan.most_file_bytes,
            self._box.bwrap_words(self._own_files),
            os.path.realpath(directory),
            self._box.places,
            -1 if self._door is None else self._door.descriptor,
        )

    @property
    def _own_files(self) -> tuple[str, ...]:
        own = self._places.own_files()
        return () if own is None else (os.path.realpath(own),)

    def outside(self, path: str) -> str:
        """Converts a path inside the sandbox to the path outside. `path` is absolute and has no `..`. May be called
        on any thread. Raises OSError.
        """
        with self._lock:
            return self._box.outside(path, self._own_files)

    def inside(self, path: str) -> str:
        """Converts a path outside of the sandbox to the path inside. May be called on any thread."""
        with self._lock:
            return self._box.inside(path)

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

    def start(self, arguments: Sequence[str], **options: Any) -> Popen[bytes]:
        """Starts a process in the sandbox. Takes the arguments of `starting.start_process`."""
        with self._lock:  # the ruleset is valid until somebody asks for the next one
            return start_confined(arguments, self._box.ruleset(), self._box.search_program, **options)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Makes the environment of a command from `environment`. Adds the directories for temporary files and caches,
        and removes the addresses of the user's agents, such as the SSH agent. Raises OSError.
        """
        self._join_working()
        gives_sockets = bool(self._plan.sockets)
        kept = {
            name: value
            for name, value in environment.items()
            if gives_sockets or not (name in _SOCKET_VARIABLES or name.startswith("DBUS_"))
        }
        cache = self._box.inside(self._cache)
        caches = {name: cache + below for name, below in _CACHES.items()}
        return {**kept, **caches, "TMPDIR": self._box.inside(self.temporary)}

    def denial_note(self, output: str, working_directory: str) -> str | None:
        """A sentence that says what the sandbox denied to a failed command. None if the output shows no denial."""
        from ralph.sandbox.denials import denial_note  # noqa: PLC0415 - only for failed commands

        others = (*self._places.roots[1:], *self._plan.write)
        return denial_note(
            output,
            self.policy,
            working_directory,
            others,
            protected=self._box.protected_places(),
            outside=self.outside,
        )

    def close(self) -> None:
        """Closes the ruleset and the proxy, and removes the temporary files."""
        self._close_door()
        if "_mark" in vars(self):
            self._mark.close()
        if "_box" in vars(self):
            self._box.close()
        if "_temporary" in vars(self):
            self._temporary.remove()
