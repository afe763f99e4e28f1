"""Measures the peak of a process's resident memory. Works on Linux only.

`ru_maxrss` cannot be used, because a new process inherits its parent's peak, and nothing ever lowers it.
"""

from __future__ import annotations

from pathlib import Path


def reset_peak() -> None:
    """Resets the peak of this process to its current memory."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_kib(process_id: int | str = "self") -> int:
    """The peak in KiB. Raises OSError or IndexError if the process has ended."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
