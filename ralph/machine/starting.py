"""Starts threads, jobs and processes, and kills the child processes that these leave behind. If the machine is short of a resource
for a start, such as a free thread, raises ShortageError, and only `patiently` tries again. Also makes the environment of commands.
"""

from __future__ import annotations

import math
import os
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from ralph.machine import launcher, restriction
from ralph.values.outcome import ShortageError, start_error

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence
    from pathlib import Path
    from subprocess import Popen

    from ralph.values.ports import Clock, Waiter

T = TypeVar("T")

PATIENCE_S = 2.0
"""The seconds for which a run that is starting waits for a free resource. Most short peaks of other programs end
sooner."""
_TRY_EVERY_S = 0.05
# Nothing tells that a thread has died.
_LOOK_AT_THREAD_S = 1.0
IDLE_THREAD = "ralph-idle"
"""The name of a thread that waits for a job."""


def start_thread(target: Callable[..., object], *args: object, name: str) -> threading.Thread:
    """Starts a daemon thread. Raises ShortageError if the machine has no free thread."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    _start(thread)
    return thread


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError:  # for a thread that was not started before, this error has no other cause
        raise ShortageError("thread") from None


class ThreadJob:
    """A function that runs on a thread beside the others. The thread may have run other jobs before."""

    def __init__(
        self, target: Callable[..., object], arguments: Sequence[object], name: str, thread: threading.Thread
    ) -> None:
        self.name = name
        self._thread = thread
        self._work: tuple[Callable[..., object], Sequence[object]] | None = target, arguments
        self._is_running = threading.Lock()
        self._is_running.acquire()

    def is_alive(self) -> bool:
        """Whether the job has not ended yet. A thread may end without a job's end, if memory runs out."""
        return self._is_running.locked() and self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Waits for the end of the job, but at most `timeout_s` seconds. None means no limit."""
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while self.is_alive() and (left_s := until_s - time.monotonic()) > 0:
            if self._is_running.acquire(timeout=min(left_s, _LOOK_AT_THREAD_S)):
                self._is_running.release()

    def run(self) -> None:
        """Does the work, once. What it needs is let go before, because a job may be kept for longer."""
        assert self._work is not None  # noqa: S101 - a worker runs each job once
        (target, arguments), self._work = self._work, None
        target(*arguments)

    def end(self) -> None:
        self._is_running.release()


def start_job(target: Callable[..., object], *args: object, name: str) -> ThreadJob:
    """Runs `target` on a thread that has ended its earlier jobs, or on a new daemon thread, which takes 0.2 ms. Raises
    ShortageError if the machine has none. The job must leave nothing behind in its thread, such as restrictions. If it raises,
    its thread ends.
    """
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        _start(worker)
    job = ThreadJob(target, args, name, worker)
    worker.jobs.put(job)
    return job


def end_idle_threads() -> None:
    """Ends the threads that wait for a job. Threads with a job stay, and wait for another one after that."""
    while _idle:
        _idle.pop().jobs.put(None)


class _Worker(threading.Thread):
    """A daemon thread that runs one job after another. Its name is that of its job."""

    def __init__(self) -> None:
        super().__init__(name=IDLE_THREAD, daemon=True)
        self.jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.name = job.name
            try:
                job.run()
                self.name = IDLE_THREAD
                _idle.append(self)  # before the job ends, so that who waits for its end finds this thread
            finally:
                job.end()
                del job  # what it holds is not needed while this thread waits


_idle: list[_Worker] = []
"""The threads that wait for a job. `append` and `pop` need no lock, because each is one step."""
# A forked process has none of these threads.
os.register_at_fork(after_in_child=_idle.clear)


def start_process(arguments: Sequence[str], **options: Any) -> Popen[bytes]:
    """As `subprocess.Popen`, but without `stdin` the process gets no input. Raises ShortageError and OSError."""
    import subprocess  # noqa: PLC0415 - 8 ms that only a run with processes pays

    try:
        return subprocess.Popen(arguments, **{"stdin": subprocess.DEVNULL, **options})
    except OSError as error:
        raise start_error(error) from None


def start_confined(arguments: Sequence[str], ruleset: int, program: bytes, **options: Any) -> Popen[bytes]:
    """As `start_process`, in a sandbox: a thread restricts itself (`restriction.restrict_thread`), starts the process, which
    inherits that, and ends. If it cannot restrict itself, raises OSError with the failed step as its `filename`.
    """
    restriction.prepare()
    result: list[Popen[bytes] | Exception] = []

    def start() -> None:
        try:
            restriction.restrict_thread(ruleset, program)
            result.append(start_process(arguments, **options))
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            result.append(error)

    start_thread(start, name="confined start").join()
    (started,) = result
    if isinstance(started, Exception):
        raise started
    return started


def patiently(start: Callable[[], T], waiter: Waiter, clock: Clock, within_s: float = PATIENCE_S) -> T:
    """Calls `start`, and again for up to `within_s` seconds after each ShortageError. Raises the last one, and Interrupted."""
    until_s = clock.now_s() + within_s
    while True:
        try:
            return start()
        except ShortageError as error:
            if clock.now_s() >= until_s:
                raise
            waiter.wait(
                waiter.mailbox(),
                until_s=min(until_s, clock.now_s() + _TRY_EVERY_S),
                waiting_for=f"a {error.missing} of this machine",
            )


# A command that would ask a question, show pages or open an editor must not wait, because nobody is there to answer.
_NOBODY_IS_THERE = {
    "GIT_TERMINAL_PROMPT": "0",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "SSH_ASKPASS_REQUIRE": "never",
    "TERM": "dumb",
}
# A credential program in the environment is kept, because CI systems have one. No desktop dialogue is opened.
_DEFAULTS = {"GIT_ASKPASS": "false"}

# States of proc_pid_stat(5).
_IS_STOPPED, _HAS_ENDED = (b"T", b"t"), (b"Z", b"X", b"x")

_protected = False


def environment_for_commands(base: Mapping[str, str]) -> dict[str, str]:
    """`base` with variables that keep commands from waiting for a person. It must contain no credentials. Left out are an empty
    name, which Python's posix_spawn rejects, and CDPATH, so that `cd` leads where rules take it to lead.
    """
    environment = _DEFAULTS | dict(base) | _NOBODY_IS_THERE
    return {name: value for name, value in environment.items() if name not in ("", "CDPATH")}


def protect_this_process() -> None:
    """Prepares this process for having children, before the first one; later calls do nothing. On Linux, it adopts its orphaned
    descendants, so that it can end them, and becomes non-dumpable, so that no child can read its memory or environment.
    """
    global _protected  # noqa: PLW0603 - it is the process's state, not an object's
    if not _protected:
        _protected = True
        launcher.prctl(launcher.PR_SET_CHILD_SUBREAPER, 1)
        launcher.prctl(launcher.PR_SET_DUMPABLE, 0)


class ProcessFacts(Struct, frozen=True):
    """Facts about a process, from /proc/PID/stat (proc_pid_stat(5))."""

    is_stopped: bool
    parent: int
    group: int
    has_terminal: bool
    foreground_group: int
    """The id of the process group in the foreground of the terminal. -1 without a terminal."""


def facts_of(pid: int) -> ProcessFacts | None:
    """The facts about a process. None if the process does not exist or has ended, and on systems without /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            # The command's name, in parentheses, may hold anything: count from the last one.
            fields = stat.read().rpartition(b")")[2].split()
        state, (parent, group, _, terminal, foreground) = fields[0], map(int, fields[1:6])
    except (OSError, ValueError, IndexError):
        return None
    if state in _HAS_ENDED:
        return None
    return ProcessFacts(state in _IS_STOPPED, parent, group, terminal != 0, foreground)


class OwnedProcess:
    """A process in a session of its own (setsid(2)), with all that it starts. Must be started on the main thread: the kernel may
    end it with the thread that started it. Only one may run at a time: every orphan that ralph adopts counts as its descendant.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        kept_descriptors: Sequence[int] = (),
    ) -> None:
        """Starts the process, with ralph's own standard output and error and no input. Raises ShortageError and OSError."""
        protect_this_process()
        self._others = set(launcher.children_of(os.getpid()))
        self._process = start_process(
            arguments,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
            pass_fds=kept_descriptors,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_end(self) -> int:
        """Blocks until the process has ended. Returns its exit code, or -n if signal n killed it."""
        return self._process.wait()

    def send(self, signal_number: int) -> None:
        """Signals this process, and not what it has started. Does nothing if it has ended."""
        self._process.send_signal(signal_number)

    def kill_what_is_left(self) -> bool:
        """Kills the process, its descendants, and adopted orphans. True if there was nothing to kill. What is just starting can
        escape, so call this again until it returns True.
        """
        # Check this first: the orphans of a process become our children only once it is dead.
        is_running = self._process.returncode is None
        children = reaped_children(self._others, self._process.pid)
        if children:
            launcher.kill_below(os.getpid(), self._others)
        if is_running:  # without /proc it is not among the children that were found
            self._process.kill()
        return not children and not is_running


def reaped_children(others: Container[int], kept: int | None = None) -> list[int]:
    """Reaps the ended children of this process, but for `others`, and returns the rest. Other code reaps `kept`, which remains."""
    mine = [pid for pid in launcher.children_of(os.getpid()) if pid not in others]
    return [pid for pid in mine if pid == kept or not _is_reaped(pid)]


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
