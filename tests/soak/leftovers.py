"""Finds what a process that has ended has left behind, in /proc and on disk. Works on Linux only, and ends
nothing.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.processes.owned import OWNER, processes_of

if TYPE_CHECKING:
    from collections.abc import Callable

PROC = Path("/proc")
# What has ended needs a moment until the kernel and the server's threads have noticed.
_SETTLE_S = 3.0

_ESTABLISHED, _CLOSE_WAIT = "01", "08"


def settled(look: Callable[[], list[str]]) -> list[str]:
    """The finds of `look` that are still there after a moment. Returns as soon as it finds nothing."""
    end_s = time.monotonic() + _SETTLE_S
    while (found := look()) and time.monotonic() < end_s:
        time.sleep(0.01)
    return found


def processes_left(owner: str) -> list[str]:
    return [f"process {pid}: {words}" for pid, words in processes_of({OWNER: owner}).items()]


def connections_of(port: int) -> list[str]:
    """The sockets on either side of this port that are connected, or that one side has not closed yet."""
    found = []
    for line in (PROC / "net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        ports = {int(address.rpartition(":")[2], 16) for address in (local, remote)}
        if port in ports and state in {_ESTABLISHED, _CLOSE_WAIT}:
            found.append(f"connection {local} {remote} in state {state}")
    return found


def temporary_files(directory: Path) -> list[str]:
    return [f"temporary {path.name}" for path in directory.iterdir() if path.name.startswith("ralph-")]


class Gauge:
    """The highest values of a running process. They are sampled, because the peak that the kernel reports may be
    that of the parent.
    """

    def __init__(self, pid: int) -> None:
        self._process = PROC / str(pid)
        self.peak_kib = 0
        self.threads = 0
        self.descriptors = 0
        """The number of open descriptors. It stays 0 if the process may not be examined, because ralph is not
        dumpable and this user is not root.
        """

    def sample(self) -> None:
        # The process has ended, is a zombie without memory, or may not be examined.
        with contextlib.suppress(OSError, KeyError):
            lines = (line.partition(":") for line in (self._process / "status").read_text().splitlines())
            status = {name: value.split()[0] for name, _, value in lines if value.strip()}
            self.peak_kib = max(self.peak_kib, int(status["VmHWM"]))
            self.threads = max(self.threads, int(status["Threads"]))
            self.descriptors = max(self.descriptors, len([*(self._process / "fd").iterdir()]))
