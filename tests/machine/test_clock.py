"""Two clocks: one for dates, which may jump, and one for durations, which may not."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from freezegun import freeze_time

from ralph.api.error_body import requested_wait_s
from ralph.machine import waiter
from ralph.machine.waiter import SystemClock


def test_a_servers_date_is_measured_against_the_wall_clock() -> None:
    with freeze_time("2026-11-21 12:00:00"):
        now = SystemClock().utc_now()
        assert now == datetime(2026, 11, 21, 12, tzinfo=UTC)
        assert requested_wait_s({"retry-after": "Sat, 21 Nov 2026 12:01:30 GMT"}, now, 529) == 90


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux counts sleep")
def test_a11_durations_count_the_time_that_the_machine_sleeps() -> None:
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert boot <= SystemClock().now_s() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    if boot - time.clock_gettime(time.CLOCK_MONOTONIC) > 10:  # it has slept since it was started
        assert SystemClock().now_s() - time.clock_gettime(time.CLOCK_MONOTONIC) > 9
    assert waiter._CLOCK_ID == time.CLOCK_BOOTTIME


def test_p12_a_jump_of_the_wall_clock_moves_no_deadline() -> None:
    clock = SystemClock()
    with freeze_time("2026-11-21 12:00:00") as frozen:
        before = clock.now_s()
        frozen.move_to("2026-11-22 12:00:00")
        assert before <= clock.now_s() <= time.clock_gettime(waiter._CLOCK_ID)
