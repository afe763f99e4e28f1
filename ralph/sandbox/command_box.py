"""The sandbox of a run's commands and searches: makes the Landlock ruleset, the seccomp filter and the command line of
namespaces when the first command starts, and keeps them until the run ends. Before and after each command, it compares
the protected files.
"""

from __future__ import annotations

import errno
import os
import platform
import stat
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from ralph.machine import restriction
from ralph.machine.command_supervisor import Confinement
from ralph.machine.files.paths import beginning_of, is_within, is_within_any, mounts, other_paths
from ralph.machine.files.trees import OwnDirectory
from ralph.machine.loading import short_digest
from ralph.machine.own_process import package_caches
from ralph.machine.own_programs import TEMPORARY_PREFIX, search_outside
from ralph.machine.starting import start_confined, start_process
from ralph.places.gather import GuardedFiles, home_directories, state_directories
from ralph.places.git_places import git_places
from ralph.places.home import filtered, lay_caches
from ralph.places.places import xdg_bases
from ralph.places.table import CACHES, COMPARED, FILTERED, MAVEN_OPTIONS, PNPM_STORE, READ_ONLY, SBT_OPTIONS
from ralph.sandbox import denials
from ralph.sandbox.allowed_hosts import allowed_hosts
from ralph.sandbox.box_plan import unpublished_in
from ralph.sandbox.box_rules import (
    HAS_QUEUES,
    BoxMounts,
    inside_rules,
    landlock_rules,
    own_mounts,
    plan_with_places,
)
from ralph.sandbox.bubblewrap import TEMPORARY, bwrap_command
from ralph.sandbox.detection import gpu_devices
from ralph.sandbox.disk_work import SilentDiskError
from ralph.sandbox.kept_box import KeptBox, SharedSpaces
from ralph.sandbox.landlock import Ruleset
from ralph.sandbox.protected_changes import changed_since_kill_note, left_note, undone_note
from ralph.sandbox.protected_files import ProtectedFiles
from ralph.sandbox.seccomp import make_filter
from ralph.values.credentials import SANDBOX_HIDE, callers_places
from ralph.values.outcome import shortage_of
from ralph.values.ports import GuardRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from subprocess import Popen

    from ralph.places.places import GuardedPlaces
    from ralph.sandbox.box_plan import BoxNotice, BoxPlan
    from ralph.sandbox.disk_work import DiskWork
    from ralph.sandbox.protected_changes import UndoResult
    from ralph.sandbox.proxy import ProxyDoor, RefusedConnection
    from ralph.sandbox.seccomp import Internet

T = TypeVar("T")

# Sockets of other programs that act for the user: agents with keys, the desktop, containers.
_SOCKET_VARIABLES = ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "DOCKER_HOST")
_TRIES, _TRIES_WITHOUT_COVERS = 6, 3
"""How often a box is made of what is found then."""
_SERVERS = "\0servers"
"""Is added to the path of a checkout for caches that its commands do not write."""
_NO_PLACE = (
    "temporary files that commands may not read need a state directory that ralph may write (RALPH_STATE_DIR)"
)
_NOT_COMPARED = (
    "[the protected files were not compared, because their file system does not answer; ralph undoes changes to them "
    "before the next command]"
)


class CommandBox:
    """The sandbox of a run's commands and searches, made when first needed. With a plan that confines nothing, the methods do
    nothing.

    Any thread may call the methods, and one thread works at a time. A method may never return if a file system does not answer.
    So the main thread first calls one of those around a command, which work on another thread.
    """

    def __init__(
        self,
        plan: BoxPlan,
        roots: Sequence[str],
        environment: Mapping[str, str],
        places: Callable[[], GuardedPlaces],
        own_files: Callable[[], str | None] = lambda: None,
        *,
        disk: DiskWork | None = None,
        like: CommandBox | None = None,
        has_own_caches: bool = False,
    ) -> None:
        """`roots` are the working directory and the other directories that commands may write, with symbolic links
        resolved. `environment` is the user's own: its variables say where the user's secrets and caches are. `places`
        returns the places that the tools must not use. `own_files` returns the directory with the long outputs of
        commands, or None if there is none yet. `disk` does the work before and after each command. None means that the
        protected files are not compared. With `like`, the box of the run's commands, this one shows the same places, but has
        temporary files of its own, and package caches with `has_own_caches`. The other arguments must be those of `like`.
        """
        self._plan, self._places = plan, places
        self._roots = tuple(roots)
        self._environment = environment
        self._find_own_files = own_files
        self._disk = disk if plan.is_confined else None
        self._like = like
        self._has_own_caches = has_own_caches
        self._own: Mapping[str, str] = {}
        """The directories of `like` of which this box has one of its own, and that."""
        self._open_roots: tuple[str, ...] = ()
        """The roots that the table lets commands write: not one that is or is in a protected folder."""
        self._lock: Any = RLock() if like is None else like._lock  # noqa: SLF001 - another of this class
        """Held while a part is made, and while a ruleset is used: the next use may close it."""
        self._temporary: OwnDirectory | None = None
        self._closed: OwnDirectory | None = None
        """The empty directory that is mounted on directories that commands must not read."""
        self._copies: OwnDirectory | None = None
        self._made: BoxPlan | None = None
        self._cache = ""
        self._words_seen = 0
        """The number of the command line of `_mounts` that was seen last."""
        self._ruleset = Ruleset(plan.means.landlock.abi)
        """The ruleset of what runs without namespaces."""
        self._box: KeptBox | None = None
        self._shared: SharedSpaces | None = None
        """The namespaces that commands share as long as one runs in the background."""
        self._prepared: tuple[bool, KeptBox | None, int] | None = None
        """Whether the next command shares namespaces, and its box and ruleset, which `prepare` has made."""
        self._sharing = 0
        """The number of commands in the background."""
        self._door: ProxyDoor | None = None
        self._lasting_doors: list[ProxyDoor] = []
        self._protected: ProtectedFiles | None = None
        self._mounts: BoxMounts | None = None
        """Both are None until the sandbox is made. `like` has the same two, and closes them."""
        self._notes: list[str] = []
        """Notes about undone changes that no method has returned yet."""
        self._not_undone: list[UndoResult] = []
        """Changes that could not be undone, and that people have not been told."""
        self._is_kill_told = False
        """Whether `look_after_kill` has returned a note."""

    @property
    def is_confined(self) -> bool:
        return self._plan.is_confined

    @property
    def notices(self) -> tuple[BoxNotice, ...]:
        return self._plan.notices

    @property
    def is_covered(self) -> bool:
        """False if overlays that are needed could not be made."""
        return self._mounts is None or self._mounts.not_covered is None

    # --- Parts

    @property
    def parts(self) -> BoxPlan:
        """Which files commands may use. Raises OSError if the sandbox cannot be made."""
        with self._lock:
            if self._made is None:
                self._temporary = self._temporary or self._new_temporary()
                temporary = self._temporary.path
                like = self._like
                self._made = self._make(temporary) if like is None else self._make_like(like, temporary)
            return self._made

    @property
    def temporary(self) -> str | None:
        """The directory for temporary files, once it is made."""
        return None if self._temporary is None else self._temporary.path

    def _new_temporary(self) -> OwnDirectory:
        writable = (*self._roots, *self._plan.write)
        if self._like is None:
            return OwnDirectory(TEMPORARY_PREFIX, writable)
        # What a server or a hook keeps there, such as a key, is not for commands: they read no state of ralph's.
        found = [*state_directories(self._environment, home_directories(self._environment))]
        real = [os.path.realpath(place) for place in writable]
        for state in sorted(found, key=lambda one: is_within_any(os.path.realpath(one), real)):
            with suppress(OSError):
                os.makedirs(state, mode=0o700, exist_ok=True)
                if _is_ours(state):
                    return OwnDirectory(TEMPORARY_PREFIX, above=state)
        raise PermissionError(errno.EACCES, _NO_PLACE, found[0])

    def _make_like(self, like: CommandBox, temporary: str) -> BoxPlan:
        parts = like.parts
        self._open_roots, self._mounts, self._protected = like._open_roots, like._mounts, like._protected
        self._own = {parts.temporary: temporary}
        if self._has_own_caches:
            cache = package_cache(self._environment, self._roots[0] + _SERVERS)
            # Where the caches are in the work, commands could write what the server loads.
            if cache is None or is_within_any(os.path.realpath(cache), self._open_roots):
                cache = temporary
            self._own[like._cache] = cache
        self._cache = self._own.get(like._cache, like._cache)
        if self._has_own_caches:
            self._lay_caches(parts)
        writable = tuple(self._own.get(one, one) for one in parts.writable)
        return replace(parts, temporary=temporary, writable=writable)

    def _make(self, temporary: str) -> BoxPlan:
        plan, roots, environment, places = self._plan, self._roots, self._environment, self._places()
        if plan.masked and self._closed is None:
            self._closed = OwnDirectory(TEMPORARY_PREFIX, (*roots, *plan.write))
            # Without the right to search it, git does not take the files that it knows there for removed ones.
            os.chmod(self._closed.path, 0o400)
        self._cache = package_cache(environment, roots[0]) or temporary
        open_roots = self._open_roots = places.open_of(roots)
        git = git_places(roots, environment, os.getuid())
        granted, parts_of_git = (
            tuple(one for one in found if places.why_not_read(one) is None)
            for found in (git.granted, git.parts)
        )
        for part in parts_of_git:
            with suppress(OSError):
                os.mkdir(part)  # git makes `logs` at the first commit, and a place must exist to be opened
        parts = plan_with_places(
            plan,
            places,
            roots=open_roots,
            temporary=temporary,
            cache=self._cache,
            git=(*granted, *filter(os.path.isdir, parts_of_git)),
            programs=tuple(map(_home_of, os.get_exec_path())),
            own_files=self._own_files,
        )
        parts = replace(
            parts,
            empty=tuple(one for one in parts.empty if os.path.realpath(one) == one and os.path.exists(one)),
            has_own_temporary=parts.has_own_temporary and os.path.realpath(TEMPORARY) == TEMPORARY,
        )
        elsewhere = other_paths(parts.unreadable, mounts(), lambda path: not parts.may_read(path))
        parts = replace(parts, elsewhere=elsewhere)
        parts = replace(parts, copies=tuple(self._copied(parts, places)) if plan.has_namespaces else ())
        self._lay_caches(parts)
        state = next(iter(state_directories(environment, home_directories(environment))))
        # Commands may also write what is refused to be a checkout's own, but is in a root.
        guarded = (*granted, *(one for one in git.claimed if is_within_any(one, open_roots)))
        files = GuardedFiles(READ_ONLY, open_roots, guarded, parts.read_only, writable=parts.writable)
        closed = "" if self._closed is None else self._closed.path
        self._mounts = BoxMounts(parts, files, lambda: self._own_files, closed)
        search = search_outside(environment, (*parts.writable, *guarded))
        compared = filter(search.may_be_changed, places.guarded(COMPARED, {}))
        self._protected = ProtectedFiles(
            open_roots, guarded, state, compared, writable=parts.writable, all_roots=roots
        )
        return parts

    def _lay_caches(self, parts: BoxPlan) -> None:
        own = {"~": home_directories(self._environment)}
        places = self._places()
        mixed = frozenset(places.guarded(FILTERED, {}))
        lay_caches(
            self._cache,
            {**own, **xdg_bases(own["~"], self._environment)},
            self._environment,
            lambda path: parts.may_read(path) and not parts.is_writable(path),
            lambda path: path not in mixed and places.why_judged(path) is None,
        )

    def _copied(self, plan: BoxPlan, places: GuardedPlaces) -> Iterator[tuple[str, str]]:
        hidden = callers_places(SANDBOX_HIDE, self._environment.get(SANDBOX_HIDE, ""))
        denied = (*plan.read_deny, *plan.rules_deny, *hidden)
        for file in places.guarded(FILTERED, {}):
            place = places.why_not_read(file, plan.readable)
            if (
                place is None  # in a directory of secrets, nothing is copied
                or place.path not in (file, *places.closed_homes)
                or not os.path.isfile(file)
                or plan.is_writable(file)
                or is_within_any(file, denied)
            ):
                continue
            self._copies = self._copies or OwnDirectory(TEMPORARY_PREFIX, plan.writable)
            copy = f"{self._copies.path}/{short_digest(os.fsencode(file), 16)}"
            descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as written:
                written.write(filtered(file) or "")
            yield copy, file

    def unpublished_in(self, directory: str) -> Callable[[str, bool], bool]:
        """As the function of that name, for what this box closes to commands."""
        plan = self._plan
        denied = (*plan.read_deny, *plan.rules_deny)
        return unpublished_in(
            directory, self._places(), self._roots, denied=denied, masked=plan.masked, readable=plan.read
        )

    @property
    def _own_files(self) -> tuple[str, ...]:
        own = self._find_own_files()
        return () if own is None else (os.path.realpath(own),)

    def protected(self) -> ProtectedFiles:
        """The protected files of the run. They are not thread-safe: only the pieces of `disk` use them. Raises OSError."""
        _ = self.parts
        assert self._protected is not None  # noqa: S101 - made with the parts
        return self._protected

    # --- Around a command, on the main thread

    def prepare_early(self) -> None:
        """Begins to make the sandbox. Does not wait, and raises no error: `before` raises it."""
        if self._disk is not None and self._made is None:
            self._disk.begin(self.prepare)

    def before(
        self, environment: Mapping[str, str], waiting_for: str, *, has_caches: bool = True
    ) -> Mapping[str, str]:
        """Makes the sandbox, and stores the state of the protected files, before each command and each call of an MCP server.
        Returns the command's environment, made from `environment` as by `variables`. `waiting_for` is the text of a heartbeat.

        Raises OSError, SilentDiskError and Interrupted. The command must not start then.
        """

        def make_and_look() -> Mapping[str, str]:
            self.protected().look()  # may replace files, and so take mounts away
            self.prepare()
            return self.variables(environment, has_caches=has_caches)

        try:
            return self._result_of(make_and_look, environment, waiting_for)
        except BaseException:
            if self._disk is not None:  # the command does not start, so no later change is the command's
                self._disk.begin(self._compare)
            raise

    def after(self, waiting_for: str) -> str:
        """Undoes what the command has changed in protected files. Returns a note for the model, or an empty text. Raises
        Interrupted; `after_stop` returns the note then.
        """
        try:
            self._result_of(self._compare, None, waiting_for)
        except SilentDiskError:
            return _NOT_COMPARED
        return self._taken_notes()

    def after_stop(self) -> str:
        """As `after`, when an error such as Interrupted was raised. Waits for at most 2 seconds, and is not interrupted."""
        if self._disk is not None:
            self._disk.finish(self._compare)
        return self._taken_notes()

    def not_started(self) -> None:
        """Instead of `after` if the working directory was gone. Undoes nothing: another may be in its place. Waits for 2 s at most."""
        if self._disk is not None and self._protected is not None:
            self._disk.finish(self._protected.not_started)

    def watch(self, environment: Mapping[str, str], waiting_for: str) -> Mapping[str, str]:
        """Must be called before a process starts that runs during several commands, such as an MCP server. From then on, changes
        between two commands are undone too. Returns its environment, as `before` does. Raises OSError, SilentDiskError and
        Interrupted.
        """

        def make_and_watch() -> Mapping[str, str]:
            self.prepare()
            self.protected().watch()
            return self.variables(environment)

        return self._result_of(make_and_watch, environment, waiting_for)

    def end_watch(self) -> str:
        """If MCP servers ran, undoes the changes since the last command. Called at the end of a run, after they have ended. Waits
        for at most 2 seconds. Returns a note for people, also about all that could not be undone, or an empty text.
        """
        if self._disk is None or self._protected is None or self._like is not None:
            return ""
        self._disk.finish(self._protected.end_watch)
        return "; ".join(filter(None, (self.between(), left_note(self._protected.left, self._roots[0]))))

    def between(self) -> str:
        """A note about changes that no command of this run made, or an empty text. Called after `after` or `after_stop`."""
        if self._protected is None:
            return ""
        undone, self._protected.between = self._protected.between, ()
        return undone_note(undone, self._roots[0], is_between=True)

    def told(self) -> tuple[list[str], list[str]]:
        """Notes for the model about changes that the command did not make, and those of them that people should read too: that of
        `between`, and once the one about an earlier run that was killed, which people may have read at the start. People also
        read what could not be undone. Called when a command has ended. Raises as `refuse_what_is_left` does.
        """
        self.refuse_what_is_left()
        between = [note for note in [self.between()] if note]
        failed, self._not_undone = self._not_undone, []
        for_people = [*between, *filter(None, [undone_note(failed, self._roots[0])])]
        if self._protected is None or not self._protected.after_kill:
            return between, for_people
        paths, self._protected.after_kill = self._protected.after_kill, ()
        told = [*between, changed_since_kill_note(paths, self._roots[0])]
        return told, for_people if self._is_kill_told else [*for_people, told[-1]]

    def refuse_what_is_left(self) -> None:
        """Raises GuardRefused with `--sandbox strict` if there is a change of this run that could not be undone."""
        if self._plan.is_strict and self._protected is not None and self._protected.left:
            note = left_note(self._protected.left, self._roots[0])
            raise GuardRefused(f"--sandbox strict: {note.strip('[]')}")

    def look_after_kill(self, waiting_for: str) -> str:
        """A note for people about an earlier run that was killed. Empty if the disk cannot be read. Raises Interrupted."""
        no_paths: tuple[str, ...] = ()
        try:
            paths = self._result_of(lambda: self.protected().changed_since_kill(), no_paths, waiting_for)
        except OSError:  # the first command raises it
            return ""
        self._is_kill_told = bool(paths)
        return changed_since_kill_note(paths, self._roots[0])

    def _result_of(self, work: Callable[[], T], without: T, waiting_for: str) -> T:
        """The result of work on the disk, or `without` if protected files are not compared. Raises as `DiskWork.result_of`."""
        return without if self._disk is None else self._disk.result_of(work, waiting_for)

    def _compare(self) -> None:
        if self._protected is not None:
            undone = self._protected.undo_changes()
            note = undone_note(undone, self._roots[0])
            self._notes += [note] if note else []
            self._not_undone += [one for one in undone if one.why_not]

    def _taken_notes(self) -> str:
        taken = []
        while self._notes:  # a thread may add one meanwhile
            taken.append(self._notes.pop(0))
        return "\n".join(taken)

    # --- Commands

    def prepare(self) -> None:
        """Makes all parts that the next command needs. Raises OSError."""
        with self._lock:
            box = self._fresh_box()
            shares = self._sharing > 0
            self._prepared = shares, box, self._fresh_ruleset(box, shares=shares)

    def variables(self, environment: Mapping[str, str], *, has_caches: bool = True) -> dict[str, str]:
        """The environment of a command: `environment` with the directories for temporary files and, with `has_caches`, packages,
        as the command sees them, and without the addresses of the user's agents unless the settings give sockets. Raises
        OSError.
        """
        parts = self.parts
        kept = {name: value for name, value in environment.items() if not self._is_left_out(name)}
        # An overlay is a file system of its own, at which git would stop to look for a repository above.
        across = {"GIT_DISCOVERY_ACROSS_FILESYSTEM": "1"} if parts.needs_overlays else {}
        if has_caches:
            caches = self._cache_variables(environment)
        else:
            # uv fails if it cannot write its cache. Who gives hooks places to write may have given them that.
            caches = {} if self._plan.write else {"UV_NO_CACHE": "1"}
        return {**across, **kept, **caches, "TMPDIR": parts.inside(parts.temporary)}

    def _cache_variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        packages = self.parts.inside(self._cache)
        # A cache that the user keeps in the work stays there.
        work = () if self._has_own_caches else self._open_roots
        caches = {
            name: packages + below
            for name, below in CACHES.items()
            if not (environment.get(name) and is_within_any(os.path.realpath(environment[name]), work))
        }
        if _is_of_pnpm(self._roots[0]):
            caches |= dict.fromkeys(PNPM_STORE, f"{packages}/pnpm")
        home = environment.get("HOME", "/")
        if not any(map(str.isspace, packages + home)):
            for name, options in (("MAVEN_OPTS", MAVEN_OPTIONS), ("SBT_OPTS", SBT_OPTIONS)):
                told = options.format(packages=packages, own=home)
                caches[name] = f"{environment.get(name, '')} {told}".lstrip()
        if gems := environment.get("GEM_PATH") or environment.get("GEM_HOME"):
            caches["GEM_PATH"] = f"{gems}:"  # the last colon stands for Ruby's own places
        gradle = f"{environment.get('GRADLE_USER_HOME') or f'{home}/.gradle'}/caches"
        if os.path.isdir(f"{gradle}/modules-2"):
            caches["GRADLE_RO_DEP_CACHE"] = gradle
        return caches

    def _is_left_out(self, variable: str) -> bool:
        """Whether commands do not get this variable, because it is the address of an agent of the user."""
        return not self._plan.sockets and (variable in _SOCKET_VARIABLES or variable.startswith("DBUS_"))

    def confine(self, *, lasts: bool = False, is_alone: bool = False) -> Callable[[str], Confinement] | None:
        """The function that a supervisor must call before each command: `confinement`. None if commands run as they are."""
        return partial(self.confinement, lasts=lasts, is_alone=is_alone) if self.is_confined else None

    def confinement(self, directory: str, *, lasts: bool = False, is_alone: bool = False) -> Confinement:
        """The sandbox of the next command, which starts in `directory`. Not to be used after the next call. The way to the
        allowed hosts lasts until the next command, or with `lasts` until the end of the run. With `is_alone`, the command shares
        its namespaces with no other one. Raises OSError.
        """
        with self._lock:
            self._close_door()
            door = None
            if self._plan.has_own_network and self._plan.net == "proxy":
                from ralph.sandbox.proxy import ProxyDoor  # noqa: PLC0415 - only with a proxy

                door = ProxyDoor(allowed_hosts(self._plan.allow_hosts))
                if lasts:
                    self._lasting_doors.append(door)
                else:
                    self._door = door
            shares = self._sharing > 0 and not is_alone
            prepared, self._prepared = self._prepared, None
            # Those of `prepare` are for other namespaces, or taken.
            if prepared is None or prepared[0] != shares:
                box = self._fresh_box()
                prepared = shares, box, self._fresh_ruleset(box, shares=shares)
            _, box, ruleset = prepared
            if self._shared is not None and self._shared.has_ended:
                self._close_shared()
            if box is not None and shares and self._shared is None:
                words = bwrap_command(box.words[0], has_network=not self._plan.has_own_network)
                self._shared = SharedSpaces(words, box.program, box)
            shared = self._shared if box is not None and shares else None
            return Confinement(
                ruleset,
                self._program if box is None else box.program,
                self._plan.most_file_bytes,
                *((), -1) if box is None else (box.spaces(shared), box.inner),
                (self._ruleset if box is None else box.rulesets[shares]).number,
                0 if shared is None else shared.holder,
                directory if directory in self._roots else os.path.realpath(directory),
                () if box is None else own_mounts(self._plan.means.landlock.abi, has_queues=HAS_QUEUES),
                -1 if door is None else door.descriptor,
            )

    def share_namespaces(self) -> Callable[[], None]:
        """Called before a command starts in the background: until the result is called, all commands share namespaces, and find
        it. Both on the main thread.
        """
        self._sharing += 1

        def end() -> None:
            self._sharing -= 1
            if not self._sharing:
                self._close_shared()

        return end

    def _close_shared(self) -> None:
        with self._lock:
            if self._shared is not None:
                self._shared.close()
                self._shared = None

    def refusals(self) -> tuple[str, ...]:
        """The connections of the last command that the proxy refused, one line each."""
        return _refused(self._close_door())

    def release_lasting(self) -> Callable[[], tuple[str, ...]]:
        """Called when a command with `lasts` has started. Returns what is called at its end, which returns the same as `refusals`."""
        doors = self._lasting_doors[-1:]

        def release() -> tuple[str, ...]:
            for door in doors:
                self._lasting_doors.remove(door)
            return tuple(line for door in doors for line in _refused(door.close()))

        return release

    def _close_door(self) -> tuple[RefusedConnection, ...]:
        door, self._door = self._door, None
        return () if door is None else door.close()

    def denial_note(self, output: str, working_directory: str) -> str | None:
        """A line that says what the sandbox denied to a program. None if the output shows no denial. Looks at the paths that
        the output names, so that it may never return.
        """
        parts = self.parts
        with self._lock:
            protected = self._mounts.read_only() if parts.has_namespaces and self._mounts is not None else ()
        others = (*(one for one in self._open_roots if one != self._roots[0]), *self._plan.write)
        return denials.denial_note(
            output,
            parts,
            working_directory,
            others,
            refusals=denials.Refusals(
                unix_sockets=self._plan.unix_sockets == "none" or not self.is_covered,
                tmp=not (parts.has_own_temporary or parts.may_write(os.path.realpath(TEMPORARY))),
                masked=bool(parts.masked) and parts.has_namespaces,
                gpus=not all(map(parts.may_write, gpu_devices("auto"))),
                agents=frozenset(filter(self._is_left_out, self._environment)),
            ),
            protected=(*protected, *(self._plan.write_denied if parts.has_namespaces else ())),
            outside=self.outside,
        )

    # --- Searches and file tools

    def start(self, arguments: Sequence[str], **options: Any) -> Popen[bytes]:
        """Starts a process in the sandbox. Takes the arguments of `starting.start_process`."""
        if not self.is_confined:
            return start_process(arguments, **options)
        with self._lock:
            self._prepared = None  # whose ruleset may be closed now
            return start_confined(arguments, self._fresh_ruleset(), self._filter("none"), **options)

    def outside(self, path: str) -> str:
        """As `BoxPlan.outside`. Raises OSError."""
        parts = self.parts
        return parts.outside(path, () if self._mounts is None else self._mounts.visible())

    def close(self) -> None:
        """Closes the ruleset and the proxy, and removes the temporary files. Must be called when no command runs."""
        self._close_door()
        self._close_shared()
        for one in (
            *self._lasting_doors,
            self._protected,
            self._disk,
            self._ruleset,
            self._mounts,
            self._box,
        ):
            if one is not None:
                one.close()
        for directory in (self._temporary, self._closed, self._copies):
            if directory is not None:
                directory.remove()
        self._made = self._mounts = self._box = self._temporary = self._closed = self._copies = None

    # --- Means

    @property
    def _program(self) -> bytes:
        """The packed seccomp filter of commands that see the machine's own files, or `restriction.NO_FILTER`."""
        has_sockets = self._plan.unix_sockets != "none" and not self._plan.needs_overlays
        return self._filter(self._internet, unix_sockets=has_sockets, sequenced=bool(self._plan.gpus))

    @property
    def _internet(self) -> Internet:
        if self._plan.net == "full":
            return "all"
        return "own" if self._plan.has_own_network else "none"

    def _filter(self, internet: Internet, *, unix_sockets: bool = False, sequenced: bool = False) -> bytes:
        if self._plan.means.why_no_filter:
            return restriction.NO_FILTER
        made = make_filter(
            platform.machine(),
            internet=internet,
            unix_sockets=unix_sockets,
            sequenced=sequenced,
            without_landlock=not self._plan.means.landlock.abi,
        )
        return restriction.NO_FILTER if made is None else made

    def _fresh_ruleset(self, box: KeptBox | None = None, *, shares: bool = False) -> int:
        with self._lock:
            parts = self.parts
            if box is None:
                return self._ruleset.fresh(partial(landlock_rules, parts))
            return box.rulesets[shares].fresh(
                lambda entries: inside_rules(parts, landlock_rules(parts, entries), box.root)
            )

    def _fresh_box(self) -> KeptBox | None:
        """The box for a command that starts now. None without namespaces. What was removed, mounted or replaced between this look
        and bubblewrap's is looked up again, at last without overlays. Raises OSError.
        """
        for tries_left in reversed(range(_TRIES)):
            try:
                return self._box_now(has_covers=tries_left >= _TRIES_WITHOUT_COVERS)
            except TimeoutError:
                raise
            except OSError as error:
                if self._mounts is not None:
                    self._mounts.forget()
                if shortage := shortage_of(error):
                    raise shortage from None
                if not tries_left:
                    raise
        raise AssertionError

    def _box_now(self, *, has_covers: bool) -> KeptBox | None:
        """The kept box, or a new one if it shows other places by now."""
        parts, box = self.parts, self._box
        if parts.means.bwrap is None or self._mounts is None:
            return None
        found, is_covered, number = self._mounts.words(parts.means.bwrap, has_covers=has_covers)
        words = tuple(self._own.get(word, word) for word in found)
        if box is not None and number != self._words_seen and not box.has_its_mounts():
            box.words = ()
        self._words_seen = number
        if box is None or box.words != words:
            program = self._filter(self._internet, unix_sockets=True) if is_covered else self._program
            if parts.has_own_temporary:
                _remove_links_on_way(words, parts.temporary)
            self._box = KeptBox(words, program, parts.means.landlock.abi, parts.writable, before=box)
            if box is not None:
                box.close()
        return self._box


def _is_ours(path: str) -> bool:
    """Whether a link or a directory is this user's, and nobody else may write it. Raises OSError."""
    status = os.lstat(path)
    return status.st_uid == os.getuid() and (stat.S_ISLNK(status.st_mode) or not status.st_mode & 0o022)


def _remove_links_on_way(words: Sequence[str], temporary: str) -> None:
    """Removes links that commands have put where bubblewrap makes directories to mount on: it would make them behind the link, and
    so anywhere. `temporary` is mounted on /tmp.
    """
    for point in filter(lambda word: is_within(word, TEMPORARY), words):
        path = temporary
        for name in filter(None, point.removeprefix(TEMPORARY).split("/")):
            path = f"{path}/{name}"
            if os.path.islink(path):
                os.unlink(path)


def _is_of_pnpm(root: str) -> bool:
    """Whether pnpm manages the packages of a project (pnpm.io: `packageManager` in package.json, as `pnpm init` writes it)."""
    is_there = any(os.path.lexists(f"{root}/{name}") for name in ("pnpm-lock.yaml", "pnpm-workspace.yaml"))
    return is_there or b'"pnpm@' in beginning_of(f"{root}/package.json")


def _refused(connections: Sequence[RefusedConnection]) -> tuple[str, ...]:
    return tuple(
        f"the sandbox refused a connection to {one.host}:{one.port}: {one.reason}"
        + (f" ({one.count} times)" if one.count > 1 else "")
        for one in connections
    )


def _home_of(programs: str) -> str:
    """All that the programs in a directory of PATH need, such as `.venv` for `.venv/bin`. In /tmp, it is mounted there again."""
    real = os.path.realpath(programs)
    above = os.path.dirname(real)
    return above if real.endswith(("/bin", "/sbin")) and above not in ("/", TEMPORARY) else real


def package_cache(environment: Mapping[str, str], root: str) -> str | None:
    """The directory for the package caches of a checkout, made if missing. None if it cannot be made, or if a link, perhaps of
    a command, leads to it.
    """
    caches = package_caches(environment)
    if caches is None:
        return None
    path = f"{caches}/{short_digest(os.fsencode(root), 16)}"
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError:
        return None
    return path if os.path.realpath(path) == path else None
