# pathlib and contextlib would double the start-up that every command pays.
# ruff: noqa: PTH112, PTH123, PTH208, SIM105
"""Supervises one command so that nothing it starts outlives it. Knows nothing else of ralph.

It runs in two ways, with one set of rules. A run's supervisor (`supervisor.py`) forks it for each command of the model.
For everything else it is a script (`python -I -S launcher.py PARENT_PID GRACE_S LC_CTYPE CORE_LIMIT COMMAND...`) that
imports little: its start-up is part of every such command. It exits with the command's status, 128 + n for signal n.

Its rules:

1. Signals are waited for, never handled. They are blocked before anything is started, and one loop takes them when it
   is ready (`sigtimedwait`). A signal that comes at a bad moment stays pending until then, and none can interrupt a
   step. Before they are blocked, SIGTERM just ends the launcher: nothing has been started yet.
2. A signal is a reason to look, not a message. One may stand for many (SIGCHLD), and the kernel repeats the parent's
   death signal for each of its threads, at first while the parent still seems to be there. So each turn of the loop
   reaps ended children and checks who the parent is. It remembers one thing only: that a stop was requested.
3. The steps before the start come in this order: block the signals; adopt the command's future orphans; have the
   kernel send SIGTERM when the parent dies; check that the parent is still there. The check finds a parent that died
   before, and a later death leaves SIGTERM pending: there is no gap. Only then is the command started, unless a stop
   was requested.
4. The command notices nothing: no signal is blocked in it, and signals that the interpreter ignores have their
   default. Signals that were ignored when ralph was started (`nohup`) stay ignored. Its core dumps have the limit
   that ralph was started with.
5. A tree is ended in three steps: SIGTERM, patience, and killing until nothing is left. If the parent is gone, patience
   is short: long enough for git to remove its lock, which would stop every later git. A tree with more processes than
   anybody needs gets none: it would only grow. Killing begins with stopping everything (SIGSTOP): a stopped process
   starts nothing, so a tree that starts processes faster than it can be walked stands still before it dies.
6. On a machine without free processes the start is tried again for a second. Then the command was not started, and
   its output reports that.
7. Where the kernel does not send these signals (macOS), the loop polls every few milliseconds. Orphans are not adopted
   there, and only the command's process group can be reached.
8. A launcher forked by a supervisor also has a channel: a socket whose other end only ralph holds. A byte on it
   requests a stop, and its end means that ralph is gone. The kernel reports both by SIGIO, which is one more reason to
   look. The launcher sends a message on it before the command is started, and the status when nothing is left: no
   status, no knowledge. If the supervisor dies, it ends the command as in rule 5, and sends nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Iterable, Mapping

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

_FOR_EVER_S = float("inf")
# Seconds between two looks where signals do not report everything.
_LOOK_EVERY_S = 0.005

# A burst of other processes is over in a moment.
_FORK_PAUSES_S = (0.05,) * 20
# EX_TEMPFAIL; not one of the statuses by which a shell reports a missing command.
TRY_AGAIN = 75
NOT_STARTED = "the command was not started: "

# The messages of the launcher over its channel. Ralph sends one byte, whichever.
STARTING = b"+"
STATUS = b"="
STATUS_OF_UNFINISHED = b"!"
STOP = b"."

# The steps that end the remaining processes: each has a signal for all of them, and a wait before the next step.
_Plan = tuple[tuple[int, float], ...]
_NO_SIGNAL = 0
# SIGKILL is obeyed within milliseconds, but for a process stuck in the kernel: two seconds are enough.
_WITHOUT_PATIENCE: _Plan = ((signal.SIGKILL, 0.005),) * 400
_FOR_ORPHANS: _Plan = ((signal.SIGTERM, 0.1), *_WITHOUT_PATIENCE)
# When the command ends, the rest may finish by itself (`exec > >(tee log)`), is then asked to end, then killed.
_FOR_LEFTOVERS: _Plan = ((_NO_SIGNAL, 0.1), (signal.SIGTERM, 0.2), *_WITHOUT_PATIENCE)

# A tree may hold more processes than this only by accident or malice.
_MOST_ASKED = 1000
# Stopping an ordinary tree takes milliseconds. What still moves after this is killed as it is and searched again.
_STOP_WITHIN_S = 2.0
_LOOK_AGAIN_AFTER_S = 0.0005
# /proc/PID/stat: stopped, traced, ended.
_STANDS_STILL = (b"T", b"t", b"Z", b"X")
# The state of a process in the middle of a fork, for one; SIGKILL breaks that off. A parent in vfork waits this
# way for its stopped child.
_WAITS_IN_KERNEL = b"D"


_prctl_address = 0


def prctl(option: int, value: int) -> bool:
    """Call prctl. Linux only; False elsewhere, or when the kernel refuses."""
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
    """Direct children, zombies included; empty without /proc."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
                children += map(int, listing.read().split())
    except FileNotFoundError:
        if os.path.isdir(
            f"/proc/{pid}/task"
        ):  # a kernel without CONFIG_PROC_CHILDREN, or a thread just ended
            return _children_by_scan(pid)
    except OSError:
        pass
    return children


def _children_by_scan(pid: int) -> list[int]:
    children = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    # The command's name, in parentheses, may hold anything: count from the last one.
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                children.append(int(name))
    return children


def tree_below(roots: list[int], most: int | None = None) -> list[int]:
    """The roots and all their descendants, parents first; not much more of them than `most`."""
    tree = dict.fromkeys(roots)
    generation = roots
    while generation and (most is None or len(tree) <= most):
        generation = [child for pid in generation for child in children_of(pid) if child not in tree]
        tree.update(dict.fromkeys(generation))
    return list(tree)


def kill_below(root: int, spared: Iterable[int] = ()) -> None:
    """Stop everything below a process until nothing of it moves, and then kill it. Linux. `spared`: children of the
    root that are left alone, with everything below them. A process that is just being started can escape and lose its
    parent; a second call finds it.
    """
    until_s = time.monotonic() + _STOP_WITHIN_S
    # Repeat until a fresh look finds nothing to stop: a pid may have a new owner, and a process may wake another.
    while _stop_below(root, spared, until_s) and time.monotonic() < until_s:
        pass
    # In time or not: a stopped process would never end.
    send_signal(_Tree(root, spared).all_below(), signal.SIGKILL)


def _stop_below(root: int, spared: Iterable[int], until_s: float) -> bool:
    """Stop everything below the root. Returns True if anything was still moving."""
    tree = _Tree(root, spared)
    has_moved = False
    while tree.stops_what_moves() and time.monotonic() < until_s:
        has_moved = True
        time.sleep(_LOOK_AGAIN_AFTER_S)
    return has_moved


class _Tree:
    """Stops the processes below a root. It looks at all processes of the machine, the youngest first.

    Walking the tree from the root would take a lock of the kernel for each child. In a storm of forks that lock is
    busy, and each process has started another and ended before the walk reaches it. A process whose pid is known is
    stopped within microseconds.
    """

    def __init__(self, root: int, spared: Iterable[int]) -> None:
        self._is_below = {root: True} | dict.fromkeys(spared, False)
        self._settled = set(self._is_below)
        self._told: set[int] = set()

    def stops_what_moves(self) -> bool:
        """Stop the processes below the root that still move. Returns True if there were any."""
        return sum(self._stop(pid) for pid in _processes() if pid not in self._settled) > 0

    def all_below(self) -> list[int]:
        return [pid for pid in _processes() if pid not in self._settled and self._lies_below(pid)]

    def _stop(self, pid: int) -> bool:
        _, state = _parent_and_state(pid)
        may_wait = pid in self._told and state == _WAITS_IN_KERNEL
        if state in _STANDS_STILL or may_wait or not self._lies_below(pid):
            self._settled.add(pid)
            return False
        self._told.add(pid)
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
    """All pids, the youngest first, as long as the numbers have not wrapped around."""
    return sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)


def _parent_and_state(pid: int) -> tuple[int, bytes]:
    """The parent and the state of a process. They are 0 and X if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            # The command's name, in parentheses, may hold anything: count from the last one.
            state, parent = stat.read().rpartition(b")")[2].split(maxsplit=2)[:2]
    except (OSError, ValueError):
        return 0, b"X"
    return int(parent), state


def send_signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # gone meanwhile, or another user's (sudo)
            pass


class Launcher:
    """Runs one command, in a process of its own."""

    def __init__(
        self, parent_pid: int, grace_s: float, core_limit: int, channel: socket | None = None
    ) -> None:
        """`channel`: a non-blocking socket to ralph, for stop requests and for the status. None: a signal requests a
        stop, and the exit code of this process is the status.
        """
        self._parent_pid = parent_pid
        self._grace_s = grace_s
        self._core_limit = core_limit
        self._channel = channel
        self._stop_signals = _stop_signals()
        self._awaited = {*self._stop_signals, signal.SIGCHLD, *([signal.SIGIO] if channel else [])}
        self._is_told_everything = False
        self._command_pid = 0
        self._status: int | None = None
        self._is_asked_to_stop = False
        self._is_ralph_gone = False
        self.is_all_gone = True
        """False when something that the command started could not be killed."""

    def run(self, command: list[bytes] | list[str], environment: Mapping[bytes, bytes] | None = None) -> int:
        """Runs the command.

        Returns its status once nothing of it is left. `environment`: the command's; None: this process's.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        expect_the_defaults()
        self._tie_to_parent()
        self._hear_channel()
        if not (self.is_orphaned() or self._is_asked_to_stop or signal.sigpending() & self._stop_signals):
            self.say(STARTING)
            try:
                self._command_pid = _start(command, environment, self._core_limit)
            except OSError as error:
                return not_started(error)
            self._supervise()
        if self._status is None:
            return 128 + signal.SIGTERM
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _tie_to_parent(self) -> None:
        is_adopter = prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._is_told_everything = prctl(PR_SET_PDEATHSIG, signal.SIGTERM) and is_adopter

        if self._channel is not None:
            self._is_told_everything &= _tells_by_signal(self._channel)

    def is_orphaned(self) -> bool:
        """Whether ralph is gone, so that the status has no reader."""
        return self._is_ralph_gone or os.getppid() != self._parent_pid

    def say(self, words: bytes) -> None:
        """Sends `words` over the channel, if there is a channel and ralph still reads it."""
        if self._channel is not None:
            try:
                self._channel.send(words)
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
        """The launcher's loop. Each turn collects children that have ended, does the step that is due, and waits for a
        signal or for the next step.
        """
        plan: _Plan = ()
        steps, due_s = iter(plan), _FOR_EVER_S
        while self._reap():
            self._hear_channel()
            now_s = time.monotonic()
            previous, plan = plan, self._revised(plan)
            if plan is not previous:
                steps, due_s = iter(plan), now_s
            if now_s >= due_s:
                step = next(steps, None)
                if step is None:
                    self.is_all_gone = False
                    return
                number, patience_s = step
                due_s = now_s + patience_s
                if not self._signal_tree(number):
                    steps, due_s = iter(_WITHOUT_PATIENCE), now_s
            self._wait(due_s - now_s)

    def _revised(self, plan: _Plan) -> _Plan:
        """The plan for ending the tree. A plan is made when the command has ended or a stop was requested. If the
        parent is gone, the plan for orphans replaces it.

        An empty plan lets the command run.
        """
        if self.is_orphaned():
            return _FOR_ORPHANS
        if plan:
            return plan
        if self._status is not None:
            return _FOR_LEFTOVERS
        if self._is_asked_to_stop:
            return ((signal.SIGTERM, self._grace_s), *_WITHOUT_PATIENCE)
        return plan

    def _wait(self, limit_s: float) -> None:
        take = _next_signal if self._is_told_everything else _next_signal_by_looking
        if take(self._awaited, limit_s) in self._stop_signals:
            self._is_asked_to_stop = True

    def _reap(self) -> bool:
        """Reaps ended children, adopted ones included, and keeps the command's status. False: no child is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._command_pid:
                    self._status = status
        except ChildProcessError:
            return not _has_process_tree() and self._is_group_alive()

    def _is_group_alive(self) -> bool:
        """Whether the command's process group is alive. This is the only check on a system where orphans are not
        adopted.
        """
        try:
            os.killpg(self._command_pid, 0)
        except OSError:
            return False
        return True

    def _signal_tree(self, number: int) -> bool:
        """Signals the whole tree. Returns False if it has too many processes to signal and wait for each of them."""
        if not _has_process_tree():
            self._signal_group(number)
        elif number == signal.SIGKILL:
            kill_below(os.getpid())
        elif number:
            tree = tree_below(children_of(os.getpid()), _MOST_ASKED)
            send_signal(tree, number)
            return len(tree) <= _MOST_ASKED
        return True

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._command_pid, number)
        except OSError:
            pass


def _has_process_tree() -> bool:
    return os.path.isdir("/proc/self/task")


def _stop_signals() -> set[int]:
    """The stop signals, without those that ralph was started to ignore."""
    asked = {number for number in (signal.SIGINT, signal.SIGHUP) if not _is_ignored(number)}
    return {signal.SIGTERM, *asked}


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def expect_the_defaults() -> None:
    """Give signals the behaviour that a program expects, for the command to inherit."""
    # SIGCHLD ignored, as some parents leave it, would hide the status. The interpreter ignores SIGPIPE: `yes | head`
    # would complain.
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if not _is_ignored(signal.SIGINT):  # or the interpreter's handler would run in the child
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _tells_by_signal(channel: socket) -> bool:
    """Have the kernel send SIGIO when data arrives over the channel or the channel ends. Returns False if it cannot."""
    import fcntl  # noqa: PLC0415 - only where there is a channel

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
    """Poll for a signal. Returns None early, so that the caller looks at the rest: on macOS no wait for signals
    has a timeout.
    """
    time.sleep(min(limit_s, _LOOK_EVERY_S))
    for number in signal.sigpending() & awaited:
        return signal.sigwait({number})
    return None


def _start(
    command: list[bytes] | list[str], environment: Mapping[bytes, bytes] | None, core_limit: int
) -> int:
    """Start the command in a session of its own. Returns its pid. Raises OSError when there is no process left for it."""
    # Not posix_spawn: a Python that was built against an old glibc has no new session there.
    pid = forked()
    if pid == 0:
        _become(command, environment, core_limit)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # or a reader of the output would wait for us
        os.dup2(nowhere, descriptor)
    return pid


def forked() -> int:
    """Calls `os.fork`, repeatedly for up to a second if the machine is short of processes. Raises OSError."""
    for pause_s in _FORK_PAUSES_S:
        try:
            return os.fork()
        except OSError:
            time.sleep(pause_s)
    return os.fork()


def not_started(error: OSError, output: int = 2) -> int:
    """Report in the command's output that it was not started. Returns the exit status for that."""
    reason = f"this machine has no process left ({error.strerror})"
    os.write(output, f"{NOT_STARTED}{reason}. That passes: try again\n".encode())
    return TRY_AGAIN


def _become(
    command: list[bytes] | list[str], environment: Mapping[bytes, bytes] | None, core_limit: int
) -> None:
    status = 127
    try:
        os.setsid()
        if core_limit:
            _allow_core_dumps(core_limit)
        # Unblock all signals: whoever started ralph may have blocked others. Those sent meanwhile take effect
        # here.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # The caller has decided which shell it is.
        if environment is None:
            os.execvp(command[0], command)  # noqa: S606 - see above
        else:
            os.execvpe(command[0], command, environment)  # noqa: S606 - see above
    except OSError as error:
        os.write(2, os.fsencode(command[0]) + f": {error.strerror}\n".encode())
        status = 127 if isinstance(error, FileNotFoundError) else 126
    finally:
        os._exit(status)


def _allow_core_dumps(core_limit: int) -> None:
    import resource  # noqa: PLC0415 - most commands had no such limit

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (core_limit, most))


def main(arguments: list[str]) -> int:
    parent_pid, grace_s, character_type, core_limit, *command = arguments
    # The interpreter sets this variable at its start (PEP 538); the command gets the value from before.
    if character_type:
        os.environ["LC_CTYPE"] = character_type
    else:
        os.environ.pop("LC_CTYPE", None)
    return Launcher(int(parent_pid), float(grace_s), int(core_limit)).run(command)


if __name__ == "__main__":
    # Exit at once: a regular shutdown of the interpreter would cost every command 3 ms, and nothing is left to
    # write.
    os._exit(main(sys.argv[1:]))
