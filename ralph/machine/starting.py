"""Starts threads, jobs and processes. If the machine is short of a resource for that, such as a free thread, raises
ShortageError. Other errors are not changed. Only `patiently` tries again.
"""

from __future__ import annotations

import math
import os
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from ralph.machine import restriction
from ralph.values.shortage import ShortageError, start_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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
