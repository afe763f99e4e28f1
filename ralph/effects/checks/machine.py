"""The machine: interpreter, system, programs, and which protections it gives. Nothing is started."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from typing import TYPE_CHECKING

from ralph.core.finding import Finding, ok, warn
from ralph.effects.atomic_write import HELD_DIRECTORY
from ralph.effects.tools.beneath import open_by_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
