"""Tests `kill_below` with simulated processes, which act between two looks at them. No process may still be running
when the first one is killed.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from ralph.machine import launcher

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = 2
MOST_LOOKS = 50
"""The maximum number of looks. A few are enough to stop all processes here."""


class Machine:
    """A table of processes. All are children of ROOT. A process stops at a SIGSTOP unless `at_stop` has another
    effect for it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = {ROOT: b"S"}
        self.at_stop: dict[int, Callable[[], None]] = {}
        self.at_read: Callable[[], None] = lambda: None
        self.looks = 0
        self.told: set[int] = set()
        self.moving_at_kill: set[int] | None = None
        monkeypatch.setattr(launcher, "_STOP_WITHIN_S", float("inf"))
        monkeypatch.setattr(launcher, "_LOOK_AGAIN_AFTER_S", 0)
        monkeypatch.setattr(launcher, "_parent_and_state", self._parent_and_state)
        monkeypatch.setattr(launcher, "send_signal", self._send_signal)
        self.of_others: set[int] = set()
        monkeypatch.setattr(launcher, "may_signal", lambda pid: pid not in self.of_others)
        really = os.listdir
        monkeypatch.setattr(os, "listdir", lambda path: self._names() if path == "/proc" else really(path))

    def _names(self) -> list[str]:
        self.looks += 1
        assert self.looks < MOST_LOOKS, "it never ends"
        return [*map(str, self.states), "self"]

    def _parent_and_state(self, pid: int) -> tuple[int, bytes]:
        self.at_read()
        state = self.states.get(pid)
        return (ROOT if pid != ROOT else 1, state) if state is not None else (0, b"X")

    def _send_signal(self, pids: list[int], number: int) -> None:
        for pid in [pid for pid in pids if pid in self.states]:
            if number == signal.SIGSTOP:
                self.told.add(pid)
                self.at_stop.get(pid, lambda: self.states.update({pid: b"T"}))()  # noqa: B023 - called here
            else:
                if self.moving_at_kill is None:
                    self.moving_at_kill = {one for one, state in self.states.items() if state in (b"R", b"S")}
                del self.states[pid]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_stopped_process_that_another_one_wakes_is_stopped_again(machine) -> None:
    woken, waker = 12, 11
    machine.states |= {woken: b"S", waker: b"R"}
    asked = iter(["", "", "its last act"])

    def wake() -> None:
        if next(asked):
            machine.states |= {woken: b"R", waker: b"T"}

    machine.at_stop[waker] = wake
    launcher.kill_below(ROOT)
    assert (machine.moving_at_kill, machine.states) == ({ROOT}, {ROOT: b"S"})


@pytest.mark.parametrize(("first_pid", "most_successors"), [(900, 0), (10, 50)], ids=["newest", "wrapped"])
def test_a_process_that_lives_for_a_few_looks_at_others_is_caught(
    machine, first_pid, most_successors
) -> None:
    """Each of its successors starts the next one after twenty reads of /proc. When the pids of a machine begin anew,
    the newest processes are the last in the list.
    """
    machine.states |= dict.fromkeys(range(100, 400), b"S") | {first_pid: b"R"}
    runner = [first_pid, 20]

    def run() -> None:
        pid, reads_left = runner
        if machine.states.get(pid) != b"R":
            return
        runner[1] = reads_left - 1
        if not runner[1]:
            del machine.states[pid]
            machine.states[pid + 1] = b"R"
            runner[:] = [pid + 1, 20]

    machine.at_read = run
    launcher.kill_below(ROOT)
    assert (machine.moving_at_kill, machine.states) == ({ROOT}, {ROOT: b"S"})
    assert runner[0] - first_pid <= most_successors


def test_a_process_that_waits_in_the_kernel_is_asked_once_and_not_waited_for(machine) -> None:
    """It may be about to return, or be a parent in vfork(2), which waits for its stopped child."""
    machine.states |= {10: b"D", 11: b"S"}
    machine.at_stop[10] = lambda: None
    launcher.kill_below(ROOT)
    assert (machine.told, machine.states) == ({10, 11}, {ROOT: b"S"})


def test_a_process_of_another_user_is_not_waited_for(machine) -> None:
    """Such a process, which sudo may have started, can neither be stopped nor killed."""
    machine.states |= {10: b"S", 11: b"S"}
    machine.of_others = {10}
    machine.at_stop[10] = lambda: None
    launcher.kill_below(ROOT)
    assert machine.told == {11}
