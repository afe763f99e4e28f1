# pathlib and contextlib would double the start-up that every command pays.
# ruff: noqa: SIM105
"""Runs a command, and makes sure that no process of the command outlives it. Imports nothing of ralph.

The supervisor (`supervisor.py`) forks one launcher, which runs the commands of a run or a loop one after another. Without a
channel (rule 8), its rules can be tried without a supervisor.

The rules:

1. Signals have no handlers, and are blocked before anything is started. A blocked signal stays pending until the main
   loop takes it (`sigtimedwait`), so it cannot interrupt a step. If SIGTERM comes before the signals are blocked, it
   ends the launcher, because nothing has been started yet.
2. A signal only makes the main loop check what has changed. One SIGCHLD may stand for several ended children. The
   kernel sends the parent-death signal once for each thread of the parent, and the first of these signals comes while
   the parent still seems to exist. So each turn of the main loop reaps ended children and checks who the parent is.
   The main loop remembers only one kind of signal: a request to stop.
3. The steps before the start have a fixed order: block the signals; become the parent of the command's future
   orphans; ask the kernel for SIGCONT when the parent dies; check that the parent still exists. The check finds a
   parent that died earlier, and a later death leaves a pending SIGCONT. After these steps the command is started, but
   only if no stop was requested. The signal is SIGCONT because a command may have stopped its launcher (SIGSTOP), and
   a stopped launcher would take no other signal.
4. The command does not inherit the launcher's settings for signals and core dumps. No signal is blocked in the
   command, and signals that the Python interpreter ignores have their default action. Signals that were ignored when
   ralph was started (`nohup`) stay ignored. The limit on core dumps is the limit with which ralph was started.
5. The processes of a command are ended in three steps: SIGTERM, a wait, and SIGKILL until no process is left. If the
   parent is gone, the wait is short, but long enough for git to remove its lock file, which would block later git
   calls. If there are too many processes, there is no wait, because their number would only grow. If a process starts
   while the others get SIGTERM, it gets SIGTERM only when its parent has ended, because the parent may need this
   process to end by itself. Before the SIGKILL, all processes get a SIGSTOP. A stopped process starts no other
   process, so processes that multiply quickly cannot escape.
6. If the machine has no free process, the start is tried again for a second. If the start still fails, the command's
   output says that the command was not started.
7. If the kernel cannot send these signals (macOS), the main loop polls every few milliseconds. On such systems
   orphans are not adopted, and only the process group of the command can be signalled.
8. A launcher that a supervisor forked has a channel for each command, which is a socket to ralph. A byte from ralph
   is a request to stop, and the end of the channel means that ralph is gone. The kernel reports both by SIGIO. The
   launcher sends one message before it starts the command, and the status when no process is left. If no status
   arrives, ralph does not know what the command did. Before the status comes the number of processes that had to be
   asked to end after the command had ended, if there were any. If the supervisor dies, the launcher ends the command as in rule
   5 and sends no status.
9. A command without a sandbox is started by posix_spawn(3), which shares the launcher's memory until the program
   runs. A process that must restrict itself before it runs the program is forked before there is a command, because a fork takes
   long. The launcher itself is never restricted, because it must be able to signal every process of the command.
   If a restriction fails, the program does not run, and the command's output says why. With namespaces, the forked process
   starts the command and adopts its orphans, and the launcher asks and ends them as all others (`namespaces.py`). In namespaces
   that commands share, a command may kill that process: then the launcher does so with what the first process there has adopted.
10. A command may have limits on its process tree (`tree_usage.py`). The launcher measures the tree once a second, for
   the first time after one second. If a limit is exceeded, the tree is ended as in rule 5, with the short wait. A
   process stays in the tree even if it starts a new session or its parent ends, because the launcher adopts the
   orphans.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from _socket import socket
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, NoReturn

    from ralph.machine.namespaces import FirstProcess
    from ralph.machine.tree_usage import Limits
else:
    import _signal as signal  # `signal` would load `enum`, a third of the start of a supervisor

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

# All signals that end a process and can be caught, but for those of faults and of a closed pipe. Batch systems send some of
# them before a limit. SIGPWR is one of Linux.
STOP_SIGNALS = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
    | {signal.SIGTERM, signal.SIGVTALRM, signal.SIGXCPU, getattr(signal, "SIGPWR", signal.SIGTERM)}
)
"""The signals that ask ralph to stop."""

_FOR_EVER_S = float("inf")
# Seconds between two polls if signals do not report everything.
_LOOK_EVERY_S = 0.005

# A short peak of other processes is over soon.
_FORK_PAUSES_S = (0.05,) * 20
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM)
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
# EX_TEMPFAIL. A shell uses other statuses to report a missing command.
TRY_AGAIN = 75
# As env(1) and `restriction.py` say that they could not run the program.
NOT_CONFINED = 125
NOT_STARTED = "the command was not started: "

# Messages on the channel. The launcher sends all but the last, and ralph sends STOP.
STARTING = b"+"
STATUS = b"="
STATUS_OF_UNFINISHED = b"!"
# Where ralph is gone, SIGPIPE would end this process before it has ended those of the command (linux/socket.h, MSG_NOSIGNAL).
NO_SIGPIPE = 0x4000 if sys.platform.startswith("linux") else 0
# Before the status, with a byte that is the number.
STOPPED = b"-"
# Instead of the first two: the working directory is another one by now, so the command was not started.
ELSEWHERE = b"?"
STOP = b"."

# The steps that end the remaining processes: each has a signal for all of them, and a wait before the next step.
_Plan = tuple[tuple[int, float], ...]
_NO_SIGNAL = 0
# SIGKILL is obeyed within milliseconds, but for a process stuck in the kernel: two seconds are enough.
_WITHOUT_PATIENCE: _Plan = ((signal.SIGKILL, 0.005),) * 400
_FOR_ORPHANS: _Plan = ((signal.SIGTERM, 0.1), *_WITHOUT_PATIENCE)
# When the command ends, the rest may finish by itself (`exec > >(tee log)`), is then asked to end, then killed.
_FOR_LEFTOVERS: _Plan = ((_NO_SIGNAL, 0.1), (signal.SIGTERM, 0.2), *_WITHOUT_PATIENCE)

# A count of an ordinary tree takes less than a millisecond. One that takes long is made less often, so that it never
# needs more than a tenth of a processor.
_COUNT_EVERY_S = 1.0
_COUNT_AT_LEAST_EVERY_S = 5.0
_PART_FOR_COUNTING = 10
# A tree may hold more processes than this only by accident or malice.
_MOST_ASKED = 1000
# Stopping an ordinary tree takes milliseconds. What still moves after this is killed as it is and searched again.
_STOP_WITHIN_S = 2.0
_LOOK_AGAIN_AFTER_S = 0.0005
# /proc/PID/stat: stopped, traced, ended but not yet reaped, ended.
_STANDS_STILL = (b"T", b"t", b"Z")
_GONE = b"X"
# Its flags (linux/sched.h, PF_EXITING): it starts nothing any more, and cannot be stopped. The first process of a pid
# namespace stays so until the parents of the others, here this process, have reaped them.
_EXITING = 0x4
# The state of a process in the middle of a fork, for one; SIGKILL breaks that off. A parent in vfork waits this
# way for its stopped child.
_WAITS_IN_KERNEL = b"D"

_prctl_address = 0


def prctl(option: int, value: int) -> bool:
    """Sets an option of this process (prctl(2)). False if the kernel refuses it, or if the system is not Linux."""
    global _prctl_address  # noqa: PLW0603 - found once, so that a fork of a supervisor need not look
    if not sys.platform.startswith("linux"):
        return False
    try:
        # `ctypes` would cost 3 ms; this part of it costs half a millisecond.
        from _ctypes import call_function, dlopen, dlsym  # noqa: PLC0415 - not elsewhere
    except ImportError:
        return False  # an interpreter without libffi: then the loop polls
    _prctl_address = _prctl_address or dlsym(dlopen(None, 0), "prctl")  # type: ignore[arg-type] # None is this program
    return bool(call_function(_prctl_address, (option, value, 0, 0, 0)) == 0)


def children_of(pid: int) -> list[int]:
    """The pids of the direct children of a process. Zombies are included. Empty without /proc."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            # Not as a file object, which takes twice as many system calls: this is done before each command.
            listing = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = b""
                while part := os.read(listing, 65_536):
                    found += part
            finally:
                os.close(listing)
            children += map(int, found.split())
    except FileNotFoundError:
        if os.path.isdir(f"/proc/{pid}/task"):  # no CONFIG_PROC_CHILDREN, or a thread just ended
            return [one for one in _processes() if parent_of(one) == pid]
    except OSError:
        pass
    return children


def tree_below(roots: list[int], most: int | None = None) -> list[int]:
    """`roots` and all their descendants, parents before children. The search stops soon after more than `most` were found."""
    tree = dict.fromkeys(roots)
    generation = roots
    while generation and (most is None or len(tree) <= most):
        generation = [child for pid in generation for child in children_of(pid) if child not in tree]
        tree.update(dict.fromkeys(generation))
    return list(tree)


def kill_below(root: int, spared: Iterable[int] = ()) -> None:
    """Stops and then kills all processes below `root`, but for its children `spared` and theirs. Linux only. A process that is just
    starting may escape, and a second call finds it.
    """
    tree = _Tree(root, spared)
    until_s = time.monotonic() + _STOP_WITHIN_S
    # Until a fresh look finds nothing to stop: a pid may have a new owner, and a process may wake another.
    while tree.has_stopped_any:
        tree.look_afresh()
        while tree.stops_what_moves() and time.monotonic() < until_s:
            time.sleep(_LOOK_AGAIN_AFTER_S)
        if time.monotonic() >= until_s:
            break
    tree.look_afresh()
    # Even if the time is over, because a stopped process would never end.
    send_signal(tree.all_below(), signal.SIGKILL)


class _Tree:
    """Stops the processes below a root. It looks at all processes, the newest first, instead of walking down: for each child on a
    walk, the kernel takes a lock that is busy while many fork, so each could start another one and end before it is reached. A
    known process is stopped within microseconds.
    """

    def __init__(self, root: int, spared: Iterable[int]) -> None:
        self._known = {root: True} | dict.fromkeys(spared, False)
        self._told: set[int] = set()
        self.has_stopped_any = True
        """True if a process was stopped since the last call of `look_afresh`. Also True before the first call."""

    def look_afresh(self) -> None:
        """Makes the next `stops_what_moves` look at all processes again, also at those that were stopped."""
        self._is_below = dict(self._known)
        self._settled = set(self._known)
        self.has_stopped_any = False

    def stops_what_moves(self) -> bool:
        """Stops what still runs below the root. True if there was something, or a process ended, which may have started another."""
        return sum(self._stop(pid) for pid in _processes() if pid not in self._settled) > 0

    def all_below(self) -> list[int]:
        return [pid for pid in _processes() if pid not in self._settled and self._lies_below(pid)]

    def _stop(self, pid: int) -> bool:
        _, state = _parent_and_state(pid)
        if state == _GONE:
            return True
        may_wait = pid in self._told and state == _WAITS_IN_KERNEL
        if state in _STANDS_STILL or may_wait or not (self._lies_below(pid) and may_signal(pid)):
            self._settled.add(pid)
            return False
        self._told.add(pid)
        self.has_stopped_any = True
        send_signal([pid], signal.SIGSTOP)
        return True

    def _lies_below(self, pid: int) -> bool:
        path = []
        while pid not in self._is_below:
            path.append(pid)
            pid, _ = _parent_and_state(pid)
            if pid == 0:
                self._is_below[0] = False
        self._is_below.update(dict.fromkeys(path, self._is_below[pid]))
        return self._is_below[pid]


def _processes() -> list[int]:
    """The newest pids first, unless the kernel has begun with low ones again."""
    return sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)


def _parent_and_state(pid: int) -> tuple[int, bytes]:
    """0 and X if the process is gone. The state is Z as soon as the process is ending."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            # The command's name, in parentheses, may hold anything: count from the last one.
            state, parent, _, _, _, _, flags, _ = stat.read().rpartition(b")")[2].split(maxsplit=7)
    except (OSError, ValueError):
        return 0, _GONE
    return int(parent), b"Z" if int(flags) & _EXITING else state


def parent_of(pid: int) -> int:
    """The pid of a process's parent. 0 if the process is gone."""
    return _parent_and_state(pid)[0]


def may_signal(pid: int) -> bool:
    """False if the process belongs to another user (sudo), so that it can neither be stopped nor killed."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except OSError:  # gone meanwhile
        pass
    return True


def stopped(tree: list[int]) -> bytes:
    """The message about processes that a command left running and that are asked to end. Empty if all have ended."""
    running = sum(_parent_and_state(pid)[1] not in (b"Z", _GONE) for pid in tree)
    return STOPPED + bytes([min(running, 255)]) if running else b""


def send_signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # gone meanwhile, or another user's (sudo)
            pass


class Launcher:
    """Runs one command. The launcher is in a process of its own."""

    def __init__(
        self,
        parent_pid: int,
        grace_s: float,
        core_limit: int,
        channel: socket | None = None,
        limits: Limits | None = None,
        *,
        lasts: bool = False,
    ) -> None:
        """`channel` is a non-blocking socket to ralph, for requests to stop and for the status. Without it, a signal is the
        request and the exit code of this process the status. `limits` are those on the process tree, or None. `lasts`: a command
        in the background, whose processes may all end by themselves.
        """
        self._parent_pid = parent_pid
        self._grace_s = grace_s
        self._core_limit = core_limit
        self._channel = channel
        self._stop_signals = {signal.SIGTERM, *(number for number in STOP_SIGNALS if not _is_ignored(number))}
        self._awaited = {
            *self._stop_signals,
            signal.SIGCHLD,
            signal.SIGCONT,
            *([signal.SIGIO] if channel else []),
        }
        self._is_told_everything = False
        self._command_pid = 0
        self._status: int | None = None
        self._is_asked_to_stop = False
        self._is_ralph_gone = False
        self._asked_to_end: set[int] = set()
        self._limits = limits
        self._lasts = lasts
        self.first: FirstProcess | None = None
        """The first process of the command's namespaces, which is not one of the command. None without namespaces."""
        self.used: FirstProcess | None = None
        """The process that `enclose` has returned."""
        self._count_at_s = _FOR_EVER_S
        self.holds_streams = True
        """Whether this process still has the command's standard streams as its own."""
        self.exceeded = b""
        """The letter of the limit that the process tree exceeded (`tree_usage.py`), or an empty value."""
        self.is_all_gone = True
        """True if no process of the command is left. False if a process could not be killed."""

    def run(
        self,
        command: list[bytes] | list[str],
        environment: Mapping[bytes, bytes] | None = None,
        enclose: Callable[[], FirstProcess] | None = None,
    ) -> int:
        """Runs the command, waits until all its processes are gone, and returns its exit status (128 + n after signal n). If some
        cannot be killed, gives up and sets `is_all_gone` to False. If it was not started, returns TRY_AGAIN or 128 + SIGTERM.

        `environment` holds its variables, or None for those of this process. `enclose` makes a process start the command, or
        become it, and returns that process, which gets all that belongs to the command in another way. Raises OSError.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        expect_the_defaults()
        is_adopter = prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._is_told_everything = prctl(PR_SET_PDEATHSIG, signal.SIGCONT) and is_adopter
        if self._channel is not None:
            self._is_told_everything &= _tells_by_signal(self._channel)
        self._hear_channel()
        if not (self.is_orphaned() or self._is_asked_to_stop or signal.sigpending() & self._stop_signals):
            self.say(STARTING)
            try:
                if enclose is None:
                    self._command_pid = start(command, environment, self._core_limit)
                else:
                    self.used = enclose()
                    self._command_pid = self.used.pid
                    if not self.used.becomes_command:
                        self.first = self.used
                        self.first.channel.setblocking(False)
                        self._is_told_everything &= _tells_by_signal(self.first.channel)
            except OSError as error:
                return not_begun(command, error)
            finally:
                let_go_of_streams()
                self.holds_streams = False
            self._supervise()
        if self._status is None:
            return 128 + signal.SIGTERM
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def is_orphaned(self) -> bool:
        """Whether ralph or the supervisor is gone. The command is then no longer needed."""
        return self._is_ralph_gone or os.getppid() != self._parent_pid

    def say(self, words: bytes) -> None:
        """Sends a message to ralph. Does nothing if there is no channel or ralph no longer reads it."""
        if self._channel is not None and words:
            try:
                self._channel.send(words, NO_SIGPIPE)
            except OSError:
                self._is_ralph_gone = True

    def _hear_channel(self) -> None:
        if self._channel is None or self._is_ralph_gone:
            return
        try:
            said = self._channel.recv(1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        self._is_ralph_gone = not said
        self._is_asked_to_stop |= bool(said)

    def _supervise(self) -> None:
        """Each turn reaps ended children, takes the next step if its time has come, and waits for a signal or for that time."""
        plan: _Plan = ()
        steps, due_s = iter(plan), _FOR_EVER_S
        if self._limits is not None and _has_process_tree():
            self._count_at_s = time.monotonic() + _COUNT_EVERY_S
        while self._reap():
            self._hear_channel()
            now_s = time.monotonic()
            if now_s >= self._count_at_s:
                now_s = self._count(now_s)
            previous, plan = plan, self._revised(plan)
            if plan is not previous:
                steps, due_s, self._count_at_s = iter(plan), now_s, _FOR_EVER_S
            if self._asked_to_end:
                self._ask_to_end([pid for pid in self._roots() if pid not in self._asked_to_end])
            if now_s >= due_s:
                step = next(steps, None)
                if step is None:
                    self.is_all_gone = False
                    return
                number, patience_s = step
                due_s = now_s + patience_s
                if not self._signal_tree(number):
                    steps, due_s = iter(_WITHOUT_PATIENCE), now_s
            take = _next_signal if self._is_told_everything else _next_signal_by_looking
            if take(self._awaited, min(due_s, self._count_at_s) - now_s) in self._stop_signals:
                self._is_asked_to_stop = True
        # A command that has survived the kill of one of its processes has not been stopped.
        if self._limits is not None and not self.exceeded and self._status:
            self.exceeded = self._limits.killed()

    def _count(self, now_s: float) -> float:
        """Measures the tree and stores the limit that it exceeds. Returns the time after that. Not for a tree that is being ended."""
        assert self._limits is not None  # noqa: S101 - nothing is due without limits
        tree = tree_below(self._roots(), self._limits.most_counted)
        self.exceeded = self._limits.exceeded(tree)
        counted_s = time.monotonic()
        pause_s = min(_PART_FOR_COUNTING * (counted_s - now_s), _COUNT_AT_LEAST_EVERY_S)
        self._count_at_s = counted_s + max(pause_s, _COUNT_EVERY_S)
        return counted_s

    def _revised(self, plan: _Plan) -> _Plan:
        """The plan for ending the processes: `plan`, or a new one if something has changed. Empty lets the command run. There is
        a plan when the command has ended (unless it is in the background), has exceeded a limit, or must stop. If the parent is
        gone, the one for orphans replaces every other.
        """
        if self.is_orphaned():
            return _FOR_ORPHANS
        if plan:
            return plan
        if self.exceeded:
            return _FOR_ORPHANS
        if self._status is not None and not (self._lasts and (self.first is None or self.first.runs)):
            return _FOR_LEFTOVERS
        if self._is_asked_to_stop:
            return ((signal.SIGTERM, self._grace_s), *_WITHOUT_PATIENCE)
        return plan

    def _roots(self) -> list[int]:
        if self.first is None:
            return children_of(os.getpid())
        return [pid for pid in children_of(self.first.adopter()) if pid != self.first.holder]

    def _reap(self) -> bool:
        """Reaps ended children, adopted ones too, and stores the command's status. False if no process of the command is left."""
        if self.first is not None:
            self.first.hear()
            if self.first.status is not None:
                self._status = self.first.status << 8
            if self.first.is_empty:
                return False
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._command_pid and self.used is not None:
                    self.used.was_reaped()
                if pid == self._command_pid and self._status is None:
                    self._status = status
        except ChildProcessError:
            if self.first is not None:
                return bool(self._roots())
            return not _has_process_tree() and self._signal_group(0)

    def _signal_tree(self, number: int) -> bool:
        """Signals all processes of the command. False if there are so many that it makes no sense to wait for their end."""
        if not _has_process_tree():
            self._signal_group(number)
        elif number == signal.SIGKILL and self.first is not None and not self.first.holder:
            send_signal([self.first.pid], number)
        elif number == signal.SIGKILL:
            kill_below(os.getpid())
            if self.first is not None and (adopter := self.first.adopter()):
                kill_below(adopter, [self.first.holder])
        elif number:
            return self._ask_to_end(self._roots())
        return True

    def _ask_to_end(self, roots: list[int]) -> bool:
        """Sends SIGTERM to these and their descendants, never twice to the same. False if there are too many."""
        tree = tree_below(roots, _MOST_ASKED)
        if self._status is not None and not self._asked_to_end:
            self.say(stopped(tree))
        send_signal([pid for pid in tree if pid not in self._asked_to_end], signal.SIGTERM)
        self._asked_to_end.update(tree)
        return len(tree) <= _MOST_ASKED

    def _signal_group(self, number: int) -> bool:
        """Whether there is a process of the group: where orphans are not adopted, the others cannot be found."""
        try:
            os.killpg(self._command_pid, number)
        except OSError:
            return False
        return True


def _has_process_tree() -> bool:
    return os.path.isdir("/proc/self/task")


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def expect_the_defaults() -> None:
    """Restores the default actions of signals in this process. A command that it starts inherits them."""
    # SIGCHLD ignored, as some parents leave it, would hide the status. The interpreter ignores SIGPIPE: `yes | head`
    # would complain.
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if not _is_ignored(signal.SIGINT):  # otherwise the interpreter's handler would run in the child
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _tells_by_signal(channel: socket) -> bool:
    """Asks the kernel for SIGIO when the channel has data or is closed. False if the system does not support that."""
    try:
        fcntl.fcntl(channel.fileno(), fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(channel.fileno(), fcntl.F_GETFL)
        fcntl.fcntl(channel.fileno(), fcntl.F_SETFL, flags | os.O_ASYNC)
    except (OSError, AttributeError):  # AttributeError: a system without such signals
        return False
    return True


def _next_signal(awaited: set[int], limit_s: float) -> int | None:
    if limit_s == _FOR_EVER_S:
        return signal.sigwaitinfo(awaited).si_signo
    information = signal.sigtimedwait(awaited, limit_s)
    return information.si_signo if information else None


def _next_signal_by_looking(awaited: set[int], limit_s: float) -> int | None:
    """Looks once, and may return None before `limit_s` is over. For macOS, where waiting for signals has no timeout."""
    time.sleep(min(limit_s, _LOOK_EVERY_S))
    for number in signal.sigpending() & awaited:
        return signal.sigwait({number})
    return None


def start(
    command: list[bytes] | list[str], environment: Mapping[bytes, bytes] | None, core_limit: int
) -> int:
    """Starts the command in a session of its own (setsid(2)) and returns its pid. Raises OSError without a free process or program."""
    if core_limit:
        _allow_core_dumps(core_limit)
    try:
        # A fork would copy this process's memory, which takes a millisecond (rule 9).
        return _patiently(lambda: _spawned(command, environment))
    except NotImplementedError:  # a Python that was built for an old glibc
        pass
    pid = forked()
    if pid == 0:
        become(command, environment)
    return pid


def let_go_of_streams() -> None:
    """Replaces the standard streams by the null device: a reader of the output would wait for the launcher to end."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _spawned(command: list[bytes] | list[str], environment: Mapping[bytes, bytes] | None) -> int:
    given: Any = os.environ if environment is None else environment
    # No signal stays blocked, because the program that started ralph may have blocked some.
    return _tried(
        command, environment, lambda place: os.posix_spawn(place, command, given, setsid=True, setsigmask=())
    )


def _tried(
    command: list[bytes] | list[str], environment: Mapping[bytes, bytes] | None, run: Callable[[bytes], int]
) -> int:
    """Calls `run` with each path of the program until one works. `os.execvpe` would load `warnings`, which takes a millisecond."""
    name = os.fsencode(command[0])
    places = [name]
    if b"/" not in name:
        search = (os.environb if environment is None else environment).get(b"PATH", os.fsencode(os.defpath))
        places = [os.path.join(directory, name) for directory in search.split(os.fsencode(os.pathsep))]
    failures = []
    for place in places:
        try:
            return run(place)
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise
            failures.append(error)
    raise next((error for error in failures if error.errno not in _NOT_THERE), failures[0])


def forked() -> int:
    """As `os.fork`. Without a free process, tries again for up to a second, and then raises OSError."""
    return _patiently(os.fork)


def _patiently(start: Callable[[], int]) -> int:
    for pause_s in _FORK_PAUSES_S:
        try:
            return start()
        except OSError as error:
            if error.errno not in _SHORTAGES:
                raise
            time.sleep(pause_s)
    return start()


def not_begun(command: list[bytes] | list[str], error: OSError) -> int:
    """Writes to the command's output why it could not be started. Returns the exit status for this case."""
    return not_started(error) if error.errno in _SHORTAGES else _not_run(command, error)


def _not_run(command: list[bytes] | list[str], error: OSError) -> int:
    """Writes why the program could not be run. Returns the exit status that a shell has for it."""
    os.write(2, os.fsencode(command[0]) + f": {error.strerror}\n".encode())
    return 127 if isinstance(error, FileNotFoundError) else 126


def not_started(error: OSError, output: int = 2) -> int:
    """Writes that the command was not started, and why. Returns the exit status for this case."""
    reason = f"this machine has no process left ({error.strerror})"
    os.write(output, f"{NOT_STARTED}{reason}. That passes: try again\n".encode())
    return TRY_AGAIN


def become(
    command: list[bytes] | list[str], environment: Mapping[bytes, bytes] | None, core_limit: int = 0
) -> NoReturn:
    """Makes this process the command, in a session of its own."""
    status = 127
    try:
        if core_limit:
            _allow_core_dumps(core_limit)
        os.setsid()
        # Those sent meanwhile take effect here.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        given: Any = os.environ if environment is None else environment
        _tried(command, environment, lambda place: os.execve(place, command, given))  # noqa: S606 - the caller has decided which shell it is
    except OSError as error:
        status = _not_run(command, error)
    finally:
        os._exit(status)


def _allow_core_dumps(core_limit: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (core_limit, most))
    except (OSError, ValueError):
        pass
