"""Makes control groups (cgroups(7)) that limit the number of processes and the memory of one run's commands, if the machine
allows that. A limit per user (`RLIMIT_NPROC`) would also count the user's other programs, and would not apply to root.

A group is below ralph's own group, so the user's own limits still apply. ralph itself is not in it. It is removed when the
run ends, or by a later run if ralph was killed: the directory of a group in use is locked.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from ralph.machine.files.opened_file import closed_after, opened
from ralph.machine.files.paths import is_within
from ralph.machine.files.trees import locked, new_locked
from ralph.machine.launcher import children_of

MOST_PROCESSES = 512
"""The default limit on processes and threads. Builds with 64 jobs stay below it, and so do a dozen servers with 40
threads each. Processes that multiply without end reach it within milliseconds, and 512 processes can be found and
killed at once."""

# The supervisor and the launcher are in the group too: 10 MiB each, and some memory of the kernel.
_OWN_MEMORY_BYTES = 32 * 1024 * 1024
_PREFIX = "ralph-commands-"
_ENDS_WITHIN_S = 1.0
_LOOK_AGAIN_AFTER_S = 0.002


class NoLimitError(Exception):
    """No control group can be made here. The message says why."""


class _GroupLimit:
    """A control group with a limit for this run's commands."""

    controller: ClassVar[str]

    def __init__(self, directory: Path, lock: int | None, shared: Path | None) -> None:
        self.directory = directory
        self._lock = lock
        """The descriptor that locks the group, or None if the group is that of another limit."""
        self._shared = shared
        """The control file in which this process has enabled the limits of the groups below ralph's, or None."""

    def close(self) -> None:
        """Removes a group of its own. One with a process that could not be killed stays, and a later run removes it."""
        with suppress(OSError):
            if self._lock is not None:
                _remove_when_empty(self.directory)
            # Another ralph's group would lose its limits.
            if self._shared is not None and not any(self._shared.parent.glob(f"{_PREFIX}*")):
                _write(self._shared, f"-{self.controller}")
        if self._lock is not None:
            os.close(self._lock)


class ProcessLimit(_GroupLimit):
    """The control group that limits the number of processes of this run's commands. `close()` removes the group."""

    controller = "pids"

    @classmethod
    def made(cls, most: int, *, is_below_loop: bool = False) -> Self:
        """Makes a group for at most `most` processes and threads. `is_below_loop`: the parent is a `ralph loop`, perhaps in the
        same group. Raises NoLimitError.
        """
        place = own_place("pids")
        if place is None:
            raise NoLimitError("this system has no control groups for processes")
        try:
            shared = (
                None if place.is_first_version else _passed_on(place.directory, is_below_loop=is_below_loop)
            )
            remove_left_over(place.directory)
            directory, lock = _new_group(place.directory)
        except OSError as error:
            raise NoLimitError(f"no control group can be made: {error.strerror}") from None
        made = cls(directory, lock, shared)
        try:
            made.limit(most, is_first_version=place.is_first_version)
        except OSError as error:
            made.close()
            raise NoLimitError(f"no control group can be used: {error.strerror}") from None
        return made

    @property
    def entrance(self) -> str:
        """The path of the group's control file. A process that writes to this file enters the group."""
        return str(self.directory / "cgroup.procs")

    def limit(self, most: int, *, is_first_version: bool) -> None:
        if not is_first_version and _read(self.directory / "cgroup.type") == "domain invalid":
            _write(self.directory / "cgroup.type", "threaded")
        _write(self.directory / "pids.max", str(most))


class MemoryLimit(_GroupLimit):
    """The control group that limits the memory of this run's commands. With version 2, it is that of `ProcessLimit`. With version
    1, it is one of its own, which `close()` removes, after `ProcessLimit.close()`.
    """

    controller = "memory"

    @classmethod
    def made(cls, most_bytes: int, place: ControlGroup | None, beside: ProcessLimit | None) -> Self:
        """Makes a group in `place`, or uses that of `beside`, the limit on processes. The limit is `most_bytes` and what the
        supervisor needs. Raises NoLimitError.
        """
        if place is None:
            raise NoLimitError("this system has no control groups for memory")
        try:
            if place.is_first_version:
                remove_left_over(place.directory)
                made = cls(*_new_group(place.directory), None)
            elif beside is not None:
                made = cls(beside.directory, None, _with_memory(beside.directory.parent))
            else:
                raise NoLimitError("there is no group of commands")
        except OSError as error:
            raise NoLimitError(f"no control group for memory can be made: {error.strerror}") from None
        try:
            made.limit(most_bytes + _OWN_MEMORY_BYTES, is_first_version=place.is_first_version)
        except OSError as error:
            made.close()
            raise NoLimitError(f"no control group for memory can be used: {error.strerror}") from None
        return made

    def limit(self, most_bytes: int, *, is_first_version: bool) -> None:
        """Limits the memory of the group, including swapped memory, to `most_bytes`. Raises OSError."""
        if is_first_version:
            _write(self.directory / "memory.limit_in_bytes", str(most_bytes))
            swapped, most_swapped = "memory.memsw.limit_in_bytes", most_bytes
        else:
            _write(self.directory / "memory.max", str(most_bytes))
            swapped, most_swapped = "memory.swap.max", 0
        with suppress(FileNotFoundError):  # a kernel that does not count swapped memory
            _write(self.directory / swapped, str(most_swapped))


def _with_memory(group: Path) -> Path | None:
    """Enables memory limits for the groups below `group`, ralph's own (version 2). Returns the control file that was written, or
    None if they were enabled already. Raises NoLimitError if systemd manages `group`, and OSError if the kernel refuses: it
    allows the change only in a group without processes, and in the topmost group.
    """
    shared = group / "cgroup.subtree_control"
    if "memory" in _read(shared).split():
        return None
    if not _is_delegated(group):
        raise NoLimitError("ralph's control group is not delegated to it")
    _write(shared, "+memory")
    return shared


class ControlGroup(NamedTuple):
    """The control group that ralph's own process is in. Each kind of limit may have its own hierarchy of groups."""

    directory: Path
    is_first_version: bool


def own_place(controller: str) -> ControlGroup | None:
    """Finds this process's control group for `controller`, such as "pids". Returns None if there is none."""
    try:
        return place_of(
            Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape"),
            Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"),
            controller,
        )
    except OSError:
        return None


def place_of(groups: str, mounts: str, controller: str) -> ControlGroup | None:
    """The group of this process for `controller`, by the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`, or None."""
    own = [line.split(":", 2) for line in groups.splitlines()]
    first = [path for _, controllers, path in own if controller in controllers.split(",")]
    second = [path for number, _, path in own if number == "0"]
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        root, mountpoint = left.split(" ")[3:5]
        kind, _, options = right.split(" ", 2)
        is_first = kind == "cgroup" and controller in options.split(",")
        paths = first if is_first else second if kind == "cgroup2" and not first else []
        for path in paths:
            # A group outside the mounted directory is not to be seen there.
            if is_within(path, root) and not path.startswith("/.."):
                return ControlGroup(Path(mountpoint, path[len(root) :].lstrip("/")), is_first)
    return None


def remove_left_over(directory: Path) -> None:
    """Removes groups in `directory` that belonged to ralph processes that were killed."""
    for group in directory.glob(f"{_PREFIX}*"):
        with suppress(OSError), closed_after(locked(str(group))):
            _remove(group)


def _remove_when_empty(group: Path) -> None:
    """Waits briefly for processes that are just ending, such as one that waited for the next command."""
    until_s = time.monotonic() + _ENDS_WITHIN_S
    while True:
        try:
            return _remove(group)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= until_s:
                raise
        time.sleep(_LOOK_AGAIN_AFTER_S)


def _remove(group: Path) -> None:
    """Removes a group, and those of killed ralph processes in it. Raises OSError if one still contains a process."""
    remove_left_over(group)
    group.rmdir()


def _new_group(directory: Path) -> tuple[Path, int]:
    """Makes a group in `directory` and locks it. Returns its path and the lock's descriptor. Raises OSError."""

    def make() -> str:
        group = directory / f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        group.mkdir()
        return str(group)

    path, lock = new_locked(make)
    return Path(path), lock


def _passed_on(group: Path, *, is_below_loop: bool) -> Path | None:
    """Enables process limits for the groups below `group`, ralph's own (version 2). Returns the control file that was written, or
    None if they were enabled already. Raises OSError, and NoLimitError if the kernel offers none in `group`, systemd manages it
    and would undo the change, or other processes are in it, which could no longer make groups of their own.
    """
    shared = group / "cgroup.subtree_control"
    if "pids" in _read(shared).split():
        return None
    if "pids" not in _read(group / "cgroup.controllers").split():
        raise NoLimitError("ralph's control group has no limit on processes to pass on")
    if not _is_delegated(group):
        raise NoLimitError("ralph's control group is not delegated to it")
    # Its children there are programs of its own, such as the one that speaks with MCP servers.
    ours = {os.getpid(), *children_of(os.getpid()), *([os.getppid()] if is_below_loop else [])}
    if not {int(pid) for pid in _read(group / "cgroup.procs").split()} <= ours:
        raise NoLimitError("ralph shares its control group with other processes")
    _write(shared, "+pids")
    return shared


def _is_delegated(group: Path) -> bool:
    """Whether ralph may manage the group: systemd has marked it, or does not run."""
    if not Path("/run/systemd/system").is_dir():
        return True
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _read(file: Path) -> str:
    return file.read_text(encoding="ascii").strip()


def _write(file: Path, text: str) -> None:
    """In a single write(2), as the kernel requires, to a file that must exist."""
    with opened(file, os.O_WRONLY) as descriptor:
        os.write(descriptor, text.encode())
