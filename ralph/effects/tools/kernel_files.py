"""Files the kernel makes up: a process's environment and memory hold credentials, and none can be replaced."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ralph.effects.tools.tool_error import ToolError

if TYPE_CHECKING:
    from pathlib import Path

_ROOTS = ("/proc", "/sys")
# What programs were started with, and what they hold in memory.
_PRIVATE_NAMES = frozenset({"environ", "mem", "kcore"})


def refuse_kernel_file(path: Path, shown: str, device: int | None = None) -> None:
    """For writing: raises ToolError for all of them. `device`: st_dev of the file itself, once it is known."""
    if _is_kernel_file(os.path.realpath(path), device):
        raise ToolError(f"{shown} is made up by the kernel; it cannot be edited or replaced as a file")


def refuse_private_file(path: Path, shown: str, device: int | None = None) -> None:
    """For reading: raises ToolError for the environment and the memory of processes."""
    real = os.path.realpath(path)
    if os.path.basename(real) in _PRIVATE_NAMES and _is_kernel_file(real, device):  # noqa: PTH119 - it is a str
        raise ToolError(f"{shown} shows the environment or memory of a process, and is not read")


def _is_kernel_file(real: str, device: int | None) -> bool:
    is_below = any(real == root or real.startswith(f"{root}/") for root in _ROOTS)
    return is_below or (device is not None and device in _devices())


def _devices() -> set[int]:
    """Where they are mounted, whatever the path says; an empty directory of the name is an ordinary one."""
    return {os.stat(root).st_dev for root in _ROOTS if os.path.ismount(root)}  # noqa: PTH116 - as ismount does
