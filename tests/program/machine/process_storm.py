"""A command that resists being stopped, within limits: `process_storm.py NOTES SECONDS`.

It ends at once and leaves processes behind: many that sleep, a guard that starts the last of these again when it dies
and notes that, and runners. The guard is the oldest, because the newest are killed first. Each runner leaves its
session, starts its successor and ends, so that no list of the processes is true for more than a few milliseconds. All
of them ignore SIGTERM, and end by themselves after SECONDS.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

CROWD = 40
"""The number of sleeping processes. They use no processor time."""
RUNNERS = 2
REST_S = 0.002
"""The time between the start of a runner and that of its successor, so that the storm does not take all of a processor.
Listing the processes takes longer.
"""


def main(notes: Path, seconds: int) -> None:
    until_s = time.monotonic() + seconds
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    is_alive, guarded = os.pipe()
    if os.fork() == 0:
        os.close(guarded)
        guard(is_alive, notes, until_s)
    for number in range(CROWD):
        if os.fork() == 0:
            if number < CROWD - 1:
                os.close(guarded)
            sleep_until(until_s)
    os.close(guarded)
    for _ in range(RUNNERS):
        if os.fork() == 0:
            run(until_s)
    (notes / "all there").touch()


def sleep_until(until_s: float) -> None:
    signal.alarm(max(1, int(until_s - time.monotonic())))
    while True:
        signal.pause()


def guard(is_alive: int, notes: Path, until_s: float) -> None:
    os.read(is_alive, 1)
    (notes / "respawned").touch()
    if os.fork():
        sleep_until(until_s)
    os.setsid()
    run(until_s)


def run(until_s: float) -> None:
    while time.monotonic() < until_s:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(REST_S)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
