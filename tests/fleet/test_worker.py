"""Which sets the slots of a worker go to, whose jobs a slot takes over, and whose folders a worker removes."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from ralph.fleet import worker as worker_module
from ralph.fleet.claims import OpenSet
from ralph.fleet.database import database_of, prepare
from ralph.fleet.undelivered import lock_folder, machine_name, remove_left_folders
from ralph.fleet.worker import HAND_BACK_S, Slot, Supervisor, WorkOptions, _wanted, must_end_now
from ralph.machine.waiter import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class FakeEngine:
    """An engine in which other executors have begun workflows."""

    def __init__(self, pending: dict[str, list[str]]) -> None:
        self._pending = pending
        self.resumed: list[str] = []

    def pending(self) -> dict[str, list[str]]:
        return {executor: list(workflows) for executor, workflows in self._pending.items()}

    def resume(self, workflows: Sequence[str]) -> None:
        self.resumed += workflows


class FakeLock:
    """All executors seem to be gone, but only the locks of `free` can be taken."""

    executor_id = "ours"

    def __init__(self, free: set[str]) -> None:
        self._free = free

    def gone(self, executors: dict[str, list[str]]) -> list[str]:
        return list(executors)

    @contextmanager
    def try_take_over(self, executor: str) -> Iterator[bool]:
        yield executor in self._free


def options_at(place: Path) -> WorkOptions:
    database = database_of(None, {"RALPH_STATE_DIR": str(place)})
    return WorkOptions(database=database, environment={}, tell=lambda _line: None, slots=1)


def test_jobs_are_taken_over_only_under_the_lock_of_their_executor(tmp_path) -> None:
    slot = Slot(options_at(tmp_path), "s")
    engine = FakeEngine({"lives": ["s/a/1"], "gone": ["s/b/1", "s/c/1"]})
    forgotten: list[str] = []
    store = SimpleNamespace(executor_gone=forgotten.append)
    fakes = {"lock": FakeLock({"gone"}), "store": store, "folder": tmp_path / "executor", "_engine": engine}
    vars(slot).update(fakes)
    slot._take_over()
    assert (engine.resumed, forgotten) == (["s/b/1", "s/c/1"], ["gone"])


def a_set(
    name: str, *, due: int = 0, running: int = 0, open_jobs: int = 9, concurrency: int | None = None
) -> OpenSet:
    return OpenSet(
        name=name, open_jobs=open_jobs, due_jobs=due, running_jobs=running, concurrency=concurrency, workers=0
    )


def test_slots_are_spread_over_the_sets_that_have_something_to_do() -> None:
    assert sorted(_wanted([a_set("a", due=9), a_set("b", due=1)], [], 4)) == ["a", "a", "a", "b"]
    assert _wanted([a_set("a", due=9), a_set("b", due=9)], ["a", "a"], 3) == ["b"]
    assert _wanted([a_set("a", due=9)], ["a", "a"], 2) == []


def test_a_set_takes_no_more_slots_than_its_limit_lets_work() -> None:
    assert _wanted([a_set("a", due=100, concurrency=2), a_set("b", due=100)], [], 6).count("a") == 2


def test_a_set_whose_jobs_all_wait_is_watched_only_by_a_slot_that_nobody_else_needs() -> None:
    waits = a_set("waits", due=0)
    assert _wanted([waits, a_set("a", due=5)], [], 2) == ["a", "a"]
    assert sorted(_wanted([waits, a_set("a", due=1)], [], 3)) == ["a", "waits"]


def test_folders_of_living_executors_and_of_other_machines_stay(tmp_path) -> None:
    database = database_of(None, {"RALPH_STATE_DIR": str(tmp_path)})
    prepare(database)
    work = database.folder / "work"
    living = work / f"{machine_name()}-1-01234567"
    held = lock_folder(living)
    others = [work / "elsewhere-1-01234567", work / f"{machine_name()}-2-1-01234567"]
    gone = work / f"{machine_name()}-2-01234567"
    for ended in (*others, gone):  # the end of a process closes its descriptors
        os.close(lock_folder(ended))
    made_anew = work / f"{machine_name()}-3-01234567"
    made_anew.mkdir()
    assert gone.is_dir()
    remove_left_folders(database.folder)
    left = {path.name for path in work.iterdir() if path.is_dir()}
    assert left == {living.name, *(other.name for other in others)}
    os.close(held)


def test_a_drain_ends_although_a_git_host_never_answers() -> None:
    assert not must_end_now(1, HAND_BACK_S)
    assert must_end_now(1, HAND_BACK_S + 1)
    assert must_end_now(2, -1)


def blocked_signals() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def test_a_worker_that_was_just_told_to_stop_starts_no_slot_that_would_not_know_of_it(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a fork"))
    supervisor = Supervisor(options_at(tmp_path))
    supervisor._signals.append(signal.SIGTERM)
    supervisor._fork("s")
    assert (supervisor._slots, blocked_signals()) == ({}, set())


def test_a_worker_that_cannot_start_a_slot_still_hears_signals(tmp_path, monkeypatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "no process left")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        Supervisor(options_at(tmp_path))._fork("s")
    assert blocked_signals() == set()


def test_a_slot_ignores_what_a_terminal_sends_to_all_before_any_signal_can_reach_it(
    tmp_path, monkeypatch
) -> None:
    class BegunError(Exception):
        pass

    def begin(_parent: int, _number: int) -> None:
        raise BegunError

    monkeypatch.setattr(worker_module, "end_with_parent", begin)
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        with pytest.raises(BegunError):
            Slot(options_at(tmp_path), "s").run(1)
        ignored = {number for number in STOP_SIGNALS if signal.getsignal(number) is signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ignored == {*STOP_SIGNALS} - {signal.SIGTERM}
