"""Files whose content the kernel generates must not be changed. Those that contain credentials must not be read
either.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine.files.opened_file import is_made_by_kernel
from ralph.tools.path_guard import why_private
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.fixture
def tools(make_tools: Callable[..., Any], tmp_path: Path) -> Any:
    (tmp_path / "link").symlink_to("/proc/self/environ")
    (tmp_path / "proc").symlink_to("/proc")
    return make_tools()


PATHS = ["/proc/self/environ", "/proc/self/../self/environ", "link", "proc/self/environ"]


@every_row("path", [*PATHS, "/proc/self/mem", "/proc/{pid}/environ"])
def test_the_environment_and_memory_of_processes_are_not_read(tools, path) -> None:
    path = path.format(pid=os.getpid())
    refused = f"{path} shows the environment or memory of a process, and is not read"
    assert tools.error("Read", file_path=path) == refused
    assert tools.error("Grep", pattern="KEY", path=path) == refused


@every_row("path", [*PATHS, "/proc/self/comm", "/proc/sys/vm/swappiness", "/sys/kernel/x"])
def test_nothing_of_the_kernel_is_edited_or_written(tools, path) -> None:
    refused = f"{path} is made up by the kernel; it cannot be edited or replaced as a file"
    assert tools.error("Edit", file_path=path, old_string="PATH=", new_string="x") == refused
    assert tools.error("Write", file_path=path, content="x") == refused


PROCESS = "shows the environment or memory of a process"
PRIVATE_FILES = {
    PROCESS: """
        /proc/1/maps /proc/self/maps /proc/self/task/{pid}/maps /proc/self/smaps /proc/self/smaps_rollup
        /proc/self/numa_maps /proc/self/map_files/x /proc/self/pagemap /proc/self/auxv /proc/self/syscall /proc/1/stack
        /proc/{pid}/stat /proc/self/task/{pid}/stat proc/self/maps
    """,
    "shows the command line of a process": "/proc/1/cmdline /proc/self/task/{pid}/cmdline",
    "shows memory, addresses or messages of the kernel": """
        /proc/kmsg /proc/kcore /proc/kallsyms /proc/vmallocinfo /proc/iomem /proc/modules /sys/kernel/notes
        /sys/kernel/debug/x /sys/kernel/tracing/trace /sys/module/ext4/sections/.text /sys/fs/pstore/dmesg
    """,
    "holds keys or data of the firmware": "/proc/keys /proc/key-users /sys/firmware/qemu_fw_cfg/raw",
}
OTHERS = """
/host/proc/1/maps /proc/self/status /proc/stat /proc/cmdline /proc/meminfo /sys/block/sda/stat /home/me/maps
"""


@every_row(("shows", "paths"), PRIVATE_FILES.items())
def test_what_only_the_kernel_or_a_process_should_know_is_not_read(tools, shows, paths) -> None:
    for path in paths.format(pid=os.getpid()).split():
        assert tools.error("Read", file_path=path) == f"{path} {shows}, and is not read"
    assert [path for path in OTHERS.split() if why_private(path) is not None] == []


def test_other_files_of_the_kernel_are_still_read(tools) -> None:
    assert "Name:" in tools.ok("Read", file_path="/proc/self/status")
    assert "MemTotal" in tools.ok("Read", file_path="/proc/meminfo")
    assert "cpu" in tools.ok("Read", file_path="/proc/stat")


def test_a_file_is_known_by_its_device_too_whatever_its_path() -> None:
    assert is_made_by_kernel("/mnt/elsewhere/comm", Path("/proc/self/comm").stat())
    assert why_private("/host/proc/1/maps", Path("/proc/self/maps").stat()) == PROCESS
    assert not is_made_by_kernel("/mnt/elsewhere/comm", Path(__file__).stat())


def test_an_ordinary_file_of_such_a_name_is_read_and_edited(tools, tmp_path) -> None:
    (tmp_path / "environ").write_text("A=1\n")
    assert "A=1" in tools.ok("Read", file_path="environ")
    tools.ok("Edit", file_path="environ", old_string="1", new_string="2")
    assert (tmp_path / "environ").read_text() == "A=2\n"
