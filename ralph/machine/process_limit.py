"""A control group for the commands of one run, with a limit on their processes, where the machine allows one.

The group lies beneath ralph's own, so every limit that the user has set still holds. No other group changes in a
way that anybody could notice, ralph itself stays outside, and the group goes with the run. The next run removes
what a killed ralph left: a lock on the directory shows who still needs it, and dies with its owner.

A limit per user (`RLIMIT_NPROC`) is no substitute: it counts the user's other programs, and spares root.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

MOST_PROCESSES = 512
"""The limit; threads count. A build of 64 jobs with a few processes each, or a dozen servers with 40 threads
each, stays below. A storm reaches it within milliseconds, and 512 processes are found and killed at once.
"""

_PREFIX = "ralph-commands-"
# Between being made and being locked, a group may be taken for a left-over one and be removed.
_TRIES = 3


class NoLimitError(Exception):
    """No group can be made here; the text says why."""


class ProcessLimit:
    """The group of this run. `close()` removes it."""

    def __init__(self, directory: Path, lock: int, shared: Path | None) -> None:
        self._directory = directory
        self._lock = lock
        self._shared = shared
        """The file through which this process has switched on the counting of processes in child groups; None: it has
        not.
        """

    @classmethod
    def made(cls, most: int, *, is_below_loop: bool = False) -> Self:
        """Make a group that holds at most `most` processes and threads. Raises NoLimitError.

        `is_below_loop`: the parent of this process is a ralph too, and may be in the same group.
        """
        try:
            place = place_of(
                Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape"),
                Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"),
            )
        except OSError:
            place = None
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
        """The file to which a process writes in order to enter the group."""
        return str(self._directory / "cgroup.procs")

    def limit(self, most: int, *, is_first_version: bool) -> None:
        if not is_first_version and _read(self._directory / "cgroup.type") == "domain invalid":
            _write(self._directory / "cgroup.type", "threaded")
        _write(self._directory / "pids.max", str(most))

    def close(self) -> None:
        """Remove the group. If a process in it could not be killed, the group stays, and a later run removes it."""
        with suppress(OSError):
            _remove(self._directory)
            if self._shared is not None:
                _write(self._shared, "-pids")
        os.close(self._lock)


class ControlGroup(NamedTuple):
    """The control group of this process, if the system can count the processes in groups below it."""

    directory: Path
    is_first_version: bool


def place_of(groups: str, mounts: str) -> ControlGroup | None:
    """Parse `/proc/self/cgroup` and `/proc/self/mountinfo`. None: there is no group, or it is not visible from
    here.
    """
    own = [line.split(":", 2) for line in groups.splitlines()]
    first = [path for _, controllers, path in own if "pids" in controllers.split(",")]
    second = [path for number, _, path in own if number == "0"]
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        root, mountpoint = left.split(" ")[3:5]
        kind, _, options = right.split(" ", 2)
        is_first = kind == "cgroup" and "pids" in options.split(",")
        paths = first if is_first else second if kind == "cgroup2" and not first else []
        for path in paths:
            below = _below(path, root)
            if below is not None:
                return ControlGroup(Path(mountpoint, below), is_first)
    return None


def _below(path: str, root: str) -> str | None:
    """The group's path beneath the mounted directory; None for a group outside of it."""
    if root == "/":
        return path.lstrip("/") if not path.startswith("/..") else None
    if path == root or path.startswith(root + "/"):
        return path[len(root) :].lstrip("/")
    return None


def remove_left_over(directory: Path) -> None:
    """Remove the groups that killed ralphs have left in `directory`."""
    for group in directory.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = _locked(group)
            try:
                _remove(group)
            finally:
                os.close(lock)


def _remove(group: Path) -> None:
    """Remove a group and the groups that a killed ralph has left within it. Raises OSError if a process is in one of
    them.
    """
    remove_left_over(group)
    group.rmdir()


def _new_group(directory: Path) -> tuple[Path, int]:
    """Make a new group in `directory`. Returns it with the descriptor that locks it. Raises OSError."""
    for number in range(_TRIES):
        group = directory / f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        group.mkdir()
        try:
            lock = _locked(group)
        except OSError:
            if number == _TRIES - 1:
                raise
            continue
        if group.exists():
            return group, lock
        os.close(lock)
    raise FileNotFoundError(2, os.strerror(2), str(directory))


def _locked(group: Path) -> int:
    """Lock a group. Returns the descriptor that holds the lock. Raises OSError if another process has the lock."""
    lock = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _passed_on(group: Path, *, is_below_loop: bool) -> Path | None:
    """Makes our own group count processes in groups below it (cgroup version 2). Returns the file that was written for
    this; None: the group did so already.

    Raises OSError, and NoLimitError if the group is not ours alone. Other users of the group could then make no groups
    of their own, and systemd undoes changes to a group that it has not delegated.
    """
    shared = group / "cgroup.subtree_control"
    if "pids" in _read(shared).split():
        return None
    if "pids" not in _read(group / "cgroup.controllers").split():
        raise NoLimitError("ralph's control group has no limit on processes to pass on")
    if not _is_delegated(group):
        raise NoLimitError("ralph's control group is not delegated to it")
    ours = {os.getpid(), *([os.getppid()] if is_below_loop else [])}
    if not {int(pid) for pid in _read(group / "cgroup.procs").split()} <= ours:
        raise NoLimitError("ralph shares its control group with other processes")
    _write(shared, "+pids")
    return shared


def _is_delegated(group: Path) -> bool:
    """Whether the group is delegated to us. Systemd marks delegated groups; without systemd, every group counts as
    delegated.
    """
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
    """Write to a control file. Control files exist already, and take the text in a single write."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
