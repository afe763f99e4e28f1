"""The two clocks: one for dates, which may jump, and one for durations, which may not."""

from __future__ import annotations

from datetime import UTC, datetime

from freezegun import freeze_time

from ralph.core.retry_after import server_wish_s
from ralph.effects.clock import SystemClock


def test_a_servers_date_is_measured_against_the_wall_clock() -> None:
    with freeze_time("2026-11-21 12:00:00"):
        now = SystemClock().utc_now()
        assert now == datetime(2026, 11, 21, 12, tzinfo=UTC)
        assert server_wish_s({"retry-after": "Sat, 21 Nov 2026 12:01:30 GMT"}, now) == 90


def test_p12_a_jump_of_the_wall_clock_moves_no_deadline() -> None:
    clock = SystemClock()
    with freeze_time("2026-11-21 12:00:00") as frozen:
        before = clock.now_s()
        frozen.move_to("2026-11-22 12:00:00")
        assert clock.now_s() - before < 1
