"""An executor's lock lives as long as its process, and falls to one survivor. Silence and pauses are short here: they
are parameters.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.fleet.claims import LockState, key_of, take_lock
from ralph.fleet.database import StoreError, database_of, prepare
from tests.patience import wait_until, within_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ralph.fleet.claims import ExecutorLock
    from tests.services.postgres import PostgresServer

TOP = Path(__file__).parents[2]
# Holds a lock until it is lost. Its pulse is short, so that the test need not wait.
HOLD = """
import sys
from ralph.fleet.database import database_of, prepare
from ralph.fleet.claims import take_lock
database = database_of(sys.argv[1], {"RALPH_STATE_DIR": sys.argv[2]})
prepare(database)
lock = take_lock(database, sys.argv[3], tell=print, pulse_s=0.05)
print("held", flush=True)
lock.lost.wait()
print(lock.confirm().value, flush=True)
"""


@pytest.fixture
def holding(tmp_path) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """Starts a process that has the lock of an executor."""
    with ExitStack() as started:

        def start(url: str, executor_id: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", HOLD, url, str(tmp_path), executor_id],
                cwd=TOP,
                stdout=subprocess.PIPE,
                text=True,
            )
            started.enter_context(process)
            started.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            return process

        yield start


@pytest.fixture
def taking(tmp_path) -> Iterator[Callable[..., Any]]:
    """Takes a lock in this process. On Postgres that is a session like another process' one."""
    with ExitStack() as locks:

        def take(url: str, executor_id: str, **settings: Any) -> ExecutorLock:
            database = database_of(url, {"RALPH_STATE_DIR": str(tmp_path)})
            prepare(database)
            given: dict[str, Any] = {"tell": lambda line: None, "pulse_s": 0.05, "pause_s": 0} | settings
            return locks.enter_context(closing(take_lock(database, executor_id, **given)))

        yield take


def taken_by(lock: ExecutorLock, executor_id: str) -> bool:
    with lock.try_take_over(executor_id) as is_held:
        return is_held


def sessions(postgres: PostgresServer) -> list[tuple[int, str]]:
    """The process and the time of the last change of each session that has an advisory lock."""
    return postgres.administer(
        "SELECT pid, state_change::text FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'advisory' AND classid <> 0 ORDER BY pid"
    )


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_the_lock_of_a_killed_process_falls_to_a_survivor(kind, request, tmp_path, holding, taking) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{tmp_path}/fleet/db"
    process, survivor = holding(url, "killed"), taking(url, "survivor")
    assert survivor.gone(["killed", "survivor", "never-there"]) == ["never-there"]
    assert not taken_by(survivor, "killed")
    assert not taken_by(survivor, "survivor")
    process.kill()
    wait_until(lambda: survivor.gone(["killed"]) == ["killed"])
    assert taken_by(survivor, "killed")


def test_a_process_that_was_stopped_for_too_long_wakes_without_its_lock(
    postgres_url, holding, taking
) -> None:
    process = holding(postgres_url, "zombie")
    usual, impatient = taking(postgres_url, "usual"), taking(postgres_url, "impatient", silence_s=0.5)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: impatient.gone(["zombie"]) == ["zombie"])
    assert usual.gone(["zombie"]) == []  # it was not silent for 30 s
    assert not taken_by(usual, "zombie")
    assert taken_by(impatient, "zombie")
    # The survivor is done and has given the lock back: the lock is free when the process wakes.
    process.send_signal(signal.SIGCONT)
    assert process.stdout.readline() == "lost\n"


def test_a_living_executor_asks_something_at_each_pulse(postgres, postgres_url, taking) -> None:
    taking(postgres_url, "living")
    [before] = sessions(postgres)
    wait_until(lambda: sessions(postgres)[0][1] > before[1])
    assert sessions(postgres)[0][0] == before[0]


def test_of_two_survivors_one_takes_over(postgres_url, taking) -> None:
    survivors = [taking(postgres_url, f"survivor-{number}") for number in range(2)]
    both = threading.Barrier(2, timeout=within_s())
    won: list[bool] = []

    def race(survivor: ExecutorLock) -> None:
        for number in range(5):
            both.wait()
            with survivor.try_take_over(f"gone-{number}") as is_held:
                won.append(is_held)
                both.wait()

    threads = [threading.Thread(target=race, args=[survivor]) for survivor in survivors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 5 + [True] * 5


def test_a_session_that_an_administrator_ended_is_replaced(postgres, postgres_url, taking) -> None:
    lock = taking(postgres_url, "ended", pause_s=1000)
    wait_until(lambda: lock.confirm() is LockState.HELD)
    [(before, _)] = sessions(postgres)
    postgres.administer(f"SELECT pg_terminate_backend({before}, 5000)")
    wait_until(lambda: (found := sessions(postgres)) and found[0][0] != before)
    wait_until(lambda: lock.confirm() is LockState.HELD)
    assert not lock.lost.is_set()


def test_a_lock_whose_server_missed_the_end_of_the_connection_is_taken_from_the_former_session(
    postgres, postgres_url, taking
) -> None:
    lock = taking(postgres_url, "cut")
    [(before, _)] = sessions(postgres)
    number = lock._connection.fileno()
    # The connection stays open, as after the loss of a network, but this process cannot use it any more.
    with socket.socket(fileno=os.dup(number)), socket.socket() as dead:
        os.dup2(dead.fileno(), number)
        wait_until(lambda: (found := sessions(postgres)) and found[0][0] != before)
        wait_until(lambda: lock.confirm() is LockState.HELD)


def test_after_an_outage_own_locks_come_first_and_nobody_is_taken_over_for_a_while(
    postgres: PostgresServer, postgres_url, taking
) -> None:
    told: list[str] = []
    lock = taking(postgres_url, "worker", tell=told.append)
    other = taking(postgres_url, "patient", pause_s=1e9)
    assert lock.gone(["absent"]) == ["absent"]
    assert other.gone(["absent"]) == []  # the server has just started
    lock._pause_s = 1e9
    postgres.stop()
    wait_until(lambda: lock.confirm() is LockState.UNKNOWN)
    postgres.start()
    wait_until(lambda: lock.confirm() is LockState.HELD)
    wait_until(lambda: len(sessions(postgres)) == 2)
    assert lock.gone(["absent"]) == []
    assert not taken_by(lock, "absent")
    wait_until(lambda: len(told) == 2)
    assert told[0].startswith(f"waiting for the store at 127.0.0.1:{postgres.port}")
    assert told[1].endswith("is back")


def test_an_id_that_is_in_use_is_refused(tmp_path, taking) -> None:
    url = f"sqlite:///{tmp_path}/fleet/db"
    taking(url, "one")
    with pytest.raises(StoreError, match="taken"):
        taking(url, "one")
    for bad in ("", "../one", "a/b"):
        with pytest.raises(StoreError, match="is not the id"):
            taking(url, bad)


def test_files_of_killed_processes_do_not_pile_up(tmp_path, taking) -> None:
    url = f"sqlite:///{tmp_path}/fleet/db"
    first = taking(url, "first")
    (tmp_path / "fleet" / "executors" / "killed.lock").touch()
    taking(url, "second")
    assert {path.name for path in (tmp_path / "fleet" / "executors").iterdir()} == {
        "first.lock",
        "second.lock",
    }
    assert first.gone(["killed", "second"]) == ["killed"]


def test_a_lock_file_that_was_removed_before_it_was_locked_is_no_lock(tmp_path, taking, monkeypatch) -> None:
    url = f"sqlite:///{tmp_path}/fleet/db"
    first = taking(url, "first")
    file, lock, removals = tmp_path / "fleet" / "executors" / "raced.lock", fcntl.flock, [1]

    def removed_first(descriptor: int, operation: int) -> None:
        if removals:
            removals.pop()
            file.unlink()  # by the process that had this lock before
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with first.try_take_over("raced") as is_held:
        assert is_held
        assert first.gone(["raced"]) == []


def test_a_key_has_64_bits_with_a_sign_and_never_changes() -> None:
    """Workers of two versions have to see each other's locks."""
    assert key_of("executor") == KEY
    keys = [key_of(str(number)) for number in range(100)]
    assert min(keys) < 0 < max(keys)
    assert all(-(1 << 63) <= key < 1 << 63 for key in keys)


KEY = -2540976624432646333
