"""Jobs on threads that are used again (`ralph/machine/starting.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest

from ralph.machine import starting
from ralph.machine.starting import IDLE_THREAD, end_idle_threads, start_job
from ralph.values.shortage import ShortageError
from tests.patience import wait_until, within_s

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_idle_threads() -> Iterator[None]:
    """No thread of another test can end its job during this one."""

    def none_is_left() -> bool:
        end_idle_threads()
        return not any(isinstance(thread, starting._Worker) for thread in threading.enumerate())

    wait_until(none_is_left)
    yield
    end_idle_threads()


def thread_of(job_name: str) -> int:
    """Runs a job and returns the id of its thread."""
    idents: list[int] = []
    job = start_job(lambda: idents.append(threading.get_ident()), name=job_name)
    job.join(within_s())
    assert not job.is_alive()
    return idents[0]


def test_the_next_job_runs_on_the_thread_that_ended_the_last_one() -> None:
    assert len({thread_of(f"job {number}") for number in range(5)}) == 1


def test_a_job_never_waits_for_another_one() -> None:
    go_on = threading.Event()
    waiting = [start_job(go_on.wait, within_s(), name="waits") for _ in range(3)]
    thread_of("comes later")
    assert [job.is_alive() for job in waiting] == [True] * 3
    go_on.set()
    for job in waiting:
        job.join(within_s())
        assert not job.is_alive()


def test_a_thread_has_the_name_of_its_job_and_none_while_it_waits_for_one() -> None:
    names: list[str] = []
    start_job(lambda: names.append(threading.current_thread().name), name="reads").join(within_s())
    start_job(lambda: names.append(threading.current_thread().name), name="writes").join(within_s())
    assert names == ["reads", "writes"]
    assert IDLE_THREAD in {thread.name for thread in threading.enumerate()}


def test_a_join_ends_when_its_time_is_up() -> None:
    go_on = threading.Event()
    job = start_job(go_on.wait, within_s(), name="waits")
    job.join(0.01)
    assert job.is_alive()
    go_on.set()


def test_a_job_that_raises_ends_and_its_thread_is_not_used_again(monkeypatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _failure: told.set())

    def fails() -> None:
        raise ValueError("no")

    job = start_job(fails, name="fails")
    job.join(within_s())
    assert not job.is_alive()
    assert told.wait(within_s())
    assert not starting._idle
    assert thread_of("next")


def test_a_thread_that_dies_before_its_job_ends_the_job(monkeypatch) -> None:
    """As if memory had run out."""
    monkeypatch.setattr(starting._Worker, "run", lambda _worker: None)
    job = start_job(lambda: None, name="never")
    job.join()
    assert not job.is_alive()


def test_neither_a_thread_that_waits_nor_a_job_that_has_ended_keeps_what_it_worked_on() -> None:
    class Large:
        """An object that a job works on."""

    large = Large()
    gone = weakref.ref(large)
    job = start_job(lambda _large: None, large, name="works")
    job.join(within_s())
    del large
    until_s = time.monotonic() + within_s()
    while gone() is not None:
        assert time.monotonic() < until_s
        time.sleep(0.001)
    assert not job.is_alive()


def test_idle_threads_end_when_they_are_told_to() -> None:
    thread_of("first")
    end_idle_threads()
    until_s = time.monotonic() + within_s()
    while IDLE_THREAD in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_without_a_free_thread_a_shortage_is_raised(monkeypatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ShortageError):
        start_job(lambda: None, name="none")


def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    thread_of("of the parent")
    pid = os.fork()
    if pid == 0:
        ran: list[int] = []
        try:
            start_job(ran.append, 1, name="of the child").join(within_s())
        finally:
            os._exit(0 if ran else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_process_reads_nothing_of_what_is_meant_for_ralph() -> None:
    script = "from ralph.machine.starting import start_process; start_process(['cat']).wait()"
    assert subprocess.check_output([sys.executable, "-c", script], input=b"for ralph") == b""
