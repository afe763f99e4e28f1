# No pathlib and no contextlib: as in launcher.py.
# ruff: noqa: SIM105
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
4. A request contains everything for one command. Some parts of a request are descriptors: output, directory, channel,
   the command's other streams and a held one, the ruleset of its sandbox, the socket to its proxy and the namespaces of
   its box. The last four are left out if the command does not have them. The other parts are bytes: the grace period, umask,
   limits, the path that must still lead to the directory, arguments, environment and the filter of the sandbox.
   Descriptors are close-on-exec from the start, and the launcher closes them. Nothing is kept for the next command but
   a first process in the same box, which the launcher makes when a command has ended (`namespaces.py`).
5. The supervisor has one thread, and no credentials in its environment. Of ralph's modules, it imports only its
   neighbours `launcher.py`, `namespaces.py`, `restriction.py`, `gpu_sockets.py` and `tree_usage.py`. It imports them at its start,
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
from _socket import AF_UNIX, CMSG_SPACE, MSG_PEEK, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ralph.machine import gpu_sockets, launcher, namespaces, restriction, tree_usage
else:  # imported from this module's own directory, because ralph is not on the path here
    sys.path.append(os.path.dirname(__file__))
    import gpu_sockets
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
_MOST_DESCRIPTORS = 13
_DESCRIPTOR_BYTES = 4
# Linux; macOS has no such flag, and nothing of it can be seen here before it is set: there is one thread.
_CLOSE_ON_EXEC: int = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)

# proc_pid_oom_score_adj(5): from -1000 to 1000. Half of all memory more than the process has.
_KILLED_FIRST = b"500"

_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

# The first and only byte that it sends over the socket.
IN_GROUP = b"g"
WITHOUT_GROUP = b"-"


class _Order:
    def __init__(self, payload: bytes) -> None:
        grace_s, umask, core_limit, limits, of_tree, place, box, streams, words, *rest = payload.split(b"\0")
        self.place = place
        self.box = box.split(b" ") if box else []
        """The settings of the command's sandbox, or an empty list without a sandbox.

        The settings are, in this order: the maximum size of a file in bytes (0 means no limit), whether a ruleset was
        sent, whether a socket to a proxy was sent, the numbers of namespaces that a command enters first and last, a process in
        the process namespace if it shares it (else 0), the number of mounts, the filter in hexadecimal digits, and another number
        for another ruleset. With namespaces, the path of the working
        directory and the mounts come before the command."""
        self.streams = [*map(int, streams.split())]
        """The numbers of the streams that were sent."""
        self.grace_s = float(grace_s)
        self.umask = int(umask)
        self.core_limit = int(core_limit)
        self.limits = limits
        self.most_tasks, self.most_memory_bytes, lasts = map(int, of_tree.split())
        self.lasts = bool(lasts)
        """Whether all processes of the command may end by themselves."""
        self.directory, self.places = b"", []
        if self.spaces:
            self.directory, *self.places = rest[: 1 + int(self.box[6])]
            del rest[: 1 + int(self.box[6])]
        self.command = rest[: int(words)]
        self.environment = dict(entry.split(b"=", 1) for entry in rest[int(words) :])

    @property
    def spaces(self) -> int:
        return int(self.box[3]) + int(self.box[4]) if self.box else 0

    def sandbox(self, sent: list[int]) -> tuple[int, int]:
        """Takes the descriptors of the ruleset and of the socket to the proxy from the end of `sent`."""
        proxy = sent.pop() if self.box[2:3] == [b"1"] else -1
        ruleset = sent.pop() if self.box[1:2] == [b"1"] else restriction.NO_RULESET
        return ruleset, proxy

    @property
    def program(self) -> bytes:
        """The packed seccomp filter."""
        return bytes.fromhex(self.box[7].decode()) if self.box else restriction.NO_FILTER

    @property
    def restricted_by(self) -> tuple[bytes, ...]:
        """All by which a first process must be restricted, if it can be before it gets the request. Empty if it cannot."""
        if not self.box or self.box[2] == b"1" or gpu_sockets.asks(self.program):
            return ()
        return (*self.box, *self.places)

    def restrict_ahead(self, ruleset: int) -> None:
        """Restricts the calling process to the sandbox of all commands with the same `restricted_by`. Raises OSError."""
        restriction.allow_mounts(ruleset, self.places)
        restriction.restrict_ahead(ruleset, self.program)

    def restrict(self, ruleset: int, proxy: int) -> Callable[[bytes], None] | None:
        """Returns a function that restricts the calling process to the command's sandbox, with a filter. None without a sandbox."""
        if not self.box:
            return None
        # Loaded here, so that the fork has it.
        restriction.prepare()

        def restrict(program: bytes) -> None:
            restriction.allow_mounts(ruleset, self.places)
            if proxy >= 0:
                restriction.name_proxy(restriction.listen_for_proxy(proxy), self.environment)
            self.limit_files()
            restriction.restrict(ruleset, program)

        return restrict

    def limit_files(self) -> None:
        """Limits the size of each file that the calling process writes. Raises OSError."""
        if most_bytes := int(self.box[0]):
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            limit = most_bytes if most < 0 else min(most_bytes, most)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    def drop_the_rest(self, _: bytes) -> None:
        """Does what `restrict` does after `restrict_ahead`."""
        self.limit_files()
        restriction.drop_capabilities()


class _Request:
    def __init__(self, payload: bytes, descriptors: list[int]) -> None:
        self.payload = payload
        self.order = order = _Order(payload)
        self.output, self.directory, channel, *others = descriptors
        self._spaces = [others.pop() for _ in range(order.spaces)][::-1]
        self.ruleset, self.proxy = order.sandbox(others)
        self.channel = socket(AF_UNIX, SOCK_STREAM, 0, channel)
        self.channel.setblocking(False)
        self.streams = list(zip(others, order.streams, strict=True))
        """The descriptors for the command's standard streams, each with the number of its stream."""
        self._passed: list[int] = []
        """Those besides the standard streams. A held one is closed with the command, and no later command may inherit others."""

    def is_elsewhere(self) -> bool:
        """Whether the path of the working directory leads to another directory than the one that was sent, or to none. False if
        ralph did not ask, and if an error of the file system leaves it open.
        """
        if not self.order.place:
            return False
        try:
            there, sent = os.stat(self.order.place), os.fstat(self.directory)
        except OSError as error:
            return error.errno in _NO_DIRECTORY
        return (there.st_dev, there.st_ino) != (sent.st_dev, sent.st_ino)

    def take_streams(self) -> None:
        """Makes the command's streams the standard streams of this process, so that the command inherits them."""
        for descriptor in (1, 2):
            os.dup2(self.output, descriptor)
        os.close(self.output)
        self._passed = _taken(self.streams)

    def spaces(self) -> namespaces.Spaces:
        if not self._spaces:
            return namespaces.Spaces((), -1)
        first = int(self.order.box[3])
        inner = self._spaces[first] if self._spaces[first:] else -1
        return namespaces.Spaces(self._spaces[:first], inner, int(self.order.box[5]))

    def send_inside(self, first: namespaces.FirstProcess) -> None:
        """Sends the request to the first process of the command's namespaces. Raises OSError if it is gone."""
        sandbox = (self.ruleset, self.proxy)
        sent = [0, 1, 2, *self._passed, self.directory, *(one for one in sandbox if one >= 0)]
        head = len(self.payload).to_bytes(HEAD_BYTES, "big")
        packed = b"".join(one.to_bytes(_DESCRIPTOR_BYTES, sys.byteorder) for one in sent)
        ancillary = [(SOL_SOCKET, SCM_RIGHTS, packed)]
        first.channel.sendmsg([head], ancillary, launcher.NO_SIGPIPE)
        first.channel.sendall(self.payload, launcher.NO_SIGPIPE)

    def release(self) -> None:
        """Closes the descriptors of the request. Called after the command has ended."""
        self.channel.close()
        for descriptor in (self.directory, self.ruleset, self.proxy, *self._spaces, *self._passed):
            if descriptor >= 0:
                os.close(descriptor)

    def close(self) -> None:
        os.close(self.output)
        self.release()
        for descriptor, _ in self.streams:
            os.close(descriptor)


def _taken(streams: list[tuple[int, int]]) -> list[int]:
    """Gives descriptors the numbers of the command's streams. Returns the new ones that are none of the standard streams."""
    others = []
    for descriptor, stream in streams:
        if stream == HELD:
            os.set_inheritable(descriptor, True)
            others.append(descriptor)
            continue
        os.dup2(descriptor, stream)
        os.close(descriptor)
        if stream > 2:
            others.append(stream)
    return others


def _begin_ahead(channel: socket, why_not: str, earlier: _Request) -> int:
    """As `_begin_inside`, in a process that restricts itself before there is a command, as the earlier one was."""
    try:
        if not why_not:
            earlier.order.restrict_ahead(earlier.ruleset)
    except OSError:  # the command gets another process, and its output the reason
        os._exit(0)
    return _begin_inside(channel, why_not, is_restricted=True)


def _begin_inside(channel: socket, why_not: str, *, is_restricted: bool = False) -> int:
    """The `namespaces.Start` of commands."""
    namespaces.close_all_but(channel)
    payload, descriptors = _received_message(channel)
    if payload is None:  # the launcher needs no other command here
        os._exit(0)
    order = _Order(payload)
    for stream in range(3):  # the first descriptors have the lowest numbers, and so their own
        os.set_inheritable(stream, True)
    ruleset, proxy = order.sandbox(descriptors)
    directory = descriptors.pop()
    _taken([*zip(descriptors[3:], [one for one in order.streams if one > 2], strict=True)])
    launcher.expect_the_defaults()
    try:
        restrict = order.drop_the_rest if is_restricted else order.restrict(ruleset, proxy)
        status = _begun_inside(channel, order, directory, restrict, why_not)
    except OSError as error:
        status = -namespaces.not_confined(f"{error.filename or 'namespaces'}: {error.strerror}")
    if not order.spaces:
        os._exit(-status)
    namespaces.close_all_but(channel)
    os.chdir("/")  # of the working directory nothing is needed any more
    return status


def _begun_inside(
    channel: socket, order: _Order, directory: int, restrict: Callable[[bytes], None] | None, why_not: str
) -> int:
    if why_not:
        return -namespaces.not_confined(why_not)
    if order.spaces:
        # By its path, because a descriptor would lead around the mounts.
        os.chdir(order.directory)
    else:
        os.fchdir(directory)
    os.umask(order.umask)
    _limit(order.limits)
    if order.spaces:
        namespaces.tie_to_launcher(channel)
    # A process that the filter asks would outlive the command, if the first process had the filter too.
    asks = bool(order.spaces) and gpu_sockets.asks(order.program)
    own = restriction.NO_FILTER if asks else order.program
    if restrict is not None and not _is_restricted(lambda: restrict(own)):
        return -launcher.NOT_CONFINED
    if asks:
        pid = launcher.forked()
        if pid == 0 and _is_restricted(lambda: restriction.restrict(restriction.NO_RULESET, order.program)):
            launcher.become(order.command, order.environment)
        elif pid == 0:
            os._exit(launcher.NOT_CONFINED)
        return pid
    if not order.spaces:
        launcher.become(order.command, order.environment, 0 if order.box else order.core_limit)
    try:
        return launcher.start(order.command, order.environment, 0)
    except OSError as error:
        return -launcher.not_begun(order.command, error)


def _is_restricted(restrict: Callable[[], None]) -> bool:
    """Calls `restrict`, which restricts this process. If that fails, writes the reason to the output and returns False."""
    try:
        restrict()
    except OSError as error:
        namespaces.not_confined(f"{error.filename}: {error.strerror}")
        return False
    return True


def main(parent_pid: str, group: str, memory_group: str) -> None:
    """Serves ralph until its end. `parent_pid` is ralph's. By writing to the control file `group`, a process enters the control
    group of the run's commands. `memory_group` is the directory of one that limits their memory. Both may be empty.
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
    # The end of the launcher. One that was stopped continues.
    while pid is not None and os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
        os.kill(pid, signal.SIGCONT)


def _forked(control: socket) -> int | None:
    """Forks. Returns the child's pid, and 0 in the child. Without a free process, waits for a request and tries again, and then
    refuses the request. None if ralph is gone or has closed the socket.
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
            status = launcher.not_started(error, request.output)
            try:
                request.channel.send(launcher.STATUS + bytes([status]))
            except OSError:
                pass
            request.close()


def _begin_session() -> None:
    """Starts a new session (setsid(2)), without signals from the terminal, and closes what ralph has inherited from its own parent."""
    try:
        os.setsid()
    except PermissionError:  # the process has a session of its own already
        pass
    try:
        inherited = [int(name) for name in os.listdir("/dev/fd")]
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
    """Moves this process into the control group, if that works. Takes 15 ms, once, while the model still writes its call."""
    return bool(group) and _is_written(group, b"0")


def _is_written(file: str, text: bytes) -> bool:
    try:
        with open(file, "wb", buffering=0) as opened:
            opened.write(text)
    except OSError:
        return False
    return True


def _receive(control: socket) -> _Request | None:
    """None if ralph is gone or has closed the socket."""
    payload, descriptors = _received_message(control)
    return None if payload is None else _Request(payload, descriptors)


def _received_message(control: socket) -> tuple[bytes | None, list[int]]:
    """The bytes and descriptors of a request. No bytes if the other end is gone or has closed the socket."""
    try:
        size, ancillary, _, _ = control.recvmsg(
            HEAD_BYTES, CMSG_SPACE(_MOST_DESCRIPTORS * _DESCRIPTOR_BYTES), _CLOSE_ON_EXEC
        )
    except ConnectionResetError:  # the socket ended before ralph had read the first byte
        return None, []
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
        return None, []
    return payload, descriptors


def _received(control: socket, size: int) -> bytes:
    """Reads `size` bytes, or fewer if the socket is closed before."""
    parts = []
    while size and (part := control.recv(min(size, 1 << 16))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _launch(control: socket, parent_pid: int, memory_group: str, *, is_in_group: bool) -> NoReturn:
    """Turns this process, a forked child of the supervisor, into the launcher."""
    try:
        os.setsid()
        commands = _Commands(parent_pid, memory_group, is_in_group=is_in_group)
        while (request := _next_request(control, parent_pid)) is not None:
            if not commands.serve(request):
                break
    finally:
        os._exit(0)


def _next_request(control: socket, parent_pid: int) -> _Request | None:
    """Waits for a request. None if ralph or the supervisor is gone. A request to stop ends this process, because no command runs.
    One that was meant for the last command is ignored.
    """
    launcher.prctl(launcher.PR_SET_PDEATHSIG, signal.SIGKILL)
    for late in signal.sigpending() & launcher.STOP_SIGNALS:
        signal.sigwait({late})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, launcher.STOP_SIGNALS)
    return _receive(control) if os.getppid() == parent_pid else None


class _Commands:
    """Serves one request after another. Between two of them, a first process waits for the next command."""

    def __init__(self, parent_pid: int, memory_group: str, *, is_in_group: bool) -> None:
        self._parent_pid = parent_pid
        self._memory_group = memory_group
        self._is_in_group = is_in_group
        # The kernel may give a new file a time of some milliseconds ago.
        self._since_s = time.time() - 0.1
        self._waiting: namespaces.FirstProcess | None = None
        self._restricted_by: tuple[bytes, ...] = ()
        """The restrictions of the waiting process (`_Order.restricted_by`)."""

    def serve(self, request: _Request) -> bool:
        """Runs the command of a request. False if this process must run no other, because a process of the command remains or
        nobody needs commands any more.
        """
        order, spaces = request.order, request.spaces()
        most_tasks = 0 if self._is_in_group else order.most_tasks
        group = self._memory_group if order.most_memory_bytes else ""
        limits = tree_usage.Limits(most_tasks, order.most_memory_bytes, self._since_s, group)
        prepare = _become_killed_first if limits.is_kept_by_kernel else None
        is_forked = bool(order.box) or prepare is not None
        if not is_forked:  # all children of this process are the command's then
            self._drop_waiting()
        request.take_streams()
        counted = limits if limits.most_tasks or limits.most_memory_bytes else None
        one = launcher.Launcher(
            self._parent_pid, order.grace_s, order.core_limit, request.channel, counted, lasts=order.lasts
        )
        is_elsewhere = request.is_elsewhere()
        status = _prepared(request)
        if not (status or is_elsewhere):
            status = one.run(
                order.command,
                order.environment,
                (lambda: self._begun(request, spaces, prepare)) if is_forked else None,
            )
        if one.holds_streams:
            launcher.let_go_of_streams()
        os.chdir("/")  # which no one wants to unmount
        may_serve = one.is_all_gone and not one.is_orphaned()
        if not one.is_orphaned():
            finished = launcher.STATUS if one.is_all_gone else launcher.STATUS_OF_UNFINISHED
            word = launcher.ELSEWHERE if is_elsewhere else finished
            one.say(one.exceeded + word + bytes([status]))
        self._drop_waiting()
        if may_serve and is_forked and not spaces.holder:
            try:
                self._restricted_by = order.restricted_by
                ahead = lambda channel, why_not: _begin_ahead(channel, why_not, request)  # noqa: E731 - `functools` is not loaded
                begin = ahead if self._restricted_by else _begin_inside
                self._waiting = namespaces.FirstProcess(spaces, begin, prepare)
            except OSError:  # the machine has no free process; the next command needs one anyway
                pass
        if one.is_all_gone and one.used is not None:
            one.used.end()
        request.release()
        return may_serve

    def _begun(
        self, request: _Request, spaces: namespaces.Spaces, prepare: Callable[[], None] | None
    ) -> namespaces.FirstProcess:
        """The first process of the command's namespaces, which has got the request. Raises OSError."""
        first, self._waiting = self._waiting, None
        fits = self._restricted_by == request.order.restricted_by
        if first is not None and first.names == spaces.names and fits:
            try:
                request.send_inside(first)
            except OSError:  # somebody has killed it
                pass
            else:
                return first
        if first is not None:
            first.end()
        first = namespaces.FirstProcess(spaces, _begin_inside, prepare)
        request.send_inside(first)
        return first

    def _drop_waiting(self) -> None:
        """Ends a first process for which there was no command, because the last one had another box, or none."""
        first, self._waiting = self._waiting, None
        if first is not None:
            first.end()


def _become_killed_first() -> None:
    # If memory is short, the kernel kills this process before others.
    _is_written("/proc/self/oom_score_adj", _KILLED_FIRST)


def _prepared(request: _Request) -> int:
    """Sets directory, umask and limits for the command, and returns 0. If that fails, writes the reason and returns an exit status."""
    try:
        os.fchdir(request.directory)
        os.umask(request.order.umask)
        _limit(request.order.limits)
    except OSError as error:
        os.write(2, launcher.NOT_STARTED.encode() + f"{error.strerror}\n".encode())
        return launcher.TRY_AGAIN
    return 0


def _limit(limits: bytes) -> None:
    """Sets ralph's resource limits, in the form "number:soft:hard,...". One that cannot be set stays as it is."""
    for one in limits.split(b","):
        number, soft, hard = map(int, one.split(b":"))
        if resource.getrlimit(number) != (soft, hard):
            try:
                resource.setrlimit(number, (soft, hard))
            except (OSError, ValueError):
                pass
