# os.path instead of pathlib, no contextlib: as in launcher.py.
# ruff: noqa: PTH116, PTH120, SIM105
"""The supervisor process of one run or loop. Its launcher runs the commands, one at a time. Starting an interpreter
for each command instead would take 17 ms per command.

The supervisor is a process of its own (`python -I -S`) that imports this module and calls `main`: the interpreter would
compile a script anew at each start. Descriptor 3 is a socket to ralph, and 0, 1 and 2 are the null device. `command_supervisor.py` starts it and controls the supervisor from ralph.

The rules:

1. The supervisor forks one launcher (`launcher.py`) and waits for its end. The launcher reads the requests and serves
   one command after another: it adopts the orphans of the command, ends the command's processes, and reports the
   status to ralph over the command's own channel. It takes the next request only if no process of the last command is
   left. Otherwise the launcher ends. Then the supervisor ends too, and ralph starts another one. If the launcher is
   stopped (SIGSTOP), the supervisor continues it.
2. Nothing outlives ralph. A child does not inherit the parent-death signal of its parent, so each process asks the
   kernel for this signal and then checks that its parent still exists. If ralph dies, the supervisor gets SIGKILL,
   and so does a launcher that waits for a request. A launcher with a command gets SIGCONT, even if it is stopped, and
   ends its command. If the socket is closed, the supervisor and the launcher end too.
3. The supervisor adopts no processes. If a launcher is killed, ralph adopts its processes.
4. A request contains everything for one command, and nothing is kept for the next command. Some parts of a request
   are descriptors: output, directory, channel, the command's other streams and a held one, the ruleset of its sandbox and
   the socket to its proxy. The last three are left out if the command does not have them. The other parts are bytes: the grace
   period, umask, limits, the path that must still lead to the directory, arguments, environment, the filter of the
   sandbox and the command line of bubblewrap.
   Descriptors are close-on-exec from the start, and the launcher closes them.
5. The supervisor has one thread, and no credentials in its environment. Of ralph's modules, it imports only its
   neighbours `launcher.py`, `namespaces.py`, `restriction.py` and `tree_usage.py`. It imports them at its start,
   because a command that works on ralph itself may change their files.
6. If the machine has no free process for the launcher, the supervisor tries again when a request arrives. If there is
   still no free process, only that request fails, and the command's output says so.
7. The supervisor and the launcher are not dumpable, so a command of an ordinary user can neither trace them nor read
   their memory and descriptors. That matters because a loop's supervisor runs while the agent works, and runs git for
   the loop afterwards. The commands themselves are dumpable.
8. The supervisor enters the control groups before it reads the first request, so every command is in the groups. Then
   the kernel limits the processes and the memory of the commands, and the launcher need not count them. If the kernel
   kills a process because of the memory limit, the launcher ends the command.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` would load `enum`, a third of the start
import _socket
import errno
import os
import resource
import sys
import time
from _socket import AF_UNIX, CMSG_SPACE, MSG_PEEK, SOCK_STREAM, SOL_SOCKET, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ralph.machine import launcher, namespaces, restriction, tree_usage
else:  # imported from this module's own directory, because ralph is not on the path here
    sys.path.append(os.path.dirname(__file__))
    import launcher
    import namespaces
    import restriction
    import tree_usage

    sys.path.pop()

CONTROL = 3
"""The descriptor of the socket to ralph."""
HELD = 3
"""The number of a stream that is none of the standard streams: the command inherits its descriptor as it is, and the
launcher keeps it open until no process of the command is left. So a lock is held until then."""
# The head of a request: the size of what follows, and the descriptors.
HEAD_BYTES = 4
_MOST_DESCRIPTORS = 7
_DESCRIPTOR_BYTES = 4
# Linux; macOS has no such flag, and nothing of it can be seen here before it is set: there is one thread.
_CLOSE_ON_EXEC: int = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)

# proc_pid_oom_score_adj(5): from -1000 to 1000. Half of all memory more than the process has.
_KILLED_FIRST = b"500"

_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

# The first and only byte that it sends over the socket.
IN_GROUP = b"g"
WITHOUT_GROUP = b"-"


class _Request:
    def __init__(self, payload: bytes, descriptors: list[int]) -> None:
        self.output, self.directory, channel, *others = descriptors
        grace_s, umask, core_limit, limits, of_tree, place, box, streams, words, *rest = payload.split(b"\0")
        self._place = place
        self._box = box.split(b" ") if box else []
        """The settings of the command's sandbox, or an empty list without a sandbox.

        The settings are, in this order: the maximum size of a file in bytes (0 means no limit), whether a ruleset was
        sent, whether a socket to a proxy was sent, the number of words in bubblewrap's command line, the number of
        mounts after these words, and the filter in hexadecimal digits."""
        self._proxy = others.pop() if self._box[2:3] == [b"1"] else -1
        self._ruleset = others.pop() if self._box[1:2] == [b"1"] else restriction.NO_RULESET
        self.channel = socket(AF_UNIX, SOCK_STREAM, 0, channel)
        self.channel.setblocking(False)
        self.streams = list(zip(others, map(int, streams.split()), strict=True))
        """The descriptors for the command's standard streams, each with the number of its stream."""
        self._held = -1
        """A descriptor that the command inherits, and that is closed when the command has ended. -1 without one."""
        self._passed: list[int] = []
        """Others, besides the standard streams. No later command may inherit them."""
        self.grace_s = float(grace_s)
        self.umask = int(umask)
        self.core_limit = int(core_limit)
        self.limits = limits
        most_tasks, most_memory_bytes, lasts = map(int, of_tree.split())
        self.lasts = bool(lasts)
        """Whether all processes of the command may end by themselves."""
        mounts = places = 0
        if self._box:
            mounts, places = int(self._box[3]), int(self._box[4])
        self._bwrap, self._places = rest[:mounts], rest[mounts : mounts + places]
        own_tasks = namespaces.OWN_PROCESSES if mounts else 0
        self.most_tasks = most_tasks and most_tasks + own_tasks
        self.most_memory_bytes = most_memory_bytes
        del rest[: mounts + places]
        self.command = rest[: int(words)]
        self.environment = dict(entry.split(b"=", 1) for entry in rest[int(words) :])

    def is_elsewhere(self) -> bool:
        """Whether the path of the working directory leads to another directory than the one that was sent, or to none.
        False if ralph did not ask for this check, and if an error of the file system leaves it open.
        """
        if not self._place:
            return False
        try:
            there, sent = os.stat(self._place), os.fstat(self.directory)
        except OSError as error:
            return error.errno in _NO_DIRECTORY
        return (there.st_dev, there.st_ino) != (sent.st_dev, sent.st_ino)

    def take_streams(self) -> None:
        """Makes the command's streams the standard streams of this process, so that the command inherits them."""
        for descriptor in (1, 2):
            os.dup2(self.output, descriptor)
        os.close(self.output)
        for descriptor, stream in self.streams:
            if stream == HELD:
                os.set_inheritable(descriptor, True)
                self._held = descriptor
                continue
            os.dup2(descriptor, stream)
            os.close(descriptor)
            if stream > 2:
                self._passed.append(stream)

    def restrict(self) -> Callable[[], None] | None:
        """Returns a function that restricts the command's process to its sandbox. None without a sandbox."""
        if not self._box:
            return None
        # Loaded here, so that the fork has it.
        restriction.prepare()
        most_file_bytes = self._box[0]

        def restrict() -> None:
            restriction.allow_mounts(self._ruleset, self._places)
            if self._proxy >= 0:
                port = restriction.listen_for_proxy(self._proxy)
                restriction.name_proxy(port, self.environment)
            if int(most_file_bytes):
                _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
                limit = int(most_file_bytes) if most < 0 else min(int(most_file_bytes), most)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            restriction.restrict(self._ruleset, self._program())

        return restrict

    def enclose(self) -> Callable[[Callable[[], None], int], int] | None:
        """Returns a function that runs the command in namespaces. None without namespaces."""
        if not self._bwrap:
            return None
        *bwrap, directory = self._bwrap
        program = self._program()

        def enclosed(inside: Callable[[], None], launcher_pid: int) -> int:
            return namespaces.run(
                bwrap, directory, program, inside, launcher_pid, say=self._say, lasts=self.lasts
            )

        return enclosed

    def _say(self, words: bytes) -> None:
        """Sends words to ralph, unless they are empty or ralph is gone."""
        try:
            if words:
                self.channel.send(words, launcher.NO_SIGPIPE)
        except OSError:
            pass

    def _program(self) -> bytes:
        return bytes.fromhex(self._box[5].decode())

    def release(self) -> None:
        """Closes the descriptors of the request. Called after the command has ended."""
        self.channel.close()
        if self._ruleset != restriction.NO_RULESET:
            os.close(self._ruleset)
        if self._proxy >= 0:
            os.close(self._proxy)
        for descriptor in (*self._passed, *([self._held] if self._held >= 0 else [])):
            os.close(descriptor)

    def close(self) -> None:
        os.close(self.output)
        os.close(self.directory)
        self.release()
        for descriptor, _ in self.streams:
            os.close(descriptor)


def main(parent_pid: str, group: str, memory_group: str) -> None:
    """Serves ralph until its end. `parent_pid` is the pid of ralph. `group` is a control file: by writing to it, a
    process enters the control group of the run's commands. `memory_group` is the directory of a control group that
    limits their memory. Both may be empty.
    """
    _begin_session()
    launcher.prctl(launcher.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent_pid):  # the parent died before the call above
        return
    launcher.prctl(launcher.PR_SET_DUMPABLE, 0)
    launcher.expect_the_defaults()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    control = socket(AF_UNIX, SOCK_STREAM, 0, CONTROL)
    is_in_group = _joins(group)
    if not (memory_group and _joins(f"{memory_group}/cgroup.procs")):
        memory_group = ""
    control.send(IN_GROUP if is_in_group else WITHOUT_GROUP)
    own_pid = os.getpid()
    pid = _forked(control)
    if pid == 0:
        _launch(control, own_pid, memory_group, is_in_group=is_in_group)
    if pid is not None:
        _await_end(pid)


def _forked(control: socket) -> int | None:
    """Forks this process. Returns the child's pid, and 0 in the child. If the machine has no free process, waits for
    a request and tries again. If that fails too, refuses the request. Returns None if ralph is gone or has closed the
    socket.
    """
    while True:
        try:
            return os.fork()
        except OSError:
            pass
        try:
            control.recv(1, MSG_PEEK)
        except ConnectionResetError:
            return None
        try:
            return launcher.forked()
        except OSError as error:
            request = _receive(control)
            if request is None:
                return None
            _refuse(request, error)


def _refuse(request: _Request, error: OSError) -> None:
    status = launcher.not_started(error, request.output)
    try:
        request.channel.send(launcher.STATUS + bytes([status]))
    except OSError:
        pass
    request.close()


def _await_end(pid: int) -> None:
    """Waits for the end of the launcher. If the launcher is stopped meanwhile, continues it."""
    while os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
        os.kill(pid, signal.SIGCONT)


def _begin_session() -> None:
    """Starts a new session (setsid(2)), so that this process gets no signals from the terminal. Closes descriptors
    that ralph inherited from its own parent.
    """
    try:
        os.setsid()
    except PermissionError:  # the process has a session of its own already
        pass
    try:
        inherited = [int(name) for name in os.listdir("/dev/fd")]  # noqa: PTH208 - pathlib would double the start-up
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
    """Moves this process into the control group and returns whether that worked. This takes about 15 ms. It is done
    once in a run, while the model is still writing the arguments of its first command.
    """
    if not group:
        return False
    try:
        with open(group, "wb", buffering=0) as processes:  # noqa: PTH123 - pathlib would double the start-up
            processes.write(b"0")
    except OSError:
        return False
    return True


def _receive(control: socket) -> _Request | None:
    """Reads the next request. Returns None if ralph is gone or has closed the socket."""
    try:
        size, ancillary, _, _ = control.recvmsg(
            HEAD_BYTES, CMSG_SPACE(_MOST_DESCRIPTORS * _DESCRIPTOR_BYTES), _CLOSE_ON_EXEC
        )
    except ConnectionResetError:  # the socket ended before ralph had read the first byte
        return None
    descriptors = [
        int.from_bytes(data[start : start + _DESCRIPTOR_BYTES], sys.byteorder)
        for level, _, data in ancillary
        if level == SOL_SOCKET
        for start in range(0, len(data), _DESCRIPTOR_BYTES)
    ]
    if not _CLOSE_ON_EXEC:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
    size += _received(control, HEAD_BYTES - len(size))
    payload = _received(control, int.from_bytes(size, "big"))
    if len(size) < HEAD_BYTES or len(payload) < int.from_bytes(size, "big"):
        return None
    return _Request(payload, descriptors)


def _received(control: socket, size: int) -> bytes:
    """Reads `size` bytes from the socket. Returns fewer bytes if the socket is closed before."""
    parts = []
    while size and (part := control.recv(min(size, 1 << 16))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _launch(control: socket, parent_pid: int, memory_group: str, *, is_in_group: bool) -> NoReturn:
    """Turns this process, a forked child of the supervisor, into the launcher. Never returns."""
    # The kernel may give a new file a time of some milliseconds ago.
    since_s = time.time() - 0.1
    try:
        os.setsid()
        while (request := _next_request(control, parent_pid)) is not None:
            most_tasks = 0 if is_in_group else request.most_tasks
            group = memory_group if request.most_memory_bytes else ""
            limits = tree_usage.Limits(most_tasks, request.most_memory_bytes, since_s, group)
            if not _serve(request, parent_pid, limits):
                break
    finally:
        os._exit(0)


def _next_request(control: socket, parent_pid: int) -> _Request | None:
    """Waits for the next request. Returns None if ralph or the supervisor is gone. If a request to stop comes during
    this wait, it ends this process, because no command is running. A request to stop that was meant for the last
    command is ignored.
    """
    launcher.prctl(launcher.PR_SET_PDEATHSIG, signal.SIGKILL)
    for late in signal.sigpending() & launcher.STOP_SIGNALS:
        signal.sigwait({late})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, launcher.STOP_SIGNALS)
    return _receive(control) if os.getppid() == parent_pid else None


def _serve(request: _Request, parent_pid: int, limits: tree_usage.Limits) -> bool:
    """Runs the command of a request. Returns False if this process must not run another command, because a process of
    the command remains or nobody needs commands any more.
    """
    request.take_streams()
    counted = limits if limits.most_tasks or limits.most_memory_bytes else None
    one = launcher.Launcher(
        parent_pid, request.grace_s, request.core_limit, request.channel, counted, lasts=request.lasts
    )
    is_elsewhere = request.is_elsewhere()
    status = _prepared(request)
    if not (status or is_elsewhere):
        status = one.run(
            request.command,
            request.environment,
            _killed_first(request.restrict()) if limits.is_kept_by_kernel else request.restrict(),
            request.enclose(),
        )
    if one.holds_streams:
        launcher.let_go_of_streams()
    os.chdir("/")  # which no one wants to unmount
    may_serve = one.is_all_gone and not one.is_orphaned()
    if not one.is_orphaned():
        finished = launcher.STATUS if one.is_all_gone else launcher.STATUS_OF_UNFINISHED
        word = launcher.ELSEWHERE if is_elsewhere else finished
        one.say(one.exceeded + word + bytes([status]))
    request.release()
    return may_serve


def _killed_first(restrict: Callable[[], None] | None) -> Callable[[], None]:
    """Returns a function that prepares this process for running a command. If memory is short, the kernel then kills
    the command and not the supervisor. The function also calls `restrict`.
    """

    def prepare() -> None:
        try:
            with open("/proc/self/oom_score_adj", "wb", buffering=0) as score:  # noqa: PTH123 - pathlib would double the start-up
                score.write(_KILLED_FIRST)
        except OSError:
            pass
        if restrict is not None:
            restrict()

    return prepare


def _prepared(request: _Request) -> int:
    """Sets the directory, the umask and the resource limits for the command. Returns 0. If that fails, writes the
    reason to the command's output and returns an exit status.
    """
    try:
        os.fchdir(request.directory)
        os.umask(request.umask)
        _limit(request.limits)
    except OSError as error:
        os.write(2, launcher.NOT_STARTED.encode() + f"{error.strerror}\n".encode())
        return launcher.TRY_AGAIN
    finally:
        os.close(request.directory)
    return 0


def _limit(limits: bytes) -> None:
    """Sets the resource limits of this process to the limits of ralph. `limits` has the form "number:soft:hard,...".
    A limit that cannot be set stays as it is.
    """
    for one in limits.split(b","):
        number, soft, hard = map(int, one.split(b":"))
        if resource.getrlimit(number) != (soft, hard):
            try:
                resource.setrlimit(number, (soft, hard))
            except (OSError, ValueError):
                pass
