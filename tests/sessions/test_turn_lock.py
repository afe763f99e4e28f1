"""The lock file that another program shares with ralph."""

from __future__ import annotations

import fcntl
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from ralph.sessions.journal import FileTurnLock, TurnLockError
from ralph.values.ports import SignalReceived
from tests.fakes import FakeWaiter

if TYPE_CHECKING:
    from pathlib import Path


class ReleasingWaiter(FakeWaiter):
    """Releases the other program's lock after three waits."""

    def __init__(self, other: int) -> None:
        super().__init__()
        self._other = other

    def sleep(self, seconds: float, *, waiting_for: str) -> None:
        super().sleep(seconds, waiting_for=waiting_for)
        if len(self.sleeps) == 3:
            fcntl.flock(self._other, fcntl.LOCK_UN)


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "lock"
    file.touch()
    return str(file)


@pytest.fixture
def other(path: str):
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def is_free(other: int) -> bool:
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(other, fcntl.LOCK_UN)
    return True


def test_the_other_program_waits_while_ralph_holds_it_and_ralph_waits_for_the_other(path, other) -> None:
    waiter = ReleasingWaiter(other)
    with closing(FileTurnLock(path, waiter)) as lock:
        assert is_free(other)
        fcntl.flock(other, fcntl.LOCK_EX)
        lock.take()
        lock.take()  # a second time changes nothing
        assert len(waiter.sleeps) == 3
        assert not is_free(other)
        lock.release()
        assert is_free(other)


def test_a_signal_ends_the_wait_for_it(path, other) -> None:
    fcntl.flock(other, fcntl.LOCK_EX)
    with closing(FileTurnLock(path, FakeWaiter(interrupt_at_s=1.0))) as lock, pytest.raises(SignalReceived):
        lock.take()


def test_a_command_does_not_inherit_it(path) -> None:
    with closing(FileTurnLock(path, FakeWaiter())) as lock:
        assert not os.get_inheritable(lock._descriptor)


@pytest.mark.parametrize(("name", "why"), [("missing/lock", "No such file"), ("lock", "not absolute")])
def test_a_file_that_cannot_be_locked_is_an_error(name, why, tmp_path) -> None:
    path = name if name == "lock" else str(tmp_path / name)
    with pytest.raises(TurnLockError, match=why):
        FileTurnLock(path, FakeWaiter())
