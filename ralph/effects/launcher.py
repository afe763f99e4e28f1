# pathlib and contextlib would double the start-up that every command pays.
# ruff: noqa: PTH112, PTH123, PTH208, SIM105
"""Supervises one command so that nothing it starts outlives it; refuses to know anything else of ralph.

Run by path as a script of its own (`python -I -S launcher.py PARENT_PID GRACE_S LC_CTYPE COMMAND...`), so it
imports little: its start-up is part of every command. On Linux it adopts whatever the command orphans (a daemon made
with `setsid` and a double fork too), and dies with its parent, taking the tree along. Elsewhere it can reach
only the command's process group.

Exits with the command's status, 128 + n for signal n.
"""

from __future__ import annotations

import os
import signal
import sys
import time

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

_POLL_S = 0.005
# What still runs when the command ends may finish by itself (`exec > >(tee log)`), is asked, then made to.
_FINISH_S = 0.1
_ASK_S = 0.2
# SIGKILL is obeyed within milliseconds, but for a process stuck in the kernel: do not wait for that one.
_KILL_S = 2.0
# The parent is looked at this often. Where there is no parent-death signal (macOS) nothing else tells of its end; and
# where there is one, Python sees a signal that comes in the moment before a blocking wait only when that wait ends.
_PARENT_CHECK_S = 0.25


class _StopRequested(Exception):  # noqa: N818 - it is a request, not an error
    pass


def prctl(option: int, value: int) -> bool:
    """Linux only; False elsewhere, or when the kernel refuses."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # noqa: PLC0415 - 3 ms that only a process with children pays

    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)


def children_of(pid: int) -> list[int]:
    """Direct children, zombies included. Empty where there is no /proc."""
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


def tree_below(roots: list[int]) -> list[int]:
    """The roots and all their descendants, parents first."""
    tree = dict.fromkeys(roots)
    generation = roots
    while generation:
        generation = [child for pid in generation for child in children_of(pid) if child not in tree]
        tree.update(dict.fromkeys(generation))
    return list(tree)


def send_signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # gone meanwhile, or another user's (sudo)
            pass


class _Supervisor:
    def __init__(self, parent_pid: int, grace_s: float) -> None:
        self._parent_pid = parent_pid
        self._grace_s = grace_s
        self._shell_pid = 0
        self._status: int | None = None
        self._was_asked_to_stop = False

    def run(self, command: list[str]) -> int:
        signal.signal(signal.SIGTERM, self._request_stop)
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # ignored, as some parents leave it, it would hide the status
        try:
            self._tie_to_parent()
            self._shell_pid = _start(command)
            while self._status is None:
                self._reap(block=True)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._end_leftovers()
        except _StopRequested:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._stop()
        if self._status is None:
            return 128 + signal.SIGTERM
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _tie_to_parent(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.signal(signal.SIGALRM, self._check_parent)
        signal.setitimer(signal.ITIMER_REAL, _PARENT_CHECK_S, _PARENT_CHECK_S)
        if self._is_orphaned():  # it died before the kernel was told to say so
            raise _StopRequested

    def _request_stop(self, _number: int, _frame: object) -> None:
        """Once. The kernel repeats its signal for each thread of the parent that dies, and a second exception, while
        the first one is dealt with, would end us and leave the command alone.
        """
        if not self._was_asked_to_stop:
            self._was_asked_to_stop = True
            raise _StopRequested

    def _check_parent(self, number: int, frame: object) -> None:
        if self._is_orphaned():
            self._request_stop(number, frame)

    def _is_orphaned(self) -> bool:
        return os.getppid() != self._parent_pid

    def _end_leftovers(self) -> None:
        if not self._wait_until_gone(_FINISH_S):
            self._signal_tree(signal.SIGTERM)
            if not self._wait_until_gone(_ASK_S):
                self._kill()

    def _stop(self) -> None:
        if not self._is_orphaned():
            self._signal_tree(signal.SIGTERM)
            if self._wait_until_gone(self._grace_s):
                return
        self._kill()

    def _kill(self) -> None:
        deadline_s = time.monotonic() + _KILL_S
        while time.monotonic() < deadline_s:
            self._signal_tree(signal.SIGKILL)
            if self._wait_until_gone(_POLL_S):
                return

    def _wait_until_gone(self, limit_s: float) -> bool:
        """Ends early, False, when nobody is left to wait for us."""
        was_orphaned = self._is_orphaned()
        deadline_s = time.monotonic() + limit_s
        while True:
            if not self._reap(block=False):
                return True
            if time.monotonic() >= deadline_s or self._is_orphaned() != was_orphaned:
                return False
            time.sleep(_POLL_S)

    def _reap(self, *, block: bool) -> bool:
        """Collect ended children, the orphans among them; remember how the command ended. False: none are left.

        With `block`, until the command itself has ended.
        """
        try:
            while True:
                pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
                if pid == self._shell_pid:
                    self._status = status
                if pid == 0 or (block and pid == self._shell_pid):
                    return True
        except ChildProcessError:
            return not _has_process_tree() and self._is_group_alive()

    def _is_group_alive(self) -> bool:
        """Where orphans are not adopted, the group is all that can be asked about."""
        try:
            os.killpg(self._shell_pid, 0)
        except OSError:
            return False
        return True

    def _signal_tree(self, number: int) -> None:
        if _has_process_tree():
            send_signal(tree_below(children_of(os.getpid())), number)
            return
        try:
            os.killpg(self._shell_pid, number)
        except OSError:
            pass


def _has_process_tree() -> bool:
    return os.path.isdir("/proc/self/task")


def _start(command: list[str]) -> int:
    """Start the command in a session of its own, with the signals a program expects. Returns its pid."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM})
    pid = os.fork()
    if pid == 0:
        _become(command)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # or a reader of the output would wait for us
        os.dup2(nowhere, descriptor)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGALRM})
    return pid


def _become(command: list[str]) -> None:
    status = 127
    try:
        os.setsid()
        # The interpreter ignores SIGPIPE, and children would inherit it: `yes | head` would complain.
        for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGALRM})
        os.execvp(command[0], command)  # noqa: S606 - which shell it is was decided by who asked
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        status = 127 if isinstance(error, FileNotFoundError) else 126
    finally:
        os._exit(status)


def main(arguments: list[str]) -> int:
    parent_pid, grace_s, character_type, *command = arguments
    # The interpreter sets this variable at its start (PEP 538): the command gets what it was given.
    if character_type:
        os.environ["LC_CTYPE"] = character_type
    else:
        os.environ.pop("LC_CTYPE", None)
    return _Supervisor(int(parent_pid), float(grace_s)).run(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
