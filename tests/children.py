"""What the tests see of other processes. Linux; elsewhere no children are seen, and no process runs."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from tests.patience import LONG_S, within_s


def children() -> set[int]:
    """Of the process that the tests run in; ended ones that nobody has asked about included."""
    found: set[int] = set()
    for one in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread that has just ended
            found |= {int(process_id) for process_id in one.read_text().split()}
    return found


def is_running(process_id: int) -> bool:
    """An ended process that nobody has asked about does not run."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_gone(process_id: int, limit_s: float = LONG_S) -> bool:
    """Killed, it closes its files a moment before it has ended: the end of its output does not tell."""
    deadline_s = time.monotonic() + within_s(limit_s)
    while is_running(process_id) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return not is_running(process_id)
