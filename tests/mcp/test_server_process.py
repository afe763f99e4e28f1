"""The servers of a run share the time in which they may end by themselves, and nobody waits for them longer than a stop may
take.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from ralph.mcp.server_process import end_servers
from tests.fakes import FakeClock, FakeWaiter


class Waiter(FakeWaiter):
    def __init__(self, stop_left_s: float) -> None:
        super().__init__(FakeClock())
        self._stops_by_s = stop_left_s

    def stop_left_s(self) -> float:
        return self._stops_by_s - self.clock.now_s()


class Stuck:
    """A server, and its command, that nothing ends."""

    def __init__(self, waiter: Waiter) -> None:
        self.command: Any = self
        self.ended: Any = waiter.mailbox()
        self._waiter = waiter
        self.asked_at_s = self.killed_at_s = math.nan
        self.is_closed = False

    def ask_to_stop(self) -> None:
        self.asked_at_s = self._waiter.clock.now_s()

    def kill_what_is_left(self) -> bool:
        if math.isnan(self.killed_at_s):
            self.killed_at_s = self._waiter.clock.now_s()
        return False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("stop_left_s", "killed_at_s"), [(math.inf, 2.0), (5.0, 2.0), (0.5, 0.5), (0.0, 0.0), (-1.0, 0.0)]
)
def test_all_servers_have_one_time_limit_and_a_stop_bounds_it(stop_left_s, killed_at_s) -> None:
    waiter = Waiter(stop_left_s)
    servers: list[Any] = [Stuck(waiter) for _ in range(4)]
    end_servers(servers, waiter, waiter.clock)
    assert [(one.asked_at_s, one.killed_at_s, one.is_closed) for one in servers] == [
        (0.0, killed_at_s, True)
    ] * 4
    assert waiter.clock.now_s() == pytest.approx(killed_at_s + 1, abs=0.1)
