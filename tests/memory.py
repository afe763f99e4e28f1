"""How much memory this process has held at most. Linux only.

`ru_maxrss` cannot be used: a new process inherits its parent's peak, and nothing ever lowers it.
"""

from __future__ import annotations

from pathlib import Path


def reset_peak() -> None:
    """From here on the peak is counted anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
