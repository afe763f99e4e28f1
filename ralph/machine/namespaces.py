"""Runs one command in the namespaces of a kept box (`sandbox/kept_box.py`). Of ralph's modules, it imports only
`launcher.py` and `restriction.py`. Linux only.

A process of the launcher enters the box, makes the namespaces that are the command's own, and starts the first process
in them. That process restricts itself as the command must be restricted, starts the command, and becomes the parent of
its orphans. So no interpreter has to start inside, and the first process can do nothing that the command cannot do.

The rules:

1. A command has its own process, mount and IPC namespaces, with a new `/proc` and a new `/dev/shm`. They end with the
   command's last process, and nothing outside them enters them. Only while commands run in the background, commands
   share process and IPC namespaces, and `/proc` and `/dev/shm` with them, that live as long as they do. Then the first process is
   not the one with number 1, and something empty is mounted on the entry in `/proc` of each process of ralph's. A command may know
   the first process all the same, and kill it: its processes are then ended by the launcher.
2. The launcher makes the first process for the next command when the last one has ended. It restricts itself as it was for the
   last command, but for its capabilities, and waits there. A command with another box or other restrictions, or with a proxy, gets
   another first process. Without namespaces, such a process waits too, and becomes the command itself.
3. The first process tells the launcher when the command has ended, and when it has no child left. The launcher does not
   wait for the end of the namespaces. Everything else is done by the launcher as for any other command. In namespaces
   of the command's own, SIGKILL for the first process ends all others, even if processes keep starting new ones.
4. If the launcher dies, the kernel kills the first process. One that waits for a command ends by itself.
5. The first process has no descriptor but the command's and its channel to the launcher, which the command does not
   inherit. No other process can trace it, and no command finds it in `/proc`. Signals that ask a process to end are blocked in it.
6. If a step fails, the command is not run, and its output says why.
"""

from __future__ import annotations

import _socket
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from _socket import socket
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from ralph.machine import launcher, restriction

    Start = Callable[[socket, str], int]
    """Waits on the channel for what the launcher sends, and starts the command. Returns its pid. If the command cannot
    start, writes the reason to its output and returns the exit status as a negative number. The second argument is such
    a reason, or empty."""
else:
    import _signal as signal  # `signal` would load `enum`, a third of the start of a supervisor

    # Imported from the script's own directory, because ralph is not on the path here.
    sys.path.append(os.path.dirname(__file__))
    import launcher
    import restriction

    sys.path.pop()

# linux/sched.h
_NEW_MOUNTS, _NEW_IPC, _NEW_PROCESSES = 0x0002_0000, 0x0800_0000, 0x2000_0000
# linux/mount.h
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_PROGRAMS, _SHARED = 1, 2, 4, 8, 0x10_0000
# System calls added since Linux 5.1 have the same number on every architecture. linux/fcntl.h: AT_FDCWD, AT_RECURSIVE.
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_HERE, _CLONE_ALL, _FROM_DESCRIPTOR = -100, 1 | os.O_CLOEXEC | 0x8000, 4
# proc(5): only processes that may be traced are listed.
_HIDDEN = b"hidepid=4"
_MOST_DESCRIPTORS = 256
# What the first process says: the command's exit status follows; no child is left.
_ENDED, _EMPTY = b"=", b"."


class Spaces:
    """The descriptors of the namespaces of a box."""

    def __init__(self, entered: Sequence[int], inner: int, holder: int = 0) -> None:
        """`entered` are those to enter, in this order; the last one has the mounts. `inner` is the user namespace that is entered
        last, or -1 if it is among them. `holder` is a process of ralph's in a process namespace that commands share, the child of
        the first process there. If it is 0, the command gets process and IPC namespaces of its own.
        """
        self.entered = entered
        self.inner = inner
        self.holder = holder
        self.names = tuple(os.fstat(one).st_ino for one in (*entered, *([inner] if inner >= 0 else [])))
        """These are other numbers for other namespaces, as long as somebody holds them."""


class FirstProcess:
    """The first process of a command's namespaces, as the launcher sees it."""

    def __init__(self, spaces: Spaces, start: Start, prepare: Callable[[], None] | None = None) -> None:
        """Starts the process, which calls `prepare` before it enters anything. Raises OSError if the machine has no free process.
        An error in the namespaces becomes a reason for `start`.
        """
        restriction.prepare()
        self._space = _process_space(spaces.holder) if spaces.holder else 0
        self.names = spaces.names
        self.holder = spaces.holder
        """As in `Spaces`."""
        self.becomes_command = not spaces.entered
        self.runs = True
        """Whether nobody has waited for its end."""
        self.status: int | None = None
        """The exit status of the command, or 128 + n if signal n killed it. None until it has ended."""
        self.is_empty = False
        """Whether no process of the command is left."""
        self.channel, theirs = _socket.socketpair()
        pid = launcher.forked()
        if pid == 0:
            _enter_and_serve(theirs, spaces, start, prepare)
        theirs.close()
        said = self.channel.recv(16)
        # The process that has entered the namespaces is the first one itself if that failed.
        self.pid = int(said or pid)
        if self.pid != pid:
            os.waitpid(pid, 0)
        elif not said:
            self.runs = os.waitpid(pid, 0)[0] != pid

    def hear(self) -> None:
        """Takes what the process has said. Does not wait if the channel does not block."""
        try:
            said = self.channel.recv(4)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said[:1] == _ENDED:
            self.status = said[1]
            said = said[2:]
        self.is_empty |= said == _EMPTY

    def adopter(self) -> int:
        """The process that adopts what the command leaves behind: this process, or if a command has killed it, the first one of the shared
        namespaces. 0 if that has ended too.
        """
        if self.runs:
            return self.pid
        first = launcher.parent_of(self.holder) if self.holder else 0
        # The number of a process that has ended may be another's.
        return first if _process_space(first) == self._space else 0

    def was_reaped(self) -> None:
        """Must be called when somebody has waited for the end of the process: its pid may be another's then."""
        self.runs = False

    def end(self) -> None:
        """Ends the process, which has no command any more, and waits: shared namespaces could not end before."""
        self.channel.close()
        if self.runs:
            launcher.send_signal([self.pid], signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _enter_and_serve(
    channel: socket, spaces: Spaces, start: Start, prepare: Callable[[], None] | None
) -> NoReturn:
    why = ""
    try:
        # Only SIGKILL may end this process, also where it is not the first one of a namespace.
        signal.pthread_sigmask(signal.SIG_BLOCK, launcher.STOP_SIGNALS)
        if prepare is not None:
            prepare()
        try:
            _enter(channel, spaces)
        except OSError as error:
            why = f"namespaces: {error.strerror}"
            channel.send(b"%d" % os.getpid(), launcher.NO_SIGPIPE)
        _serve(channel, why, start)
    finally:
        os._exit(launcher.NOT_CONFINED)


def _enter(channel: socket, spaces: Spaces) -> None:
    """Returns in the process that is the first one inside, and tells the launcher its pid. Raises OSError."""
    if not spaces.entered:
        channel.send(b"%d" % os.getpid(), launcher.NO_SIGPIPE)
        return
    calls = restriction.prepare()
    *others, mounts = spaces.entered
    for space in others:
        calls.setns(space)
    shared = _shared_mounts(calls) if spaces.holder else []
    calls.setns(mounts)
    calls.unshare(_NEW_MOUNTS | (0 if spaces.holder else _NEW_PROCESSES | _NEW_IPC))
    pid = launcher.forked()
    if pid:
        channel.send(b"%d" % pid, launcher.NO_SIGPIPE)
        os._exit(0)
    # Root owns the switches of the kernel there.
    flags = _NO_SUID | _NO_DEVICES
    own = flags | _NO_PROGRAMS | _READ_ONLY
    for opened, place in shared:
        calls.syscall(_MOVE_MOUNT, opened, b"", _HERE, place, _FROM_DESCRIPTOR)
    if shared:
        _hide(calls, os.getpid())
    else:
        try:  # what the command may not trace, this process above all, is not listed
            calls.mount(b"proc", b"/proc", own, _HIDDEN)
        except OSError:  # before Linux 5.8
            calls.mount(b"proc", b"/proc", own)
        calls.mount(b"tmpfs", b"/dev/shm", flags, b"mode=1777")
    if os.path.isdir("/dev/mqueue"):
        calls.mount(b"mqueue", b"/dev/mqueue", flags | _NO_PROGRAMS)
    launcher.prctl(launcher.PR_SET_CHILD_SUBREAPER, 1)
    if spaces.inner >= 0:
        calls.setns(spaces.inner)


def _shared_mounts(calls: restriction.Calls) -> list[tuple[int, bytes]]:
    """Descriptors of the `/proc` and `/dev/shm` that commands share, with their places. Empty before Linux 5.2: none are shared."""
    calls.mount(b"", b"/proc", _SHARED)  # what is mounted in it by one command, all of them see
    for pid in (1, 2):  # bubblewrap, and its shell
        if os.path.exists(f"/proc/{pid}/stat"):
            _hide(calls, pid)
    places = (b"/proc", b"/dev/shm")
    try:
        return [(calls.syscall(_OPEN_TREE, _HERE, place, _CLONE_ALL), place) for place in places]
    except OSError:
        return []


def _hide(calls: restriction.Calls, pid: int) -> None:
    """Makes a process of ralph's have no entry in the `/proc` that commands share, until it ends."""
    calls.mount(b"tmpfs", b"/proc/%d" % pid, _READ_ONLY, b"mode=0,nr_inodes=1")


def _process_space(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def _serve(channel: socket, why: str, start: Start) -> NoReturn:
    """Starts the command and reports its end. Stays until no child is left."""
    launcher.prctl(launcher.PR_SET_DUMPABLE, 0)  # entering a user namespace may have changed it
    pid = start(channel, why)
    said = _ENDED + bytes([-pid]) if pid <= 0 else b""
    options = os.WNOHANG if pid <= 0 else 0
    try:
        while True:
            ended, status = os.waitpid(-1, options)
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
                said = _ENDED + bytes([code if code >= 0 else 128 - code])
                options = os.WNOHANG  # one message, if nothing is left
            elif not ended:
                _say(channel, said)
                said, options = b"", 0
    except ChildProcessError:
        _say(channel, said + _EMPTY)
    os._exit(0)


def close_all_but(channel: socket, first: int = 0) -> None:
    """Closes all descriptors of this process from `first` on, but the channel."""
    os.closerange(first, channel.fileno())
    os.closerange(channel.fileno() + 1, _MOST_DESCRIPTORS)


def tie_to_launcher(channel: socket) -> None:
    """Makes the kernel kill this process, the first one, with the launcher, and ends it if that is gone. Called when the process
    that has entered the namespaces has ended.
    """
    launcher.prctl(launcher.PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if channel.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT) == b"":
            os._exit(launcher.NOT_CONFINED)
    except BlockingIOError:
        pass


def _say(channel: socket, words: bytes) -> None:
    try:
        if words:
            channel.send(words, launcher.NO_SIGPIPE)
    except OSError:  # the launcher is gone, and so is this process
        pass


def not_confined(why: str) -> int:
    """Writes to the command's output why its sandbox could not be set up. Returns the exit status for this case."""
    os.write(2, f"{launcher.NOT_STARTED}its sandbox could not be set up ({why})\n".encode())
    return launcher.NOT_CONFINED
