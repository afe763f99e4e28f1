"""Counts the processes and the memory of a command's process tree, and says when they are more than the limits. A limit
per user (`RLIMIT_NPROC`) would also count the user's other programs and spare root. Linux only; without /proc nothing
is counted. A control group (`process_limit.py`) is exact and cheaper where one can be made.
"""

from __future__ import annotations

import mmap
import re
from typing import NamedTuple

from ralph.machine.launcher import tree_below

# A tree of more processes is above every limit that makes sense; the count stops there.
_MOST_COUNTED = 10_000
_PROPORTIONAL = re.compile(rb"^Pss:\s+(\d+) kB$", re.MULTILINE)
_MEBIBYTE = 1024 * 1024


class TreeUsage(NamedTuple):
    tasks: int
    """The number of processes and threads, as a control group counts them."""
    memory_bytes: int
    """At least the memory in use. Memory that processes share may be counted for each of them."""
    pids: tuple[int, ...]


def tree_usage(root: int, most_tasks: int = _MOST_COUNTED) -> TreeUsage:
    """The usage of a process and all its descendants. A process that ends meanwhile is not counted. The count stops
    soon after `most_tasks` processes. Takes about 40 microseconds per process.
    """
    tasks, memory_bytes = 0, 0
    pids = tuple(tree_below([root], most_tasks))
    for pid in pids:
        found = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        pages = _read(f"/proc/{pid}/statm").split()
        if len(found) > 17 and len(pages) > 2:  # proc_pid_stat(5): fields 20 (threads) and up, counted from 3
            tasks += int(found[17])
            memory_bytes += (int(pages[1]) - int(pages[2])) * mmap.PAGESIZE
    return TreeUsage(tasks, memory_bytes, pids)


def exact_memory_bytes(pids: tuple[int, ...]) -> int:
    """The memory of processes, in which shared memory counts once. Takes milliseconds for a large process. A process
    whose memory map cannot be read counts as nothing.
    """
    sizes = (_PROPORTIONAL.search(_read(f"/proc/{pid}/smaps_rollup")) for pid in pids)
    return sum(int(size[1]) * 1024 for size in sizes if size is not None)


def why_too_much(root: int, most_tasks: int, most_memory_bytes: int) -> str:
    """Why a process and its descendants use more than the limits, or an empty string if they do not. 0 is no limit."""
    usage = tree_usage(root, most_tasks or _MOST_COUNTED)
    if 0 < most_tasks < usage.tasks:
        return f"more than {most_tasks} processes and threads"
    # The exact figure is asked for only if the upper bound is too high.
    if 0 < most_memory_bytes < usage.memory_bytes and most_memory_bytes < exact_memory_bytes(usage.pids):
        return f"more than {most_memory_bytes // _MEBIBYTE} MiB of memory"
    return ""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a file per process, once a second
            return file.read()
    except OSError:
        return b""
