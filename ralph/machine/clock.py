"""The real clocks. If the system has a clock that also counts suspended time (Linux), durations are measured with it."""

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
