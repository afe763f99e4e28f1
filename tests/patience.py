"""Time limits for tests that wait for something to happen. If all is well, no test waits that long.

RALPH_TEST_PATIENCE multiplies all limits. A machine that is ten times slower needs a factor of ten.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = float(os.environ.get("RALPH_TEST_PATIENCE", "1"))
LONG_S = 60.0
"""The usual limit in seconds. On an idle machine, everything that a test waits for happens within a second or
two.
"""

_LONGEST_PAUSE_S = 0.05
# Some facts are found by reading what /proc tells about every process, which takes as long as a short pause.


def within_s(seconds: float = LONG_S) -> float:
    """The time limit in seconds on waiting for something that takes at most `seconds` on an idle machine."""
    return seconds * PATIENCE


PATIENCE_S = within_s()
TEST_S = within_s(300)
"""The limit in seconds for one test. A test that takes longer fails with the stacks of its threads, and the other
tests run on.
"""


def wait_until(fact: Callable[[], object], seconds: float = LONG_S) -> None:
    """Calls `fact` every few milliseconds, and less often as time passes, until it returns something true. Fails if
    that does not happen within `seconds` times the patience.
    """
    deadline_s = time.monotonic() + within_s(seconds)
    pause_s = 0.005
    while not fact():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(pause_s)
        pause_s = min(1.25 * pause_s, _LONGEST_PAUSE_S)
