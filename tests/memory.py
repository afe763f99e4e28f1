"""How much memory a process has held at most. Linux only.

`ru_maxrss` cannot be used: a new process inherits its parent's peak, and nothing ever lowers it.
"""

from __future__ import annotations

from pathlib import Path


def reset_peak() -> None:
    """From here on the peak is counted anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_kib(process_id: int | str = "self") -> int:
    """Raises OSError or IndexError once that process has ended."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
