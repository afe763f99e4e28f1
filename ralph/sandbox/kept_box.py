# os.path instead of pathlib: the kernel takes strings.
# ruff: noqa: PTH116, PTH120
"""The box of a run's commands: namespaces that bubblewrap (`bwrap`) makes once, and that descriptors keep alive.

bubblewrap runs a shell that only waits, and is ended as soon as this process holds its namespaces. So nothing of the box
runs that a command could reach, and the box ends with this process. Each command makes namespaces of its own from it
(`machine/namespaces.py`). Only a box that commands share keeps bubblewrap, whose first process adopts their orphans.
bubblewrap ends with the thread that makes such a box.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine import launcher
from ralph.machine.planted_link import mounts, mounts_made
from ralph.machine.repository import is_within_any
from ralph.sandbox.bubblewrap import DEVICES, PROCESSES
from ralph.sandbox.kernel.ruleset import Ruleset
from ralph.values.shortage import ShortageError, shortage_of, start_error

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ralph.sandbox.kernel.ruleset import Rules

# linux/nsfs.h
_NS_GET_USERNS = 0xB701
# One line says that all mounts are there. The shell ends when this process does, because its input ends then.
_HOLDER = ("/bin/sh", "-c", "echo; read x")
_FILTER_AT = 3
_BINDS = ("--bind", "--ro-bind", "--ro-bind-try", "--dev-bind")
_MOST_COMPLAINT = 200
# It takes milliseconds; with a mount that does not answer, it would take for ever.
_READY_WITHIN_S = 5.0
# A process of a command that is stuck in the kernel keeps its namespace.
_ENDS_WITHIN_S = 2.0
_LOOK_AGAIN_AFTER_S = 0.0002


class KeptBox:
    def __init__(
        self,
        words: Sequence[str],
        program: bytes,
        abi: int,
        writable: Collection[str] = (),
        *,
        is_shared: bool = False,
    ) -> None:
        """`words` is the command line of bubblewrap, up to the program that it runs. `program` is the seccomp filter of
        bubblewrap's own processes, or `restriction.NO_FILTER`. `abi` is the version of Landlock, or 0. Commands may write the
        places `writable`. Raises OSError, also if somebody has put a link there in the way of a mount meanwhile.
        """
        self.is_shared = is_shared
        self.words = words
        """Empty if it must not be used any more."""
        self.program = program
        self.spaces: tuple[int, ...] = ()
        """The descriptors of the namespaces that a command enters first, in this order."""
        self.inner = -1
        """That of the user namespace which it enters last, or -1 if it is among them."""
        self.root = -1
        """That of the box's root directory, through which this process can look at the mounts of the box."""
        # In shared process namespaces, commands may signal one another, and no others.
        self._ruleset = Ruleset(abi, is_worn_by_uses=True, allows_signals=is_shared)
        self._pid, self._hold = _started(words, program)
        self._first = 0
        try:
            (self._first,) = launcher.children_of(self._pid)
            (holder,) = launcher.children_of(self._first)
            self._open(holder)
            _check_mounts(words, writable, holder)
            points = (words[at + 2] for at, word in enumerate(words) if word in _BINDS)
            self._mounted = {point: self._mount_at(point) for point in points}
        except (OSError, ValueError) as error:  # ValueError: somebody has killed bubblewrap meanwhile
            self.close()
            raise shortage_of(error) or OSError(errno.ECHILD, str(error), "bubblewrap") from None
        if not is_shared:
            self._end()

    def _open(self, holder: int) -> None:
        mounts, user, *others = (
            os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            for name in ("mnt", "user", "net", "ipc", "pid")
        )
        # The other namespaces may belong to one around it: bubblewrap makes two where it needs user id 0 for a moment.
        owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
        network, *of_processes = others
        kept = [mounts]
        if not _is_own(owner, "user"):  # root has none
            kept.insert(0, owner)
        if not _is_own(network, "net"):  # only root of this machine could enter its own again
            kept.append(network)
        if self.is_shared:
            kept += of_processes
        self.spaces = tuple(kept)
        if not (os.path.samestat(os.fstat(user), os.fstat(owner)) or _is_own(user, "user")):
            self.inner = user
        for one in {mounts, user, *others, owner} - {*kept, self.inner}:
            os.close(one)
        self.root = os.open(f"/proc/{holder}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def has_its_mounts(self) -> bool:
        """Whether all that was mounted still is. The kernel takes a mount away, in all namespaces, whose place somebody outside
        replaces or removes, as editors do that save a file.
        """
        return all(self._mount_at(point) == number for point, number in self._mounted.items())

    def _mount_at(self, point: str) -> bytes:
        """Identifies the mount that the box has at a path (proc_pid_fdinfo(5)). Empty if nothing is there."""
        with suppress(OSError):
            opened = os.open(f"/proc/self/fd/{self.root}{point}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return Path(f"/proc/self/fdinfo/{opened}").read_bytes()
            finally:
                os.close(opened)
        return b""

    def ruleset(self, rules: Rules) -> int:
        """The descriptor of a ruleset for a command that starts now (`Ruleset.fresh`)."""
        return self._ruleset.fresh(rules)

    @property
    def has_ended(self) -> bool:
        """Whether a command has killed what keeps the process namespace of a shared box, so that nothing can start there."""
        poll = select.poll()
        poll.register(self._hold, 0)
        return self.is_shared and bool(poll.poll(0))  # nobody reads what bubblewrap's shell waits for

    def _end(self) -> None:
        """Ends bubblewrap, and with it all processes in its own process namespace."""
        pid, self._pid = self._pid, 0
        if pid:
            # bubblewrap reaps its child, and ends.
            launcher.send_signal([self._first or pid], signal.SIGKILL)
            os.close(self._hold)
            _reap(pid)

    def close(self) -> None:
        """Ends the box. Commands in namespaces of their own keep what they have."""
        self._end()
        self._ruleset.close()
        for one in (*self.spaces, self.inner, self.root):
            if one >= 0:
                os.close(one)
        self.spaces, self.inner, self.root = (), -1, -1


def _started(words: Sequence[str], program: bytes) -> tuple[int, int]:
    """Starts bubblewrap and waits until its namespaces are complete. Returns the pid of bubblewrap, and a descriptor
    whose end ends bubblewrap's shell. Raises OSError.
    """
    opened: list[int] = []

    def piped() -> tuple[int, int]:
        ends = os.pipe()
        opened.extend(ends)
        return ends

    def close(*descriptors: int) -> None:
        for one in descriptors:
            opened.remove(one)
            os.close(one)

    try:
        (ready, told), (waits, hold), (complaint, complains) = piped(), piped(), piped()
        given = [(os.POSIX_SPAWN_DUP2, one, at) for at, one in enumerate((waits, told, complains))]
        line, passed = [*words, "--cap-drop", "ALL"], [told, waits, complains]
        if program:
            source, sink = piped()
            os.write(sink, program)
            close(sink)
            passed.append(source)
            given.append((os.POSIX_SPAWN_DUP2, source, _FILTER_AT))
            line += ["--seccomp", str(_FILTER_AT)]
        try:
            pid = os.posix_spawn(line[0], [*line, "--", *_HOLDER], {}, file_actions=given)
        except OSError as error:
            raise start_error(OSError(error.errno, error.strerror, line[0])) from None
        close(*passed)
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        if not poll.poll(_READY_WITHIN_S * 1000):
            launcher.send_signal([pid], signal.SIGKILL)
            _reap(pid)
            why = f"bubblewrap was not ready within {_READY_WITHIN_S:g} s: a file system may not answer"
            raise TimeoutError(errno.ETIMEDOUT, why)
        if os.read(ready, 1):
            opened.remove(hold)
            return pid, hold
        why = os.read(complaint, _MOST_COMPLAINT).decode("utf-8", "replace").strip()
        close(hold)
        os.waitpid(pid, 0)
        if os.strerror(errno.EAGAIN) in why:  # it could start no process of its own
            raise ShortageError("process")
        raise OSError(errno.EPERM, f"bubblewrap failed: {why}" if why else "bubblewrap failed")
    finally:
        for one in opened:
            os.close(one)


def _reap(pid: int) -> None:
    """Waits briefly for the end of bubblewrap, which may be stuck in the kernel."""
    until_s = time.monotonic() + _ENDS_WITHIN_S
    with suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until_s:
            time.sleep(_LOOK_AGAIN_AFTER_S)


def _check_mounts(words: Sequence[str], writable: Collection[str], holder: int) -> None:
    """Raises OSError if a mount that `words` name in a writable place shows another place: bubblewrap follows links that a command
    may have made since ralph has looked, and Landlock opens all that is mounted in a writable directory.
    """
    pairs = [words[at + 1 : at + 3] for at, word in enumerate(words) if word in _BINDS]
    named = {to for _, to in pairs}
    # No command can replace what is mounted from elsewhere, or what lies outside of these places.
    safe = {to for source, to in pairs if source != to or not is_within_any(os.path.dirname(to), writable)}

    if not (seen := mounts(holder)):
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
    for point, around, is_itself in mounts_made(seen, mounts()):
        # What is mounted around a writable place is hidden by it.
        is_hidden = not is_within_any(around, writable)
        is_right = point in named and (is_itself or is_hidden or point in safe)
        if not (is_right or is_within_any(point, (DEVICES, PROCESSES))):
            raise OSError(errno.ESTALE, "another place was put in its way meanwhile", point)


def _is_own(opened: int, name: str) -> bool:
    return os.path.samestat(os.fstat(opened), os.stat(f"/proc/self/ns/{name}"))
