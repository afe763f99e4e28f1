"""How long tests wait for a fact before they say that it did not come. No test takes that long when all is well.

RALPH_TEST_PATIENCE multiplies every such limit: a machine that is ten times slower needs ten times the patience.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = float(os.environ.get("RALPH_TEST_PATIENCE", "1"))
LONG_S = 60.0
"""On an idle machine every fact that a test waits for is there within a second or two."""


def within_s(seconds: float = LONG_S) -> float:
    """The limit on waiting for what takes at most `seconds` on an idle machine."""
    return seconds * PATIENCE


PATIENCE_S = within_s()
AT_ONCE_S = within_s(20)
"""The upper bound where nothing but a clock can tell that something ended at once, and the other way takes a minute or
for ever.
"""
TEST_S = within_s(300)
"""How long a test may take. It fails with the stacks of its threads then, and the others run."""


def wait_until(fact: Callable[[], object], seconds: float = LONG_S) -> None:
    """Looks every few milliseconds. Fails if the fact does not come."""
    deadline_s = time.monotonic() + within_s(seconds)
    while not fact():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.005)
