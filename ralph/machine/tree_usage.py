"""Measures the processes and the memory of a command's process tree, and says which limit they exceed. Linux only; without
/proc nothing is measured. The launcher calls this module, so it imports nothing of ralph.

Memory includes private and shared memory of the processes, swapped memory, and files in memory: files in /dev/shm, removed
files that are still open, and files of memfd_create(2). It does not include cached files of a disk, System V shared memory
that no process has mapped, and memory of the kernel, such as pipes and sockets.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

TOO_MANY_PROCESSES = b"p"
TOO_MUCH_MEMORY = b"m"
"""The letter that the launcher sends to ralph if the memory limit is exceeded."""

# A tree of more processes is above every limit that makes sense.
_MOST_COUNTED = 10_000
# More open files and entries of /dev/shm than this are not looked at in one count, which would take too long.
_MOST_FILES = 20_000
_SHARED = "/dev/shm"  # noqa: S108 - ralph makes nothing there
_FILES_IN_MEMORY = (f"{_SHARED}/", "/memfd:")
_BLOCK_BYTES = 512
_KIBIBYTE = 1024


class Limits:
    """The limits of one process tree. 0 means no limit."""

    def __init__(
        self, most_tasks: int, most_memory_bytes: int, since_s: float, memory_group: str = ""
    ) -> None:
        """Files in /dev/shm count only if they are newer than `since_s`, of the wall clock. `memory_group` is the directory of
        the control group in which the kernel limits the memory, or empty. With one, memory is not measured, but the launcher
        looks whether the kernel has killed a process of the group.
        """
        self.most_tasks = most_tasks
        self.most_memory_bytes = most_memory_bytes
        self.since_s = since_s
        self.most_counted = most_tasks or _MOST_COUNTED
        """The number of processes after which a search for processes may stop."""
        self._memory_group = memory_group
        self._killed_before = _killed_in(memory_group)

    @property
    def is_kept_by_kernel(self) -> bool:
        """Whether the kernel enforces the memory limit."""
        return bool(self._memory_group)

    def killed(self) -> bytes:
        """TOO_MUCH_MEMORY if the kernel has killed a process of the group for that, otherwise an empty value."""
        return TOO_MUCH_MEMORY if _killed_in(self._memory_group) > self._killed_before else b""

    def exceeded(self, pids: Sequence[int]) -> bytes:
        """The letter of the limit that these processes exceed, or an empty value. Takes about 30 microseconds per process for the
        limit on processes, and 100 for that on memory.
        """
        if 0 < self.most_tasks < len(pids):
            return TOO_MANY_PROCESSES
        states = [_read(f"/proc/{pid}/status") for pid in pids]
        if 0 < self.most_tasks < sum(_number(state, b"\nThreads:") for state in states):
            return TOO_MANY_PROCESSES
        if self._memory_group:
            return self.killed()
        if self.most_memory_bytes:
            most_bytes = self.most_memory_bytes
            files_bytes = _files_bytes(pids, self.since_s)
            # The exact figure takes milliseconds for a large process, and is read only if the upper bound is too high.
            if most_bytes < files_bytes + sum(map(_own_bytes, states)) and most_bytes < _exact_bytes(
                pids, states, files_bytes
            ):
                return TOO_MUCH_MEMORY
        return b""


def _killed_in(memory_group: str) -> int:
    """The number of processes in a control group that the kernel has killed for memory. 0 without a group."""
    if not memory_group:
        return 0
    events = _read(f"{memory_group}/memory.events") or _read(f"{memory_group}/memory.oom_control")
    for line in events.splitlines():
        name, _, count = line.partition(b" ")
        if name == b"oom_kill":
            return int(count)
    return 0


def _own_bytes(state: bytes) -> int:
    """The memory of a process, with what it shares with others, from its /proc/PID/status."""
    return _sum(state, (b"\nRssAnon:", b"\nRssShmem:", b"\nVmSwap:"))


def _exact_bytes(pids: Sequence[int], states: Sequence[bytes], files_bytes: int) -> int:
    """The memory of the processes. What several share counts once. Of one whose memory map cannot be read, all counts."""
    private_bytes, shared_bytes = 0, 0
    for pid, state in zip(pids, states, strict=True):
        shares = _read(f"/proc/{pid}/smaps_rollup")
        if b"\nPss_Anon:" in shares:  # since Linux 5.4
            private_bytes += _sum(shares, (b"\nPss_Anon:", b"\nSwapPss:"))
            shared_bytes += _sum(shares, (b"\nPss_Shmem:",))
        else:
            private_bytes += _own_bytes(state)
    # Files in memory may be mapped too.
    return private_bytes + max(shared_bytes, files_bytes)


def _files_bytes(pids: Sequence[int], since_s: float) -> int:
    """The size of the files in memory that they have open or that are in /dev/shm (of the machine's own: the user's new ones)."""
    found: dict[tuple[int, int], int] = {}
    separate: dict[int, int] = {}
    left = _MOST_FILES
    own_device = _device(_SHARED)
    for pid in pids:
        directory = f"/proc/{pid}/fd"
        try:
            names = os.listdir(directory)[:left]
        except OSError:
            names = []
        left -= len(names)
        for name in names:
            path = f"{directory}/{name}"
            # The link's text is looked at first, because a file system that does not answer would block a stat(2).
            try:
                if os.readlink(path).startswith(_FILES_IN_MEMORY):
                    _add(path, found)
            except OSError:  # gone meanwhile
                continue
        place = f"/proc/{pid}/root{_SHARED}"
        device = _device(place)
        if device is not None and device != own_device and device not in separate:
            # With namespaces, /dev/shm is the command's own.
            try:
                system = os.statvfs(place)
            except OSError:
                continue
            separate[device] = (system.f_blocks - system.f_bfree) * system.f_frsize
    if own_device is not None:
        _add_new(_SHARED, since_s, found, left)
    in_files = sum(size for (device, _), size in found.items() if device not in separate)
    return in_files + sum(separate.values())


def _add_new(top: str, since_s: float, found: dict[tuple[int, int], int], most: int) -> None:
    user = os.geteuid()
    pending = [top]
    for directory in pending:
        try:
            entries = list(os.scandir(directory))[:most]
        except OSError:  # gone meanwhile, or not for this user
            continue
        most -= len(entries)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                _add(entry.path, found, since_s, user)


def _add(path: str, found: dict[tuple[int, int], int], since_s: float = 0, user: int | None = None) -> None:
    try:
        one = os.stat(path) if user is None else os.lstat(path)
    except OSError:  # gone meanwhile
        return
    if one.st_ctime >= since_s and user in (None, one.st_uid):
        found[one.st_dev, one.st_ino] = one.st_blocks * _BLOCK_BYTES


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def _sum(text: bytes, names: tuple[bytes, ...]) -> int:
    """The sum in bytes of the values with these names, which are in kibibytes."""
    return sum(_number(text, name) for name in names) * _KIBIBYTE


def _number(text: bytes, name: bytes) -> int:
    start = text.find(name)
    words = text[start + len(name) : start + len(name) + 32].split(maxsplit=1) if start >= 0 else []
    return int(words[0]) if words else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
