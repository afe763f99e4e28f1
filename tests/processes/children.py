"""Finds out facts about other processes. Works on Linux only: elsewhere there seem to be no children and no running
processes.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from tests.patience import LONG_S, within_s


def children() -> set[int]:
    """The process ids of the children of this process, including ended ones that were not yet reaped."""
    found: set[int] = set()
    for one in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread that has just ended
            found |= {int(process_id) for process_id in one.read_text().split()}
    return found


def is_running(process_id: int) -> bool:
    """Whether the process exists and has not ended. An ended process that was not yet reaped does not count as
    running.
    """
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_gone(process_id: int, limit_s: float = LONG_S) -> bool:
    """Waits until the process has ended, and returns whether it has. The wait is needed because the output of a
    killed process closes a moment before the process has ended.
    """
    deadline_s = time.monotonic() + within_s(limit_s)
    while is_running(process_id) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return not is_running(process_id)
