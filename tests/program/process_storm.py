"""A command that resists being stopped, within limits: `process_storm.py NOTES SECONDS`.

It consists of many sleeping processes, of a guard that starts the first process again when it dies and notes that,
and of runners. Each runner leaves its session, starts its successor and ends, so that no list of the processes is
true for more than a millisecond. All of them ignore SIGTERM, and end by themselves after SECONDS.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

CROWD = 200
"""The number of sleeping processes. They use no processor time."""
RUNNERS = 2


def main(notes: Path, seconds: int) -> None:
    until_s = time.monotonic() + seconds
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    is_alive, guarded = os.pipe()
    for number in range(CROWD):
        if os.fork() == 0:
            if number:
                os.close(guarded)
            sleep_until(until_s)
    os.close(guarded)
    if os.fork() == 0:
        guard(is_alive, notes, until_s)
    for _ in range(RUNNERS):
        if os.fork() == 0:
            run(until_s)
    (notes / "all there").touch()
    sleep_until(until_s)


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
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
