"""Makes the sandbox of a run's commands from a `BoxPlan` when the first command starts, and keeps the sandbox until
the run ends.
"""

from __future__ import annotations

import os
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.machine.command_supervisor import Confinement
from ralph.machine.spill_directory import OwnDirectory
from ralph.machine.starting import start_confined
from ralph.places.gather import home_directories, state_directories
from ralph.sandbox.box import Box
from ralph.sandbox.box_places import box_facts
from ralph.sandbox.command_variables import command_variables, package_cache
from ralph.sandbox.policy import GivenPlaces, box_policy
from ralph.sandbox.protected_files import ProtectedFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from subprocess import Popen

    from ralph.places.places import GuardedPlaces
    from ralph.sandbox.box_plan import BoxPlan
    from ralph.sandbox.network.proxy import ProxyDoor, RefusedConnection
    from ralph.sandbox.policy import BoxFacts, BoxPolicy

_PREFIX = "ralph-tmp-"


class BoxPlaces(Struct, frozen=True):
    """The paths of a run from which its sandbox is made."""

    roots: tuple[str, ...]
    """The working directory and the other directories that commands may write, with symbolic links resolved."""
    environment: Mapping[str, str]
    """The user's own environment. Its variables say where the user's secrets and caches are."""
    protected: Callable[[], GuardedPlaces]
    """Returns the table of protected paths of the file tools."""
    own_files: Callable[[], str | None] = lambda: None
    """Returns the directory with the long outputs of commands, or None if there is none yet."""


class CommandBox:
    """The sandbox of a run's commands and searches. Its parts are made when they are first needed.

    Any thread may call the methods, and one thread works at a time. A method may never return if a file system does
    not answer. So the main thread first lets `BoxTurns` call `prepare` on another thread.
    """

    def __init__(self, plan: BoxPlan, places: BoxPlaces) -> None:
        self._plan = plan
        self._places = places
        self._lock = RLock()
        """Held while a part is made, and while a ruleset is used: the next use may close it."""
        self._door: ProxyDoor | None = None

    # --- Parts

    @cached_property
    def _temporary(self) -> OwnDirectory:
        return OwnDirectory(_PREFIX, (*self._places.roots, *self._plan.write))

    @property
    def temporary(self) -> str:
        """The directory for temporary files of commands. It exists until the run ends. Raises OSError."""
        with self._lock:
            return self._temporary.path

    @cached_property
    def _cache(self) -> str:
        """The directory for package caches, or the one for temporary files if there can be no such directory."""
        return package_cache(self._places.environment, self._places.roots[0]) or self.temporary

    @cached_property
    def _facts(self) -> BoxFacts:
        facts, _ = box_facts(
            self._places.roots,
            self._places.protected(),
            environment=self._places.environment,
            scratch=(self.temporary, self._cache),
            own_files=self._own_files,
        )
        return facts

    @property
    def _own_files(self) -> tuple[str, ...]:
        own = self._places.own_files()
        return () if own is None else (os.path.realpath(own),)

    @cached_property
    def _policy(self) -> BoxPolicy:
        plan = self._plan
        given = GivenPlaces(plan.write, plan.read, plan.sockets, (*plan.read_deny, *plan.rules_deny))
        return box_policy(self._facts, given, plan.net)

    @property
    def policy(self) -> BoxPolicy:
        """The policy that says which files and which network commands may use. Raises OSError."""
        with self._lock:
            return self._policy

    @cached_property
    def _protected(self) -> ProtectedFiles:
        environment = self._places.environment
        state = next(iter(state_directories(environment, home_directories(environment), None)))
        return ProtectedFiles(self._places.roots, self._facts.git_directories, state)

    @property
    def protected(self) -> ProtectedFiles:
        """The protected files of the run. They are not thread-safe: only `BoxTurns` uses them. Raises OSError."""
        with self._lock:
            return self._protected

    @cached_property
    def _box(self) -> Box:
        assert self._plan.means is not None  # noqa: S101 - there is no box without means
        facts = self._facts
        return Box(
            self._plan.means,
            self._policy,
            temporary=self.temporary,
            roots=facts.roots,
            git_directories=facts.git_directories,
        )

    # --- Commands

    def prepare(self) -> None:
        """Makes all parts that the next command needs. Raises OSError."""
        with self._lock:
            self._box.ruleset()

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Makes the environment of a command from `environment`, as `command_variables` does. Raises OSError."""
        with self._lock:
            return command_variables(
                environment,
                temporary=self._box.inside(self.temporary),
                cache=self._box.inside(self._cache),
                gives_sockets=bool(self._plan.sockets),
            )

    def confinement(self, directory: str) -> Confinement:
        """The sandbox of the next command, which starts in `directory`. The result must not be used after the next
        call. Raises OSError.
        """
        with self._lock:
            self._close_door()
            if self._box.has_own_network and self._plan.net == "proxy":
                from ralph.sandbox.network.allowed_hosts import allowed_hosts  # noqa: PLC0415 - only with a proxy
                from ralph.sandbox.network.proxy import ProxyDoor  # noqa: PLC0415 - only with a proxy

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

        with self._lock:
            policy, protected = self._policy, self._box.protected_places()
        others = (*self._places.roots[1:], *self._plan.write)
        return denial_note(
            output, policy, working_directory, others, protected=protected, outside=self.outside
        )

    # --- Searches and file tools

    def start(self, arguments: Sequence[str], **options: Any) -> Popen[bytes]:
        """Starts a process in the sandbox. Takes the arguments of `starting.start_process`."""
        with self._lock:
            return start_confined(arguments, self._box.ruleset(), self._box.search_program, **options)

    def outside(self, path: str) -> str:
        """Converts a path inside the sandbox to the path outside. `path` is absolute and has no `..`. Raises
        OSError.
        """
        with self._lock:
            return self._box.outside(path, self._own_files)

    def inside(self, path: str) -> str:
        """Converts a path outside of the sandbox to the path inside."""
        with self._lock:
            return self._box.inside(path)

    def close(self) -> None:
        """Closes the ruleset and the proxy, and removes the temporary files. Must be called when no command runs."""
        self._close_door()
        made = vars(self)
        if "_protected" in made:
            self._protected.close()
        if "_box" in made:
            self._box.close()
        if "_temporary" in made:
            self._temporary.remove()
