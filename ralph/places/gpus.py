# os instead of pathlib: these are strings throughout.
# ruff: noqa: PTH208
"""Finds the device nodes of this machine's GPUs that commands get, as `sandbox.gpu` says. The nodes that control screens
(`card*`) are never among them.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# CUDA needs these three (driver 580). nvidia-modeset is for screens, and nvidia-uvm-tools for profilers.
_NVIDIA = re.compile(r"nvidia\d+|nvidiactl|nvidia-uvm")
# Of each instance of a divided GPU, the driver says which node opens it (MIG user guide, "Device Nodes and Capabilities").
_INSTANCES = tuple(
    f"proc/driver/nvidia/capabilities/gpu*/mig/gi*/{name}" for name in ("access", "ci*/access")
)
_INSTANCE = re.compile(r"^DeviceFileMinor: (\d+)$", re.MULTILINE)
# ROCm's compute device names the render node of each of its GPUs (amdkfd, topology in sysfs). 0 is a CPU.
_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes/*/properties"
_AMD = re.compile(r"^drm_render_minor ([1-9]\d*)$", re.MULTILINE)
_RENDER = re.compile(r"renderD\d+")


def gpu_devices(wanted: str, top: str = "") -> tuple[str, ...]:
    """The paths of the nodes that this user may open, in a fixed order. `wanted` is `auto`, `all` (with the render nodes of
    other makers) or `off`. `top` stands before `/dev`, `/proc` and `/sys`. Never raises OSError.
    """
    found = dict.fromkeys(f"{top}/dev/{name}" for name in _named(wanted, top))
    return tuple(path for path in found if _is_device(path) and os.access(path, os.R_OK))


def _named(wanted: str, top: str) -> Iterator[str]:
    if wanted == "off":
        return
    names = _names_in(f"{top}/dev")
    yield from filter(_NVIDIA.fullmatch, names)
    if "nvidia-caps" in names:
        for pattern in _INSTANCES:
            for minor in _numbers(top, pattern, _INSTANCE):
                yield f"nvidia-caps/nvidia-cap{minor}"
    if "kfd" in names:
        yield "kfd"
        for minor in _numbers(top, _TOPOLOGY, _AMD):
            yield f"dri/renderD{minor}"
    if wanted == "all" and "dri" in names:
        yield from (f"dri/{name}" for name in _names_in(f"{top}/dev/dri") if _RENDER.fullmatch(name))


def _names_in(directory: str) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(directory))
    return []


def _numbers(top: str, pattern: str, line: re.Pattern[str]) -> Iterator[str]:
    for path in sorted(Path(top or "/").glob(pattern)):
        with suppress(OSError):
            yield from line.findall(path.read_text(encoding="ascii", errors="replace"))


def _is_device(path: str) -> bool:
    """Whether a path is a character device, and no link to one."""
    with suppress(OSError):
        return stat.S_ISCHR(os.lstat(path).st_mode)
    return False
