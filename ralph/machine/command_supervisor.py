"""Ralph's side of the supervisor (`supervisor.py`): starts it, sends it commands to start, and notices its end.

Only `wait_for_end` waits for a command's end, and needs a thread of its own. A request may block until the supervisor
takes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
import sys
import time
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

from ralph.machine import launcher
from ralph.machine.own_process import core_limit_at_start
from ralph.machine.process_limit import MOST_PROCESSES, NoLimitError, ProcessLimit
from ralph.machine.processes import protect_this_process, reaped_children, stop_ignoring_ends
from ralph.machine.running_command import NEVER_STARTED
from ralph.values.shortage import ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_SCRIPT = os.path.join(os.path.dirname(launcher.__file__), "supervisor.py")  # noqa: PTH118, PTH120 - as `__file__` is
# The names that `supervisor.py` knows the modules by; it is no module of ralph's process.
_CONTROL = 3
_HEAD_BYTES = 4
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


class CommandSupervisor:
    """The supervisor of one run, started with the first command, and again after it was killed."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        most_processes: int | None = None,
        is_below_loop: bool = False,
    ) -> None:
        """`environment`: the supervisor's environment; it holds no credentials. `most_processes`: the limit for all
        commands together, if this machine can set a limit; None: the default. `is_below_loop`: the parent of this
        process is a ralph too.
        """
        self._environment = environment
        self._most_processes = MOST_PROCESSES if most_processes is None else most_processes
        self._is_below_loop = is_below_loop
        self._limit: ProcessLimit | None = None
        self._why_unlimited: str | None = None
        self._serving: _Serving | None = None

    def start_early(self) -> None:
        """Starts the supervisor while the arguments of a call are still arriving.

        Call it on the main thread. Raises OSError if the supervisor cannot start; `start` will then raise it too.
        """
        self._running()

    def start(
        self, command: Sequence[str], *, cwd: Path, environment: Mapping[str, str], grace_s: float
    ) -> ForkedCommand:
        """Starts a command. Call it on the main thread. `grace_s`: the time from SIGTERM to SIGKILL.

        Raises OSError if the command cannot start; a ShortageError if the machine lacks a resource.
        """
        try:
            try:
                return self._asked(command, cwd, environment, grace_s)
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                # An earlier command killed or stopped the supervisor. This command has not begun: no whole request
                # arrived.
                self._end()
                return self._asked(command, cwd, environment, grace_s)
        except OSError as error:
            raise shortage_of(error) or error from None

    def why_unlimited(self) -> str | None:
        """Why commands have no limit on processes; None: they have one. Starts the supervisor, and waits for its
        answer.

        Raises OSError if the supervisor cannot start.
        """
        serving = self._running()
        if self._limit is not None and not serving.is_in_group():
            return "a process cannot be moved into a control group"
        return self._why_unlimited

    def kill(self) -> None:
        """Kill the supervisor; the next command gets a new one."""
        self._end()

    @property
    def pid(self) -> int | None:
        return None if self._serving is None else self._serving.pid

    def close(self) -> None:
        """Ends the supervisor and removes the limit. Call it after the last command has ended."""
        if self._serving is not None:
            self._serving.dismiss()
        self._end()
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.close()

    def _asked(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], grace_s: float
    ) -> ForkedCommand:
        directory = os.open(cwd, _DIRECTORY)
        try:
            serving = self._running()
            others = set(launcher.children_of(os.getpid())) | {serving.pid}
            ours, channel = socket.socketpair()
            with channel:
                output, theirs = os.pipe()  # second: a socket without an owner closes itself
                try:
                    serving.ask([theirs, directory, channel.fileno()], command, environment, grace_s)
                except BaseException:
                    os.close(output)
                    ours.close()
                    raise
                finally:
                    os.close(theirs)
        finally:
            os.close(directory)
        return ForkedCommand(self, ours, output, others)

    def _running(self) -> _Serving:
        if self._serving is not None and not self._serving.is_running():
            self._end()
        if self._serving is None:
            protect_this_process()
            stop_ignoring_ends()
            if self._limit is None and self._why_unlimited is None:
                try:
                    self._limit = ProcessLimit.made(self._most_processes, is_below_loop=self._is_below_loop)
                except NoLimitError as why:
                    self._why_unlimited = str(why)
            self._serving = _Serving(self._environment, self._limit.entrance if self._limit else "")
        return self._serving

    def _end(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.end()


class _Serving:
    """One process of the supervisor."""

    def __init__(self, environment: Mapping[str, str], entrance: str) -> None:
        """Starts the process. Raises OSError; a ShortageError if the machine lacks a resource."""
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_SEND_WITHIN_S)
        self._is_in_group: bool | None = None
        self._is_reaped = False
        try:
            with theirs:
                self.pid = _spawned(theirs, environment, entrance)
        except OSError as error:
            self._control.close()
            if error.errno == errno.EAGAIN:
                raise ShortageError("process") from error
            raise shortage_of(error) or error from None

    def ask(
        self,
        descriptors: list[int],
        command: Sequence[str],
        environment: Mapping[str, str],
        grace_s: float,
    ) -> None:
        """Sends the request for one command. If it raises OSError, no command was started."""
        fields: list[bytes] = [
            *(str(number).encode() for number in (grace_s, _umask(), core_limit_at_start())),
            ",".join(
                f"{number}:{soft}:{hard}"
                for number, (soft, hard) in zip(_LIMITS, map(resource.getrlimit, _LIMITS), strict=True)
            ).encode(),
            str(len(command)).encode(),
            *map(os.fsencode, command),
            *(os.fsencode(f"{name}={value}") for name, value in environment.items()),
        ]
        payload = b"\0".join(fields)
        socket.send_fds(self._control, [len(payload).to_bytes(_HEAD_BYTES, "big")], descriptors)
        self._control.sendall(payload)

    def is_in_group(self) -> bool:
        """Whether commands run in a control group. Waits until the supervisor has begun."""
        if self._is_in_group is None:
            self._control.settimeout(_READY_WITHIN_S)
            with suppress(OSError):
                self._is_in_group = self._control.recv(1) == _IN_GROUP
            self._control.settimeout(_SEND_WITHIN_S)
        return bool(self._is_in_group)

    def is_running(self) -> bool:
        """Whether the supervisor takes requests. Returns False also if SIGSTOP has stopped it."""
        pid, status = _waited(self.pid, os.WNOHANG | os.WUNTRACED)
        self._is_reaped = pid != 0 and not os.WIFSTOPPED(status)
        return pid == 0

    def dismiss(self) -> None:
        """Lets the supervisor end as soon as all processes that it started are gone."""
        self._control.close()
        self._is_reaped = self._is_reaped or _is_over(self.pid)

    def end(self) -> None:
        """Kills the supervisor. It has nothing to clean up, and the commands that it started end with it."""
        self._control.close()
        if not self._is_reaped:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self._is_reaped = _is_over(self.pid)


class ForkedCommand:
    """A running command whose launcher the supervisor has forked."""

    def __init__(
        self, supervisor: CommandSupervisor, channel: socket.socket, output: int, others: set[int]
    ) -> None:
        self._supervisor = supervisor
        self._supervisor_pid = supervisor.pid
        self._channel = channel
        self._others = others
        """Children of this process that do not belong to this command, the supervisor among them."""
        self._has_ended = Event()
        self._is_finished = False
        """The launcher has reported that no process of the command is left."""
        self.output_descriptor = output

    def wait_for_end(self) -> int:
        """Blocks until the launcher is gone. Returns the command's exit status. A negative status means that the
        launcher sent none, so that the effects of the command are unknown.
        """
        said = b""
        # An error is a connection's end too.
        with suppress(OSError):
            while part := self._channel.recv(16):
                said += part
        word = said[-2:-1]
        self._is_finished = word == launcher.STATUS
        self._has_ended.set()
        if word in (launcher.STATUS, launcher.STATUS_OF_UNFINISHED):
            return said[-1]
        return -signal.SIGKILL if said else NEVER_STARTED

    def ask_to_stop(self) -> None:
        """Send the whole tree SIGTERM, and SIGKILL after the grace."""
        with suppress(OSError):  # its launcher is gone
            self._channel.send(launcher.STOP)

    def kill_what_is_left(self) -> bool:
        """Kill the command's processes that this process has adopted. Unless the launcher has finished, also kill the
        supervisor and everything below it.

        Returns True if nothing was left. A process that is just being started can escape one call, so repeat the call
        until it returns True.
        """
        # Check this first: the orphans of a process become our children only once it is dead.
        is_running = not self._has_ended.is_set()
        if not self._is_finished and self._supervisor.pid == self._supervisor_pid:
            # Without /proc no children are found, but a launcher ends when the supervisor does.
            if is_running and launcher.children_of(os.getpid()):
                launcher.kill_below(os.getpid(), self._others - {self._supervisor_pid})
            # Its channel closes before a dying launcher's children have a new parent. Once the supervisor is gone too,
            # the launcher is a child of ours until it has ended, and so they are found.
            self._supervisor.kill()
        children = reaped_children(self._others)
        if children:
            launcher.kill_below(os.getpid(), self._others)
        return not children and not is_running

    def close(self) -> None:
        """Closes the output. Call it only after its reader has stopped."""
        os.close(self.output_descriptor)
        if self._has_ended.is_set():
            self._channel.close()


def _spawned(theirs: socket.socket, environment: Mapping[str, str], entrance: str) -> int:
    """Starts the supervisor's process and returns its pid.

    Does not use `subprocess`, whose import costs 8 ms. The supervisor does the rest of its set-up itself.
    """
    control = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    try:
        line = [sys.executable, "-I", "-S", _SCRIPT, str(os.getpid()), entrance]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
            (os.POSIX_SPAWN_DUP2, control, _CONTROL),
        ]
        try:
            return os.posix_spawn(line[0], line, environment, file_actions=actions, setsid=True)
        except NotImplementedError:  # a Python that was built against an old glibc; it does so itself
            return os.posix_spawn(line[0], line, environment, file_actions=actions)
    finally:
        os.close(control)


def _is_over(pid: int) -> bool:
    """Waits briefly for a killed process to end, which usually takes microseconds. Returns False if the process is
    stuck in the kernel.
    """
    until_s = time.monotonic() + _KILL_S
    while (is_running := _waited(pid, os.WNOHANG)[0] == 0) and time.monotonic() < until_s:
        time.sleep(_LOOK_AGAIN_AFTER_S)
    return not is_running


def _waited(pid: int, options: int) -> tuple[int, int]:
    """Calls `os.waitpid`. If the child was already reaped elsewhere, returns its pid with status 0."""
    try:
        return os.waitpid(pid, options)
    except ChildProcessError:
        return pid, 0


def _umask() -> int:
    """The umask of this process, as it is now."""
    with suppress(OSError, ValueError), open("/proc/self/status", "rb") as status:  # noqa: PTH123 - for speed
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
