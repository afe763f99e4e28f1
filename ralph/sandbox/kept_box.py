"""The box of a run's commands: namespaces that bubblewrap (`bwrap`) makes once, and that descriptors keep alive.

bubblewrap runs a shell that only waits, and is ended as soon as this process holds its namespaces. So nothing of the box
runs that a command could reach, and the box ends with this process. Each command makes namespaces of its own from it
(`machine/namespaces.py`). Only what commands share keeps a bubblewrap, whose first process adopts their orphans. That one
ends with the thread that has started it. All boxes of a run are made in the user namespace of the first one, so that a command
can enter namespaces of two of them, and they have its network: commands and MCP servers find each other on the loopback.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from ralph.machine import launcher
from ralph.machine.files.opened_file import opened
from ralph.machine.files.paths import is_within_any, mounts, mounts_made
from ralph.sandbox.bubblewrap import DEVICES, PROCESSES
from ralph.sandbox.landlock import Ruleset
from ralph.values.outcome import ShortageError, start_error

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


# linux/nsfs.h
_NS_GET_USERNS = 0xB701
# One line says that all mounts are there. The shell ends when this process does, because its input ends then.
_HOLDER = ("/bin/sh", "-c", "echo; read x")
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
        before: KeptBox | None = None,
    ) -> None:
        """`words` is the command line of bubblewrap without the program that it runs, and `program` the filter of its own
        processes, or NO_FILTER. `abi` is the version of Landlock, or 0. Commands may write `writable`. `before` is an earlier box
        of the run. Raises OSError, also if somebody has put a link in the way of a mount meanwhile.
        """
        self.words = words
        """Empty if it must not be used any more."""
        self.program = program
        self.owner = -1
        """The descriptor of the user namespace to which the others belong, or -1 if that is the one of this process."""
        self.inner = -1
        """That of the user namespace that a command enters last, or -1 if it is among the first ones."""
        with ExitStack() as kept, _Bubblewrap(words, program, before) as running:
            (self._mounts,) = running.opened(kept, "mnt")
            root = os.open(f"/proc/{running.holder}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.root = _kept(kept, root)
            """That of the box's root directory, through which this process can look at the mounts of the box."""
            if before is None:
                self._network = running.opened(kept, "net")
                # The others may belong to one around it: bubblewrap makes two where it needs user id 0 for a moment.
                owner = _kept(kept, fcntl.ioctl(self._mounts, _NS_GET_USERNS))
                self.owner = -1 if _is_own(owner, "user") else owner  # root has none
                for user in running.opened(kept, "user"):
                    if not os.path.samestat(os.fstat(user), os.fstat(owner)):
                        self.inner = user
            else:
                # What runs meanwhile, such as a server, stays in it.
                self._network = tuple(_kept(kept, os.dup(one)) for one in before._network)  # noqa: SLF001 - another of this class
                self.owner, self.inner = (
                    one if one < 0 else _kept(kept, os.dup(one)) for one in (before.owner, before.inner)
                )
            _check_mounts(words, writable, running.holder)
            points = (words[at + 2] for at, word in enumerate(words) if word in _BINDS)
            self._mounted = {point: self._mount_at(point) for point in points}
            self._kept = kept.pop_all()
        # In process namespaces that commands share, they may signal one another, and no others.
        self.rulesets = {
            shares: Ruleset(abi, is_worn_by_uses=True, allows_signals=shares) for shares in (False, True)
        }

    def has_its_mounts(self) -> bool:
        """Whether all that was mounted still is, and is what the machine has there. The kernel takes a mount away, in all
        namespaces, whose place somebody outside replaces or removes, as editors do that save a file. A directory that is moved
        away stays mounted.
        """
        return all(self._mount_at(point) == number for point, number in self._mounted.items())

    def _mount_at(self, point: str) -> bytes:
        """Identifies the mount that the box has at a path (proc_pid_fdinfo(5)), and what the machine has there. Empty without one."""
        inside = f"/proc/self/fd/{self.root}{point}"
        with (
            suppress(OSError),
            opened(inside, os.O_PATH | os.O_NOFOLLOW) as held,
            open(f"/proc/self/fdinfo/{held}", "rb", buffering=0) as file,
        ):
            return file.read() + b"%d" % os.lstat(point).st_ino
        return b""

    def spaces(self, shared: SharedSpaces | None = None) -> tuple[int, ...]:
        """The descriptors of the namespaces that a command enters first, in this order. The last one has the mounts."""
        others = () if shared is None else shared.spaces
        return (*((self.owner,) if self.owner >= 0 else ()), *others, *self._network, self._mounts)

    def close(self) -> None:
        """Ends the box. Commands in namespaces of their own keep what they have."""
        for ruleset in self.rulesets.values():
            ruleset.close()
        self._kept.close()


class SharedSpaces:
    """The process and IPC namespaces, `/proc` and shared memory of commands that can find one another."""

    def __init__(self, words: Sequence[str], program: bytes, box: KeptBox) -> None:
        """As `KeptBox`, and on a thread that outlives the commands, which enter them with `box` or a later one. Raises OSError."""
        with ExitStack() as kept:
            running = kept.enter_context(_Bubblewrap(words, program, box))
            self.holder, self._hold = running.holder, running.hold
            """The pid of a process of ralph's whose parent is the first process in the namespaces."""
            self.spaces = running.opened(kept, "mnt", "ipc", "pid")
            """The descriptors of these namespaces. The first one has `/proc` and the shared memory."""
            # Linux before 5.3, a Python built there, or killed meanwhile.
            with suppress(OSError, AttributeError):
                self._hold = _kept(kept, os.pidfd_open(running.holder))
            self._kept = kept.pop_all()

    @property
    def has_ended(self) -> bool:
        """Whether a command has killed what keeps the process namespace, so that nothing can start there."""
        poll = select.poll()
        # The shell ends before bubblewrap does. Meanwhile the kernel starts nothing in the namespace (ENOMEM).
        poll.register(self._hold, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Ends all processes in the namespaces."""
        self._kept.close()


class _Bubblewrap:
    """A bubblewrap whose namespaces are complete, and whose shell waits. It ends with the context."""

    def __init__(self, words: Sequence[str], program: bytes, before: KeptBox | None) -> None:
        """Starts it, in the user namespace of the box `before` if there is one. Raises OSError."""
        self._first = 0
        self._pid, self.hold = _started(words, program, -1 if before is None else before.owner)
        try:
            (self._first,) = launcher.children_of(self._pid)
            (self.holder,) = launcher.children_of(self._first)
        except ValueError as error:  # somebody has killed it meanwhile
            self.__exit__()
            raise OSError(errno.ECHILD, str(error), "bubblewrap") from None

    def __enter__(self) -> Self:
        return self

    def opened(self, kept: ExitStack, *names: str) -> tuple[int, ...]:
        """The descriptors of those namespaces that are not this process's own, which only root could enter again. Raises OSError."""
        opened = [
            _kept(kept, os.open(f"/proc/{self.holder}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))
            for name in names
        ]
        return tuple(one for one, name in zip(opened, names, strict=True) if not _is_own(one, name))

    def __exit__(self, *_: object) -> None:
        """Ends bubblewrap, and with it all processes in its own process namespace."""
        # bubblewrap reaps its child, and ends.
        launcher.send_signal([self._first or self._pid], signal.SIGKILL)
        os.close(self.hold)
        _reap(self._pid)


def _kept(kept: ExitStack, descriptor: int) -> int:
    kept.callback(os.close, descriptor)
    return descriptor


def _started(words: Sequence[str], program: bytes, owner: int) -> tuple[int, int]:
    """Starts bubblewrap and waits until its namespaces are complete, in the user namespace `owner` (or -1). Returns its pid, and a
    descriptor whose end ends its shell. Raises OSError.
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
        line, options = [*words, "--cap-drop", "ALL"], [("--userns", owner)] if owner >= 0 else []
        if program:
            source, sink = piped()
            os.write(sink, program)
            close(sink)
            options.append(("--seccomp", source))
        # Behind all others, so that none takes the place of one that is passed later.
        for at, (option, one) in enumerate(options, max(owner, *opened) + 1):
            given.append((os.POSIX_SPAWN_DUP2, one, at))
            line += [option, str(at)]
        try:
            pid = os.posix_spawn(line[0], [*line, "--", *_HOLDER], {}, file_actions=given)
        except OSError as error:
            raise start_error(OSError(error.errno, error.strerror, line[0])) from None
        close(*(one for one in opened if one not in (ready, complaint, hold)))
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
    """Raises OSError if a mount in a writable place shows another place: bubblewrap follows links that a command may have made
    since ralph has looked, and Landlock opens all that is mounted in a writable directory.
    """
    pairs = [words[at + 1 : at + 3] for at, word in enumerate(words) if word in _BINDS]
    named = {to for _, to in pairs}
    # No command can replace what is mounted from elsewhere, or what is outside these places.
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
