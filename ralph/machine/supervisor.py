# os.path instead of pathlib, no contextlib: as in launcher.py.
# ruff: noqa: PTH120, SIM105
"""Forks a launcher for each command of one run, which saves the 17 ms of a new interpreter. Does nothing else.

It runs by path as a script (`python -I -S supervisor.py PARENT_PID GROUP`), with ralph's socket as descriptor 3 and the
null device as 0, 1 and 2. `GROUP`: the file that puts a process into the control group of this run's commands; empty:
there is none. `command_supervisor.py` is the other end.

Its rules:

1. It only forks. The launcher (`launcher.py`) handles a command's end, its time and its tree. It is a child of this
   process, adopts that command's orphans alone, and has a channel of its own to ralph.
2. Nothing outlives ralph. The parent-death signal does not survive a fork, so each process sets its own and then
   checks that its parent is still there. This process gets SIGKILL, which nothing delays; a launcher gets SIGTERM,
   which makes it end its tree. The end of the socket means the same.
3. It adopts nothing. Processes that a killed launcher leaves go to ralph.
4. A request holds everything for a command: its output, its directory and its channel as descriptors; grace, umask,
   limits, words and environment as bytes. Nothing is kept for the next one. Descriptors are close-on-exec from the
   first moment. A launcher closes the socket, this process everything else.
5. It has one thread, imports nothing of ralph, and has no secret in its environment. Everything that a launcher needs
   is loaded before the first fork, and the collector's objects are frozen, so that a fork copies no memory that nobody
   writes.
6. If the machine has no process for the launcher, that call fails, and the command's output reports it.
7. It joins its control group before it reads the first request, so no command is ever outside.
"""

from __future__ import annotations

import _socket
import gc
import os
import resource
import signal
import sys
import time
from _socket import AF_UNIX, CMSG_SPACE, SOCK_STREAM, SOL_SOCKET, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ralph.machine import launcher
else:  # by its place alone: there is no path to ralph here
    sys.path.append(os.path.dirname(__file__))
    import launcher

    sys.path.pop()

CONTROL = 3
"""The descriptor of the socket."""
# The head of a request: the size of what follows, and the descriptors.
HEAD_BYTES = 4
_DESCRIPTORS = 3
_DESCRIPTOR_BYTES = 4
# Linux; macOS has no such flag, and nothing of it can be seen here before it is set: there is one thread.
_CLOSE_ON_EXEC: int = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)

_LOOKS = 50
_LOOK_EVERY_S = 0.0004

# The first and only byte that it sends over the socket.
IN_GROUP = b"g"
WITHOUT_GROUP = b"-"


class _Request:
    def __init__(self, payload: bytes, descriptors: list[int]) -> None:
        self.output, self.directory, channel = descriptors
        self.channel = socket(AF_UNIX, SOCK_STREAM, 0, channel)
        grace_s, umask, core_limit, limits, words, *rest = payload.split(b"\0")
        self.grace_s = float(grace_s)
        self.umask = int(umask)
        self.core_limit = int(core_limit)
        self.limits = limits
        self.command = rest[: int(words)]
        self.environment = dict(entry.split(b"=", 1) for entry in rest[int(words) :])

    def close(self) -> None:
        os.close(self.output)
        os.close(self.directory)
        self.channel.close()


def main(arguments: list[str]) -> int:
    parent_pid, group = arguments
    _begin_session()
    launcher.prctl(launcher.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent_pid):  # the parent died before the kernel was told
        return 0
    launcher.expect_the_defaults()
    # A child that ends is forgotten at once: a launcher has sent everything over its channel.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    control = socket(AF_UNIX, SOCK_STREAM, 0, CONTROL)
    control.send(IN_GROUP if _joins(group) else WITHOUT_GROUP)
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        while (request := _receive(control)) is not None:
            _serve(request, control)
    except ConnectionResetError:  # the end of the socket, for somebody who has not read the first byte
        pass
    _let_launchers_end()
    return 0


def _let_launchers_end() -> None:
    """Give launchers that have already sent everything a moment to end. A launcher that is still there would become a
    child of ralph, which does not expect it.
    """
    for _ in range(_LOOKS):
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        time.sleep(_LOOK_EVERY_S)


def _begin_session() -> None:
    """Begin a session, so that signals of the terminal do not arrive here. Close the descriptors that ralph inherited
    from other programs.
    """
    try:
        os.setsid()
    except PermissionError:  # it was started in one
        pass
    try:
        inherited = [int(name) for name in os.listdir("/dev/fd")]  # noqa: PTH208 - see above
    except OSError:
        inherited = list(range(1024))
    for descriptor in inherited:
        if descriptor > CONTROL:
            try:
                os.close(descriptor)
            except OSError:  # the listing's own
                pass
    os.set_inheritable(CONTROL, False)


def _joins(group: str) -> bool:
    """Moves this process into the control group. Returns whether that worked. The kernel takes about 15 ms for it. It
    is done once in a run, while the arguments of the first call are still arriving.
    """
    if not group:
        return False
    try:
        with open(group, "wb", buffering=0) as processes:  # noqa: PTH123 - see above
            processes.write(b"0")
    except OSError:
        return False
    return True


def _receive(control: socket) -> _Request | None:
    """The next request; None: ralph is gone, or needs no further commands."""
    size, ancillary, _, _ = control.recvmsg(
        HEAD_BYTES, CMSG_SPACE(_DESCRIPTORS * _DESCRIPTOR_BYTES), _CLOSE_ON_EXEC
    )
    descriptors = [
        int.from_bytes(data[start : start + _DESCRIPTOR_BYTES], sys.byteorder)
        for level, _, data in ancillary
        if level == SOL_SOCKET
        for start in range(0, len(data), _DESCRIPTOR_BYTES)
    ]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    size += _received(control, HEAD_BYTES - len(size))
    payload = _received(control, int.from_bytes(size, "big"))
    if len(size) < HEAD_BYTES or len(payload) < int.from_bytes(size, "big"):
        return None
    return _Request(payload, descriptors)


def _received(control: socket, size: int) -> bytes:
    """Reads `size` bytes from the socket. Returns fewer if the socket ends before."""
    parts = []
    while size and (part := control.recv(min(size, 1 << 16))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _serve(request: _Request, control: socket) -> None:
    own_pid = os.getpid()
    try:
        pid = launcher.forked()
    except OSError as error:
        status = launcher.not_started(error, request.output)
        try:
            request.channel.send(launcher.STATUS + bytes([status]))
        except OSError:
            pass
    else:
        if pid == 0:
            control.close()
            _launch(request, own_pid)
    request.close()


def _launch(request: _Request, parent_pid: int) -> NoReturn:
    """Become the launcher of this command, in the child. Never returns."""
    status = 1
    try:
        os.setsid()
        for descriptor in (1, 2):
            os.dup2(request.output, descriptor)
        os.close(request.output)
        request.channel.setblocking(False)
        one = launcher.Launcher(parent_pid, request.grace_s, request.core_limit, request.channel)
        status = _prepared(request) or one.run(request.command, request.environment)
        if not one.is_orphaned():
            word = launcher.STATUS if one.is_all_gone else launcher.STATUS_OF_UNFINISHED
            one.say(word + bytes([status]))
    finally:
        os._exit(status)


def _prepared(request: _Request) -> int:
    """Set directory, umask and limits of the command. Returns 0; any other status means failure, and the command's
    output gives the reason.
    """
    try:
        os.fchdir(request.directory)
        os.close(request.directory)
        os.umask(request.umask)
        _limit(request.limits)
    except OSError as error:
        os.write(2, launcher.NOT_STARTED.encode() + f"{error.strerror}\n".encode())
        return launcher.TRY_AGAIN
    return 0


def _limit(limits: bytes) -> None:
    """Set resource limits to the values that ralph has now. `limits` has the form "number:soft:hard,...". A limit that
    cannot be set stays as it is.
    """
    for one in limits.split(b","):
        number, soft, hard = map(int, one.split(b":"))
        if resource.getrlimit(number) != (soft, hard):
            try:
                resource.setrlimit(number, (soft, hard))
            except (OSError, ValueError):
                pass


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
