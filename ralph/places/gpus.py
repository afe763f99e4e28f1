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

from ralph.machine.files.paths import entries_in, status_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# CUDA needs these three (driver 580). nvidia-modeset is for screens, and nvidia-uvm-tools for profilers.
_NVIDIA = r"nvidia\d+|nvidiactl|nvidia-uvm"
# Of each instance of a divided GPU, the driver says which node opens it (MIG user guide, "Device Nodes and Capabilities").
_INSTANCES = tuple(
    f"proc/driver/nvidia/capabilities/gpu*/mig/gi*/{name}" for name in ("access", "ci*/access")
)
_INSTANCE = r"(?m)^DeviceFileMinor: (\d+)$"
# ROCm's compute device names the render node of each of its GPUs (amdkfd, topology in sysfs). 0 is a CPU.
_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes/*/properties"
_AMD = r"(?m)^drm_render_minor ([1-9]\d*)$"
_RENDER = r"renderD\d+"


def gpu_devices(wanted: str, top: str = "") -> tuple[str, ...]:
    """The nodes that this user may open, in a fixed order. `wanted` is `auto`, `all` (with the render nodes of other makers) or
    `off`. `top` precedes `/dev`, `/proc` and `/sys`. Never raises OSError.
    """
    found = dict.fromkeys(f"{top}/dev/{name}" for name in _named(wanted, top))
    statuses = {path: status_of(path) for path in found}
    devices = (path for path, status in statuses.items() if status and stat.S_ISCHR(status.st_mode))
    return tuple(path for path in devices if os.access(path, os.R_OK))


def _named(wanted: str, top: str) -> Iterator[str]:
    if wanted == "off":
        return
    if os.path.lexists(f"{top}/dev/nvidiactl"):
        yield from _names_in(f"{top}/dev", _NVIDIA)
        for pattern in _INSTANCES:
            for minor in _numbers(top, pattern, _INSTANCE):
                yield f"nvidia-caps/nvidia-cap{minor}"
    if os.path.lexists(f"{top}/dev/kfd"):
        yield "kfd"
        for minor in _numbers(top, _TOPOLOGY, _AMD):
            yield f"dri/renderD{minor}"
    if wanted == "all":
        yield from (f"dri/{name}" for name in _names_in(f"{top}/dev/dri", _RENDER))


def _names_in(directory: str, pattern: str) -> list[str]:
    return sorted(entry.name for entry in entries_in(directory) if re.fullmatch(pattern, entry.name))


def _numbers(top: str, files: str, line: str) -> Iterator[str]:
    for path in sorted(Path(top or "/").glob(files)):
        with suppress(OSError):
            yield from re.findall(line, path.read_text(encoding="ascii", errors="replace"))
