"""Finds the processes of a test in /proc, also those that have lost their parents. Works on Linux only.

A process belongs to the owner that its environment names. Only root may read the environment of a process that is not
dumpable, as ralph, its supervisor and its launchers are. So whoever starts ralph also gives it a limit whose number stands
for the owner: all of its processes inherit the limit, and everybody may read it. It bounds the time that a process with
real-time priority takes, and no process here has one.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OWNER = "OWNER_OF_THIS_TEST"
"""The variable that names the owner. Without it, the home directory is the owner."""
_PROC = "/proc"
_LONGEST_US = 1 << 62
_lock = threading.Lock()


def processes_of(environment: Mapping[str, str]) -> dict[int, str]:
    """The command lines of the running processes that have the owner of this environment, by process id."""
    owner, found = _owner(environment), {}
    for pid in filter(str.isdigit, os.listdir(_PROC)):  # noqa: PTH208 - a test asks often, and a Path is slow
        with suppress(OSError):  # it has ended
            words = _is_owned(pid, owner) and _content(pid, "cmdline")
            if words:  # the command line of a process that was not yet reaped is empty
                found[int(pid)] = words.replace(b"\0", b" ").decode(errors="replace")
    return found


@contextmanager
def marked(environment: Mapping[str, str]) -> Iterator[None]:
    """Gives the processes that this one starts meanwhile the limit of their owner."""
    if sys.platform != "linux":
        yield
        return
    with _lock:
        before = resource.getrlimit(resource.RLIMIT_RTTIME)
        resource.setrlimit(resource.RLIMIT_RTTIME, (_mark(_owner(environment)), before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_RTTIME, before)


def _owner(environment: Mapping[str, str]) -> bytes:
    name = OWNER if OWNER in environment else "HOME"
    return os.fsencode(f"{name}={environment.get(name, '')}")


def _mark(owner: bytes) -> int:
    _, most = resource.getrlimit(resource.RLIMIT_RTTIME)
    number = int.from_bytes(hashlib.blake2b(owner, digest_size=8).digest())
    return number % (_LONGEST_US if most == resource.RLIM_INFINITY else most)


def _is_owned(pid: str, owner: bytes) -> bool:
    try:
        return b"\0%b\0" % owner in b"\0%b" % _content(pid, "environ")
    except PermissionError:
        return b" %d " % _mark(owner) in _content(pid, "limits")


def _content(pid: str, name: str) -> bytes:
    with open(f"{_PROC}/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - see above
        return file.read()
