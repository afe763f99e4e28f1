"""The control group of a run's commands: where it may be made, what it refuses, and who removes it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.process_limit import (
    ControlGroup,
    MemoryLimit,
    NoLimitError,
    ProcessLimit,
    own_place,
    place_of,
    remove_left_over,
)
from ralph.machine.running_command import EndCause
from tests.machine.test_command_supervisor import finished, started
from tests.patience import within_s
from tests.processes.process_groups import needs_group
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = "35 24 0:30 {root} {at} rw,relatime - cgroup cgroup rw,pids"
SECOND = "36 24 0:31 {root} {at} rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
OTHERS = (
    "22 1 8:1 / / rw - ext4 /dev/vda1 rw\n37 24 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


@every_row(
    ("groups", "mounts", "place"),
    [
        pytest.param("8:pids:/\n0::/", FIRST.format(root="/", at="/sys/pids"), ControlGroup(Path("/sys/pids"), True), id="first"),
        pytest.param("8:pids:/a/b", FIRST.format(root="/a", at="/pids"), ControlGroup(Path("/pids/b"), True), id="below a mount"),
        pytest.param("8:pids:/ab", FIRST.format(root="/a", at="/pids"), None, id="beside a mount"),
        pytest.param("0::/a:b", SECOND.format(root="/", at="/sys/cg"), ControlGroup(Path("/sys/cg/a:b"), False), id="second"),
        pytest.param("0::/../x", SECOND.format(root="/", at="/sys/cg"), None, id="outside a namespace"),
        pytest.param("8:pids:/a\n0::/a", SECOND.format(root="/", at="/cg"), None, id="counted by the first alone"),
        pytest.param("4:memory:/", "", None, id="none"),
    ],
)  # fmt: skip
def test_the_group_lies_beneath_our_own(groups, mounts, place) -> None:
    assert place_of(groups, OTHERS + mounts, "pids") == place


def test_memory_has_a_group_of_its_own_in_the_first_version() -> None:
    both = FIRST.format(root="/", at="/sys/pids") + "\n" + OTHERS
    place = place_of("8:pids:/a\n4:memory:/b", both, "memory")
    assert place == ControlGroup(Path("/sys/fs/cgroup/memory/b"), True)
    assert place_of("0::/a", SECOND.format(root="/", at="/cg"), "memory") == ControlGroup(
        Path("/cg/a"), False
    )


@pytest.fixture
def limited() -> Iterator[CommandSupervisor]:
    supervising = CommandSupervisor({"PATH": os.environ["PATH"]}, most_processes=25)
    yield supervising
    supervising.close()


@needs_group
def test_every_command_is_in_the_group_and_ralph_is_not(limited) -> None:
    [before] = {finished(started(limited, "cat /proc/self/cgroup"))[1] for _ in range(3)}
    assert "ralph-commands-" in before
    assert "ralph-commands-" not in Path("/proc/self/cgroup").read_text()
    assert limited.why_no_group() is None
    limited.kill()
    assert finished(started(limited, "cat /proc/self/cgroup"))[1] == before, "one group for the run"


@needs_group
def test_a_killed_ralphs_group_is_swept_and_one_in_use_is_not(limited) -> None:
    limited.start_early()
    script = textwrap.dedent("""
        import os, sys, time
        from ralph.machine.process_limit import ProcessLimit
        limit = ProcessLimit.made(25)
        os.makedirs(os.path.join(os.path.dirname(limit.entrance), "ralph-commands-1-inner"))
        print(os.path.dirname(limit.entrance), flush=True)
        time.sleep(99)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        group = Path(other.stdout.readline().strip())
        remove_left_over(group.parent)
        assert (group / "ralph-commands-1-inner").exists(), "its owner lives, and nobody is in it yet"
        other.kill()
    remove_left_over(group.parent)
    assert not group.exists()
    assert finished(started(limited, "cat /proc/self/cgroup"))[0] == 0
    assert limited.why_no_group() is None


@needs_group
def test_a_group_of_somebody_elses_is_no_left_over() -> None:
    limit = ProcessLimit.made(25)
    place = Path(limit.entrance).parent.parent
    other = place / f"ralph-other-{os.getpid()}"
    other.mkdir()
    try:
        remove_left_over(place)
        assert other.exists()
    finally:
        other.rmdir()
        limit.close()


@needs_group
def test_what_still_runs_keeps_the_group_for_a_later_sweep() -> None:
    limit = ProcessLimit.made(25)
    group = Path(limit.entrance).parent
    with subprocess.Popen(["sleep", "99"]) as process:
        Path(limit.entrance).write_text(str(process.pid))
        limit.close()
        assert group.exists()
        process.kill()
    deadline_s = time.monotonic() + within_s()
    while group.exists() and time.monotonic() < deadline_s:
        remove_left_over(group.parent)
    assert not group.exists()


def test_where_there_is_no_way_to_a_group_it_is_said_why(monkeypatch) -> None:
    monkeypatch.setattr("ralph.machine.process_limit.place_of", lambda *_texts: None)
    with pytest.raises(NoLimitError, match="this system has no control groups for processes"):
        ProcessLimit.made(25)


# --- Memory


MIB = 1024 * 1024


def _why_no_memory_group() -> str | None:
    try:
        limit = MemoryLimit.made(MIB, own_place("memory"), None)
    except NoLimitError as why:
        return str(why)
    limit.close()
    return None


needs_memory_group = pytest.mark.skipif(
    _why_no_memory_group() is not None, reason=f"no limit on memory can be set here: {_why_no_memory_group()}"
)


@needs_memory_group
def test_the_kernel_keeps_the_limit_on_memory_within_a_second_too() -> None:
    supervising = CommandSupervisor({"PATH": os.environ["PATH"]}, most_memory_bytes=60 * MIB)
    try:
        hog = f"{sys.executable} -I -S -c 'bytearray(200 * 1024 * 1024)'"
        command = started(supervising, f"{hog}; exit 5")
        assert finished(command)[0] == 5
        assert command.exceeded is EndCause.TOO_MUCH_MEMORY
        # A command that continues after the kill of one of its processes was not stopped.
        command = started(supervising, f"{hog}; exit 0")
        assert (finished(command)[0], command.exceeded) == (0, None)
        command = started(supervising, f"{hog}; sleep 600")
        assert finished(command)[0] != 0, "the rest of the tree is ended too"
        assert command.exceeded is EndCause.TOO_MUCH_MEMORY
        pid = supervising.pid
        command = started(supervising, "cat /proc/self/cgroup /proc/self/oom_score_adj")
        status, output = finished(command)
        assert (status, command.exceeded) == (0, None), "an earlier command's excess is not this one's"
        [path] = [line.split(":")[2] for line in output.splitlines() if ":memory:" in line]
        assert "ralph-commands-" in path
        assert output.endswith("\n500\n")
        assert supervising.pid == pid, "the supervisor lives"
        place = own_place("memory")
        assert place is not None
        group = place.directory / path.rpartition("/")[2]
        assert group.is_dir()
    finally:
        supervising.close()
    assert not group.exists()


class SecondVersion:
    """Files like those of a control group of version 2 with a group of commands in it."""

    def __init__(self, place: Path, enabled: str = "pids") -> None:
        self.place = ControlGroup(place, is_first_version=False)
        self.enabled = place / "cgroup.subtree_control"
        self.enabled.write_text(enabled)
        self.group = place / "ralph-commands-1"
        self.group.mkdir()
        for name in ("memory.max", "memory.swap.max"):
            (self.group / name).touch()
        self.beside = ProcessLimit(self.group, os.open(place, os.O_RDONLY), None)


def test_in_the_second_version_the_group_of_processes_limits_the_memory_too(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ralph.machine.process_limit._is_delegated", lambda _group: True)
    made = SecondVersion(tmp_path)
    limit = MemoryLimit.made(68 * MIB, made.place, made.beside)
    assert (limit.directory, made.enabled.read_text()) == (made.group, "+memory")
    assert (made.group / "memory.max").read_text() == str(100 * MIB)
    assert (made.group / "memory.swap.max").read_text() == "0"
    limit.close()
    assert made.group.exists(), "it is not this limit's own"


@every_row("controller", ["pids", "memory"])
def test_limits_are_disabled_again_only_if_no_other_supervisor_needs_them(
    controller, tmp_path_factory
) -> None:
    for has_other in (False, True):
        made = SecondVersion(tmp_path_factory.mktemp("group"), "")
        for file in made.group.iterdir():
            file.unlink()  # as the kernel does it
        if has_other:
            (made.group.parent / "ralph-commands-2").mkdir()
        lock = os.open(made.group, os.O_RDONLY)
        if controller == "pids":
            ProcessLimit(made.group, lock, made.enabled).close()
        else:
            MemoryLimit(made.group, lock, made.enabled).close()
        assert not made.group.exists()
        assert made.enabled.read_text() == ("" if has_other else f"-{controller}")


@every_row(
    ("has_group", "enabled", "is_delegated", "why"),
    [
        (False, "pids memory", True, "there is no group of commands"),
        (True, "pids", False, "ralph's control group is not delegated to it"),
    ],
)
def test_where_the_second_version_has_no_limit_on_memory_it_is_said_why(
    has_group, enabled, is_delegated, why, tmp_path_factory, monkeypatch
) -> None:
    monkeypatch.setattr("ralph.machine.process_limit._is_delegated", lambda _group: is_delegated)
    made = SecondVersion(tmp_path_factory.mktemp("group"), enabled)
    with pytest.raises(NoLimitError, match=why):
        MemoryLimit.made(MIB, made.place, made.beside if has_group else None)
