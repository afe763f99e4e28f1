"""Jobs on threads that are used again (`ralph/machine/starting.py`)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest

from ralph.machine import launcher, starting
from ralph.machine.starting import IDLE_THREAD, end_idle_threads, start_job
from ralph.values.outcome import ShortageError
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


linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")


@linux_only
def test_the_first_command_makes_this_process_undumpable_and_an_adopter() -> None:
    """A child of an ordinary user cannot read the memory and the environment of a non-dumpable process
    (prctl(2)).
    """
    script = textwrap.dedent("""
        import ctypes, os
        from pathlib import Path
        from ralph.machine.command_supervisor import CommandSupervisor
        libc = ctypes.CDLL(None)
        def state():
            adopts = ctypes.c_int()
            libc.prctl(37, ctypes.byref(adopts), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
            return libc.prctl(3, 0, 0, 0, 0), adopts.value  # PR_GET_DUMPABLE
        print(*state())
        environment = {"PATH": os.environ["PATH"]}
        command = CommandSupervisor(environment).start(["true"], cwd=Path("/"), environment=environment, grace_s=1)
        command.wait_for_end()
        command.close()
        print(*state())
    """)
    assert subprocess.check_output([sys.executable, "-c", script]).split() == [b"1", b"0", b"0", b"1"]


def adopts_and_is_dumpable() -> tuple[bool, bool]:
    adopts, libc = ctypes.c_int(), ctypes.CDLL(None)
    libc.prctl(37, ctypes.byref(adopts), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    return bool(adopts.value), bool(libc.prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE


@linux_only
def test_this_process_adopts_orphans_from_its_first_command_on_and_its_memory_is_private() -> None:
    starting.protect_this_process()
    assert adopts_and_is_dumpable() == (True, False)


@linux_only
def test_what_a_test_started_changes_nothing_for_the_tests_after_it() -> None:
    """The test above has made this process an adopter. Nobody would reap what it adopts: Slurm, for one, waits for that. The
    user, who may not be root, must be able to look at it in /proc.
    """
    assert adopts_and_is_dumpable() == (False, True)


def test_what_would_ask_somebody_is_answered_in_the_environment() -> None:
    given = {"PATH": "/bin", "PAGER": "more", "CI": "1", "GIT_ASKPASS": "mine", "CDPATH": "/elsewhere"}
    made = starting.environment_for_commands(given)
    assert (made["PAGER"], made["EDITOR"], made["TERM"]) == ("cat", "false", "dumb")
    assert (made["CI"], made["PATH"], made["GIT_ASKPASS"]) == ("1", "/bin", "mine")
    assert "CDPATH" not in made, "rules take the word of cd as it is"
    assert starting.environment_for_commands({})["GIT_ASKPASS"] == "false"


@linux_only
def test_children_are_found_with_and_without_the_kernels_list(monkeypatch) -> None:
    opened = os.open

    def without_lists(path: str, flags: int) -> int:
        return opened(f"{path}-missing" if path.endswith("/children") else path, flags)

    with subprocess.Popen(["sleep", "99"]) as child:
        listed = launcher.children_of(os.getpid())
        assert child.pid in listed
        monkeypatch.setattr(os, "open", without_lists)
        assert sorted(launcher.children_of(os.getpid())) == sorted(listed)
        child.kill()
    assert launcher.children_of(child.pid) == [], "it is gone"
