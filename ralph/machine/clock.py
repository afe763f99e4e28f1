"""The real clocks. On Linux, the clock for durations also counts the time for which the machine is suspended."""

from __future__ import annotations

import time
from datetime import UTC, datetime

# CLOCK_MONOTONIC stands still while a laptop sleeps; deadlines must not.
_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def now_s(self) -> float:
        return time.clock_gettime(_CLOCK_ID)

    def utc_now(self) -> datetime:
        return datetime.now(UTC)
