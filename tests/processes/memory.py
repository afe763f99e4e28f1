"""Measures the peak of a process's resident memory. Works on Linux only.

`ru_maxrss` cannot be used, because a new process inherits its parent's peak, and nothing ever lowers it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

# linux/prctl.h
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


def reset_peak() -> None:
    """Resets the peak of this process to its current memory. An ordinary user's process must be dumpable for that."""
    libc = ctypes.CDLL(None)
    before = libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    finally:
        libc.prctl(_PR_SET_DUMPABLE, before, 0, 0, 0)


def peak_kib(process_id: int | str = "self") -> int:
    """The peak in KiB. Raises OSError or IndexError if the process has ended."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
