"""The machine: interpreter, system, programs, which protections it gives, and whether it has room for a run.

No program is started.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from typing import TYPE_CHECKING

from ralph.core.finding import Finding, ok, short, warn
from ralph.core.shortage import ShortageError, shortage_of
from ralph.effects.atomic_write import HELD_DIRECTORY
from ralph.effects.starting import patiently, start_thread
from ralph.effects.tools.beneath import open_by_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.ports import Clock, Waiter

_DESCRIPTORS = 16
"""About as many has a run open at a time."""

# Program, and what is different without it.
_PROGRAMS = (
    ("bash", "commands are run by /bin/sh", "install bash: models write commands for it"),
    ("git", "the agent cannot commit, and cannot look at what changed", "install git"),
    ("rg", "Glob and Grep search by themselves, slower", "install ripgrep (optional)"),
)


def look_at_machine(environment: Mapping[str, str], ralph_version: str) -> Iterator[Finding]:
    yield ok("ralph", f"{ralph_version} on Python {platform.python_version()}")
    yield _system()
    for program, without, advice in _PROGRAMS:
        path = shutil.which(program, path=environment.get("PATH", os.defpath))
        yield ok(program, path) if path else warn(program, f"not found: {without}", advice)
    yield _confinement()
    yield warn(
        "sandbox",
        "none: commands run as you and can change whatever you can",
        "use a container or an account of its own for tasks that you would not run yourself",
    )


def look_at_room(waiter: Waiter, clock: Clock) -> Iterator[Finding]:
    """Whether there is a thread and a few descriptors; nothing where there is. A moment's shortage is waited for."""
    held: list[int] = []
    try:
        patiently(lambda: start_thread(lambda: None, name="room"), waiter, clock)
        held += [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_DESCRIPTORS)]
    except OSError as error:
        yield short("machine", shortage_of(error) or ShortageError("file descriptor"))
    finally:
        for descriptor in held:
            os.close(descriptor)


def _system() -> Finding:
    name = f"{platform.system()} {platform.release()} ({platform.machine()})"
    if sys.platform == "linux":
        return ok("system", name)
    return warn(
        "system",
        f"{name}: ralph is tested on Linux, and what a killed ralph leaves running is ended there only",
        "run it in a Linux container where that matters",
    )


def _confinement() -> Finding:
    """Of Write and Edit to the working directory: by the kernel, or by ralph's own walk."""
    try:
        held = os.open(os.sep, HELD_DIRECTORY)
        try:
            os.close(open_by_kernel(held, os.curdir))
        finally:
            os.close(held)
    except (OSError, AttributeError):  # AttributeError: a system without that way in
        return ok("file confinement", "openat2 is not available; ralph walks each path itself, part by part")
    return ok("file confinement", "by the kernel (openat2)")
