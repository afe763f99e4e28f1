"""Controls the supervisor process (`supervisor.py`) from ralph: starts it, makes it start commands, and notices its
end. The start of a command may block until the supervisor has read the request.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine import launcher, tree_usage
from ralph.machine.files.opened_file import opened
from ralph.machine.process_limit import MOST_PROCESSES, MemoryLimit, NoLimitError, ProcessLimit, own_place
from ralph.machine.process_start import core_limit_at_start
from ralph.machine.restriction import NO_RULESET
from ralph.machine.running_command import ELSEWHERE, NEVER_STARTED, EndCause
from ralph.machine.starting import protect_this_process, reaped_children
from ralph.values.outcome import shortage_of, start_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

_SCRIPT = os.path.join(os.path.dirname(launcher.__file__), "supervisor.py")
# Imported, because the interpreter would compile a script anew at each start.
_IMPORT = (
    "import os, sys; sys.path.append(os.path.dirname(sys.argv[1])); import supervisor; sys.path.pop(); "
    "supervisor.main(*sys.argv[2:]); os._exit(0)"
)
# Constants of `supervisor.py`, which is not imported into this process.
_CONTROL = 3
_HELD = 3
_HEAD_BYTES = 4
# Linux MAX_ARG_STRLEN without the final NUL, for arguments and for variables.
_LONGEST_WORD_BYTES = 131_072 - 1
_IN_GROUP = b"g"
# The other end's descriptor is kept at this number until it becomes CONTROL: it must not clash with 0 to 3.
_OUT_OF_THE_WAY = 10
# A request is taken within microseconds, unless somebody has stopped the supervisor.
_SEND_WITHIN_S = 5.0
_READY_WITHIN_S = 5.0
_KILL_S = 2.0
_LOOK_AGAIN_AFTER_S = 0.0002
# Closed again once the supervisor has it. O_PATH needs no right to read the directory.
_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_LIMITS = sorted(
    {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")} - {resource.RLIMIT_CORE}
)

_EXCEEDED = {
    tree_usage.TOO_MANY_PROCESSES: EndCause.TOO_MANY_PROCESSES,
    tree_usage.TOO_MUCH_MEMORY: EndCause.TOO_MUCH_MEMORY,
}


class Confinement(Struct, frozen=True):
    """The sandbox of one command, whose process restricts itself (`restriction.py`) before it executes the program."""

    ruleset: int
    """The descriptor of a Landlock ruleset, or `restriction.NO_RULESET`."""
    program: bytes
    """The packed instructions of a seccomp filter, or `restriction.NO_FILTER`."""
    most_file_bytes: int = 0
    """The maximum size of each file that the command writes. 0 means no limit."""
    spaces: tuple[int, ...] = ()
    """The descriptors of the namespaces that the command enters first (`namespaces.Spaces`). Empty without namespaces."""
    inner_space: int = -1
    """The descriptor of the user namespace that it enters last, or -1."""
    ruleset_number: int = 0
    """Another number for another ruleset."""
    holder: int = 0
    """A process in the process namespace if the command shares it with others, or 0 (`namespaces.Spaces`)."""
    directory: str = ""
    """The path of the working directory inside the namespaces."""
    places: tuple[str, ...] = ()
    """Mounts of the command's own, in the form PATH=RIGHTS. The ruleset gets a rule for each of them."""
    proxy: int = -1
    """The descriptor for `restriction.listen_for_proxy`, or -1 without a proxy."""

    @property
    def descriptors(self) -> list[int]:
        """All of them, in the order in which a request has them."""
        return [one for one in (self.ruleset, self.proxy, *self.spaces, self.inner_space) if one >= 0]

    @property
    def inside(self) -> tuple[str, ...]:
        """The part of a request about the namespaces, if there are any."""
        return (self.directory, *self.places) if self.spaces else ()

    @property
    def packed(self) -> str:
        """The form that `supervisor.py` reads (`_Order.box`)."""
        numbers = (
            self.most_file_bytes,
            int(self.ruleset != NO_RULESET),
            int(self.proxy >= 0),
            len(self.spaces),
            int(self.inner_space >= 0),
            self.holder,
            len(self.places),
        )
        return " ".join((*map(str, numbers), self.program.hex(), str(self.ruleset_number)))


class CommandSupervisor:
    """The supervisor of one run or loop. The first command starts it, and the next one if it was killed."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        most_processes: int | None = None,
        most_memory_bytes: int = 0,
        makes_group: bool = True,
        is_below_loop: bool = False,
        confinement: Callable[[str], Confinement] | None = None,
    ) -> None:
        """`environment` is the supervisor's own, without credentials. `is_below_loop`: the parent of this process is a `ralph
        loop`.

        `most_processes` (None: the default, 0: no limit) and `most_memory_bytes` (0: no limit) are for all commands together. The
        kernel keeps them if a control group can be made and `makes_group` is True, otherwise the launcher.

        `confinement` returns the sandbox of a command, given its directory, and may raise OSError. None: commands have no
        sandbox.
        """
        self._environment = environment
        self._most_processes = MOST_PROCESSES if most_processes is None else most_processes
        self._most_memory_bytes = most_memory_bytes
        self._is_below_loop = is_below_loop
        self._confinement = confinement
        self._limit: ProcessLimit | None = None
        self._why_no_group: str | None = None
        if not (self._most_processes and makes_group):
            self._why_no_group = "none was asked for"
        self._memory: MemoryLimit | None = None
        self._may_limit_memory = bool(most_memory_bytes) and makes_group
        self._serving: _Serving | None = None

    def start_early(self) -> None:
        """Starts the supervisor while the model still writes a call. On the main thread. Raises OSError if it cannot start."""
        self._running()

    def start(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        grace_s: float,
        input_from: int | None = None,
        output_to: int | None = None,
        errors_to: int | None = None,
        held: int | None = None,
        passed: tuple[int, int] | None = None,
        is_confined: bool = True,
        held_directory: int | None = None,
        lasts: bool = False,
    ) -> SupervisedCommand:
        """Starts a command, on the main thread. `grace_s` is the time from SIGTERM to SIGKILL.

        `held_directory` is a descriptor of the directory `cwd` from earlier. If `cwd` does not lead to it any more, the command
        is not started, and its status is ELSEWHERE. None: `cwd` is opened now.

        The descriptors `input_from`, `output_to` and `errors_to` become the standard streams; None means empty input, and the
        command's pipe. The launcher and all processes of the command keep `held` open until they have ended. `passed` is a number
        above 9, and the descriptor that the command has under it. With `is_confined`, the command gets this supervisor's limits
        and sandbox. With `lasts`, what it leaves running may end by itself, and the command has ended when all of that has.

        Raises ShortageError if the machine is short of a resource, ValueError for an argument that no command line can hold, and
        OSError if the command cannot start for another reason.
        """
        streams = {0: input_from, 1: output_to, 2: errors_to, _HELD: held}
        given = {number: descriptor for number, descriptor in streams.items() if descriptor is not None}
        given |= {} if passed is None else dict([passed])
        try:
            confinement = self._confinement(str(cwd)) if self._confinement and is_confined else None
            of_tree = (self._most_processes, self._most_memory_bytes) if is_confined else (0, 0)
            request = _packed_request(
                (
                    *map(str, (grace_s, _umask(), core_limit_at_start())),
                    ",".join("{}:{}:{}".format(number, *resource.getrlimit(number)) for number in _LIMITS),
                    f"{of_tree[0]} {of_tree[1]} {int(lasts)}",
                    "" if held_directory is None else os.fspath(cwd),
                    "" if confinement is None else confinement.packed,
                    " ".join(map(str, given)),
                    str(len(command)),
                    *(() if confinement is None else confinement.inside),
                    *command,
                    *(f"{name}={value}" for name, value in environment.items()),
                )
            )
            sent = (*given.values(), *([] if confinement is None else confinement.descriptors))
            ask = partial(self._asked, request, sent, os.fspath(cwd), held_directory, grace_s)
            try:
                return ask()
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                # An earlier command killed or stopped the supervisor. This one has not started: no whole request arrived.
                self.kill()
                return ask()
        except OSError as error:
            raise shortage_of(error) or error from None

    def why_no_group(self) -> str | None:
        """Why the kernel does not limit the processes of commands, or None. Starts the supervisor, and waits for it. Raises
        OSError.
        """
        serving = self._running()
        if self._limit is not None and not serving.is_in_group():
            return "a process cannot be moved into a control group"
        return self._why_no_group

    def kill(self) -> None:
        """Kills the supervisor. The next command starts a new one."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.end()

    @property
    def pid(self) -> int | None:
        return None if self._serving is None else self._serving.pid

    def close(self) -> None:
        """Ends the supervisor and removes the limit on processes. Must be called after the last command has ended."""
        if self._serving is not None:
            self._serving.dismiss()
        self.kill()
        for limit in (self._limit, self._memory):
            if limit is not None:
                limit.close()
        self._limit = self._memory = None

    def _asked(
        self, request: bytes, sent: Sequence[int], cwd: str, held: int | None, grace_s: float
    ) -> SupervisedCommand:
        directory = os.open(cwd, _DIRECTORY) if held is None else held
        try:
            serving = self._running()
            others = set(launcher.children_of(os.getpid())) | {serving.pid}
            with ExitStack() as ours_if_it_fails:
                ours, channel = socket.socketpair()
                ours_if_it_fails.callback(ours.close)
                with channel:
                    output, theirs = os.pipe()
                    ours_if_it_fails.callback(os.close, output)
                    try:
                        serving.ask(request, [theirs, directory, channel.fileno(), *sent])
                    finally:
                        os.close(theirs)
                ours_if_it_fails.pop_all()
        finally:
            if held is None:
                os.close(directory)
        return SupervisedCommand(self, ours, output, others, grace_s)

    def _running(self) -> _Serving:
        if self._serving is not None and not self._serving.is_running():
            self.kill()
        if self._serving is None:
            protect_this_process()
            if self._limit is None and self._why_no_group is None:
                try:
                    self._limit = ProcessLimit.made(self._most_processes, is_below_loop=self._is_below_loop)
                except NoLimitError as why:
                    self._why_no_group = str(why)
            if self._may_limit_memory:
                self._may_limit_memory = False
                with suppress(NoLimitError):  # the launcher counts then
                    self._memory = MemoryLimit.made(self._most_memory_bytes, own_place("memory"), self._limit)
            self._serving = _Serving(
                self._environment,
                self._limit.entrance if self._limit else "",
                str(self._memory.directory) if self._memory else "",
            )
        return self._serving


_running_supervisors: set[int] = set()
"""The pids of this process's supervisors. One that has ended and was reaped is not among them."""


class _Serving:
    """One running supervisor process, and the connection to it."""

    def __init__(self, environment: Mapping[str, str], entrance: str, memory_group: str) -> None:
        """Starts the process. `entrance` and `memory_group` may be empty. Raises ShortageError and OSError."""
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_SEND_WITHIN_S)
        self._is_in_group: bool | None = None
        self._is_reaped = False
        try:
            with theirs:
                self.pid = _spawned(theirs, environment, entrance, memory_group)
                _running_supervisors.add(self.pid)
        except OSError as error:
            self._control.close()
            raise start_error(error) from None

    def ask(self, request: bytes, descriptors: list[int]) -> None:
        """Asks for the start of one command. If it raises OSError, none was started."""
        # At once, because a head by itself would wake the launcher, which then had to wait for the rest.
        sent = socket.send_fds(self._control, [request], descriptors)
        self._control.sendall(request[sent:])

    def is_in_group(self) -> bool:
        """Whether the supervisor has entered the control group. Waits until the supervisor is ready."""
        if self._is_in_group is None:
            self._control.settimeout(_READY_WITHIN_S)
            with suppress(OSError):
                self._is_in_group = self._control.recv(1) == _IN_GROUP
            self._control.settimeout(_SEND_WITHIN_S)
        return bool(self._is_in_group)

    def is_running(self) -> bool:
        """Whether the supervisor can accept requests. False if it has ended or SIGSTOP has stopped it."""
        pid, status = _waited(self.pid, os.WNOHANG | os.WUNTRACED)
        self._is_reaped = pid != 0 and not os.WIFSTOPPED(status)
        return pid == 0

    def dismiss(self) -> None:
        """Closes the connection, so that the supervisor ends. Waits briefly until the supervisor is gone."""
        self._control.close()
        self._is_reaped = self._is_reaped or _is_over(self.pid)

    def end(self) -> None:
        """Kills the supervisor, and waits briefly until it and its launcher are gone. Their commands end too."""
        self._control.close()
        launchers = launcher.children_of(self.pid)
        if not self._is_reaped:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self._is_reaped = _is_over(self.pid)
        # This process has adopted them: unless they are reaped, each would count as a process of the commands.
        for pid in launchers:
            _is_over(pid)
        _running_supervisors.discard(self.pid)


class SupervisedCommand:
    """A command that was started through the supervisor. The supervisor's launcher runs it."""

    def __init__(
        self,
        supervisor: CommandSupervisor,
        channel: socket.socket,
        output: int,
        others: set[int],
        grace_s: float,
    ) -> None:
        self._supervisor = supervisor
        self._supervisor_pid = supervisor.pid
        self._channel = channel
        self._others = others
        """The children of this process that do not belong to this command. The supervisor is one of them."""
        self._channel.setblocking(False)
        self._said = b""
        self._has_ended = False
        self._is_finished = False
        """Whether the launcher has reported that no process of the command is left."""
        self.grace_s = grace_s
        self.output_descriptor = output
        self.report_descriptor = channel.fileno()
        self.exceeded: EndCause | None = None
        """The limit because of which the launcher stopped the command, or None. Known when `hear` has returned the status."""
        self.stopped = 0
        """The number of processes that were stopped after the command had ended. Known when `hear` has returned the status."""

    def hear(self) -> int | None:
        """Reads what the launcher has sent, without blocking. Returns the exit status, or None if the command has not ended.
        Negative if the launcher is gone and sent no status: it is then unknown what the command did.
        """
        self._has_ended = self._has_ended or self._is_report_over()
        if not self._has_ended:
            return None
        said = self._said
        self.stopped, report = _stopped_and_report(said)
        self.exceeded = _EXCEEDED.get(report[:-2])
        word = report[-2:-1]
        self._is_finished = word in (launcher.STATUS, launcher.ELSEWHERE)
        if word == launcher.ELSEWHERE:
            return ELSEWHERE
        if word in (launcher.STATUS, launcher.STATUS_OF_UNFINISHED):
            return said[-1]
        return -signal.SIGKILL if said else NEVER_STARTED

    @property
    def has_begun(self) -> bool:
        """Whether the launcher has said that it starts the command. Known when `hear` was called."""
        return self._said.startswith(launcher.STARTING)

    def wait_for_end(self) -> int:
        """Blocks until `hear` returns a status, and returns it. Returns too when another thread calls `close`."""
        while (status := self.hear()) is None:
            with suppress(ValueError):  # it was closed just now
                select.select([self._channel], [], [])
        return status

    def _is_report_over(self) -> bool:
        """Whether the launcher has sent its whole report, or is gone. It reports when nothing is left, and ends a little later."""
        try:
            # STATUS, STATUS_OF_UNFINISHED or ELSEWHERE and a byte, perhaps behind the letter of a limit.
            while len(report := _stopped_and_report(self._said)[1]) <= (2 if report[:1] in _EXCEEDED else 1):
                part = self._channel.recv(16)
                if not part:
                    break
                self._said += part
        except BlockingIOError:
            return False
        except OSError:  # the connection has ended
            return True
        return True

    def ask_to_stop(self) -> None:
        """All processes of the command get SIGTERM and, `grace_s` later, SIGKILL."""
        with suppress(OSError):  # its launcher is gone
            self._channel.send(launcher.STOP)

    def kill_what_is_left(self) -> bool:
        """Kills what this process has adopted of the command, and if the launcher has not finished, the supervisor with all below
        it. True if there was nothing to kill. What is just starting can escape, so call this again until it returns True.
        """
        self.hear()
        if self._is_finished:
            return True
        # Check this first: the orphans of a process become our children only once it is dead.
        is_running = not self._has_ended
        # Supervisors of other commands may have been started since.
        others = self._others | (_running_supervisors - {self._supervisor_pid})
        if self._supervisor.pid == self._supervisor_pid:
            # Without /proc no children are found, but a launcher ends when the supervisor does.
            if is_running and launcher.children_of(os.getpid()):
                launcher.kill_below(os.getpid(), others - {self._supervisor_pid})
            # Its channel closes before a dying launcher's children have a new parent. Once the supervisor is gone too,
            # the launcher is a child of ours until it has ended, and so they are found.
            self._supervisor.kill()
        children = reaped_children(others)
        if children:
            launcher.kill_below(os.getpid(), others)
        return not children and not is_running

    def close(self) -> None:
        """Closes the output and the connection, after the reading of the output has ended."""
        os.close(self.output_descriptor)
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()


def _packed_request(words: Iterable[str]) -> bytes:
    fields = [*map(os.fsencode, words)]
    payload = b"\0".join(fields)
    if payload.count(b"\0") >= len(fields):
        raise ValueError("embedded null byte")
    if max(map(len, fields)) > _LONGEST_WORD_BYTES:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    return len(payload).to_bytes(_HEAD_BYTES, "big") + payload


def _stopped_and_report(said: bytes) -> tuple[int, bytes]:
    report = said.removeprefix(launcher.STARTING)
    if not report.startswith(launcher.STOPPED):
        return 0, report
    return report[1] if len(report) > 1 else 0, report[2:]


def _spawned(theirs: socket.socket, environment: Mapping[str, str], entrance: str, memory_group: str) -> int:
    """Does not use `subprocess`, because importing that module takes 8 ms."""
    control = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    try:
        line = [sys.executable, "-I", "-S", "-c", _IMPORT, _SCRIPT, str(os.getpid()), entrance, memory_group]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
            (os.POSIX_SPAWN_DUP2, control, _CONTROL),
        ]
        try:
            return os.posix_spawn(line[0], line, environment, file_actions=actions, setsid=True)
        except NotImplementedError:  # with an old glibc; the supervisor then makes the session itself
            return os.posix_spawn(line[0], line, environment, file_actions=actions)
    finally:
        os.close(control)


def _is_over(pid: int) -> bool:
    """Waits briefly for the end of a killed process, which usually takes microseconds. False if it is stuck in the kernel."""
    until_s = time.monotonic() + _KILL_S
    while (is_running := _waited(pid, os.WNOHANG)[0] == 0) and time.monotonic() < until_s:
        time.sleep(_LOOK_AGAIN_AFTER_S)
    return not is_running


def _waited(pid: int, options: int) -> tuple[int, int]:
    """As `os.waitpid`, with the status 0 if the child was already reaped elsewhere."""
    try:
        return os.waitpid(pid, options)
    except ChildProcessError:
        return pid, 0


def _umask() -> int:
    with suppress(OSError, ValueError, IndexError), opened("/proc/self/status", os.O_RDONLY) as status:
        return int(os.read(status, 1024).partition(b"\nUmask:")[2].split()[0], 8)  # the second line
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
