"""Counts trees of real processes, and ends commands whose tree exceeds a limit, wherever they hide."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.machine import tree_usage
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.launcher import tree_below
from ralph.machine.running_command import EndCause
from ralph.machine.tree_usage import TOO_MANY_PROCESSES, TOO_MUCH_MEMORY, Limits
from tests.machine.test_command_supervisor import ENVIRONMENT, finished, started
from tests.patience import TEST_S, within_s
from tests.processes.children import is_gone
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
MIB = 1024 * 1024
# Four processes and two threads beside; the parent's memory is shared with its children until somebody writes to it.
TREE = """
import os, threading, time
memory = bytearray(b"x" * 32 * 1024 * 1024)
for _ in range(2):
    threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
for _ in range(3):
    if os.fork() == 0:
        time.sleep(20)
print("ready", flush=True)
time.sleep(20)
"""


@pytest.fixture
def tree() -> Iterator[list[int]]:
    """The pids of a process and its descendants."""
    with subprocess.Popen(
        [sys.executable, "-c", TREE], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        pids = tree_below([process.pid])
        yield pids
        subprocess.run(["kill", "-9", *map(str, reversed(pids))], check=False)


def exceeded(tree: list[int], most_tasks: int, most_memory_bytes: int) -> bytes:
    return Limits(most_tasks, most_memory_bytes, time.time()).exceeded(tree)


def test_processes_and_threads_of_a_tree_are_counted(tree) -> None:
    assert len(tree) == 4
    found = [exceeded(tree, most, 0) for most in (0, 3, 5, 6)]
    assert found == [b"", TOO_MANY_PROCESSES, TOO_MANY_PROCESSES, b""]


def test_memory_that_processes_share_counts_once(tree) -> None:
    assert (exceeded(tree, 0, 100 * MIB), exceeded(tree, 0, 30 * MIB)) == (b"", TOO_MUCH_MEMORY)


def test_a_tree_that_has_ended_uses_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert exceeded([ended.pid], 1, 1) == b""


# A child of an ordinary user that nobody but root can look into.
HIDDEN = """
import ctypes, os, sys, time, types
tree_usage = types.ModuleType("tree_usage")
exec(sys.argv[1], vars(tree_usage))
ready = os.pipe()
pid = os.fork()
if pid == 0:
    ctypes.CDLL(None).prctl(4, 0)
    x = bytearray(40 * 1024 * 1024)
    os.write(ready[1], b".")
    time.sleep(20)
os.read(ready[0], 1)
try:
    try:
        open(f"/proc/{pid}/smaps_rollup").read()
        sys.exit("it can be read")
    except PermissionError:
        pass
    if not tree_usage.Limits(0, 30 * 1024 * 1024, time.time()).exceeded([pid]):
        sys.exit("it does not count")
finally:
    os.kill(pid, 9)
"""


def test_a_process_that_hides_its_memory_from_other_processes_is_counted() -> None:
    before = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    source = Path(tree_usage.__file__).read_text()
    ran = subprocess.run(
        [*before, sys.executable, "-I", "-S", "-c", HIDDEN, source], check=False, timeout=TEST_S
    )
    assert ran.returncode == 0


# --- Commands


@pytest.fixture
def counting() -> Iterator[CommandSupervisor]:
    """A supervisor whose launcher counts."""
    supervising = CommandSupervisor(
        ENVIRONMENT, most_processes=20, most_memory_bytes=50 * MIB, makes_group=False
    )
    yield supervising
    supervising.close()


def python(code: str) -> str:
    return f"{sys.executable} -I -S -c '{code}'"


# Each process of the storm has a session of its own and a parent that has ended. The storm is bounded, in case nobody
# ends it.
SPREAD = """
import os, time
for number in range(40):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        print(os.getpid(), flush=True)
        time.sleep(20)
    os.wait()
"""
HOLD = "60 * 1024 * 1024"


def test_a_storm_that_leaves_session_and_parent_is_counted_and_ended(counting) -> None:
    command = started(counting, f"{python(SPREAD)}; sleep 20")
    _, output = finished(command)
    assert command.exceeded is EndCause.TOO_MANY_PROCESSES
    pids = list(map(int, output.split()))
    assert len(pids) == 40
    deadline_s = time.monotonic() + within_s()
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@every_row(
    "code",
    [
        pytest.param(f"import time; x = bytearray({HOLD}); time.sleep(20)", id="its own"),
        pytest.param(f"import mmap, time; m = mmap.mmap(-1, {HOLD}); m.write(bytes({HOLD})); time.sleep(20)", id="mapped and shared"),
        pytest.param(f'import os, time; os.truncate(f := os.memfd_create("x"), 0); os.write(f, bytes({HOLD})); time.sleep(20)', id="a file without a name"),
        pytest.param(f'import os, time; f = os.open("/dev/shm/NAME", os.O_CREAT | os.O_RDWR); os.unlink("/dev/shm/NAME"); os.write(f, bytes({HOLD})); time.sleep(20)', id="a removed file"),
        pytest.param("import ctypes, time; ctypes.CDLL(None).prctl(4, 0)\n" + f"x = bytearray({HOLD}); time.sleep(20)", id="not readable"),
        pytest.param(f"import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nx = bytearray({HOLD}); time.sleep(20)", id="a daemon"),
    ],
)  # fmt: skip
def test_memory_is_found_wherever_a_command_keeps_it(counting, code) -> None:
    line = python(code.replace("NAME", f"ralph-test-{os.getpid()}"))
    command = started(counting, f"{line}; sleep 20")
    finished(command)
    assert command.exceeded is EndCause.TOO_MUCH_MEMORY


@pytest.fixture
def _shared_memory() -> Iterator[None]:
    """Makes two runs of the tests on one machine take turns: the new files of both count, as they are of one user."""
    with Path(f"/dev/shm/ralph-tests-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("_shared_memory")
def test_files_in_shared_memory_count_for_the_commands_after_too(counting) -> None:
    place = Path(f"/dev/shm/ralph-test-{os.getpid()}")
    old = Path(f"{place}-old")
    old.write_bytes(bytes(60 * MIB))
    time.sleep(0.3)
    try:
        command = started(counting, "sleep 1.5")
        assert finished(command)[0] == 0, "a file that was there before is nobody's"
        command = started(counting, f"mkdir {place}; head -c 60000000 /dev/zero > {place}/x; sleep 20")
        finished(command)
        assert command.exceeded is EndCause.TOO_MUCH_MEMORY
        command = started(counting, "sleep 20")
        finished(command)
        assert command.exceeded is EndCause.TOO_MUCH_MEMORY
    finally:
        old.unlink()
        subprocess.run(["rm", "-r", str(place)], check=True)


def test_a_command_of_less_than_a_second_is_not_counted() -> None:
    supervising = CommandSupervisor(ENVIRONMENT, most_processes=1, most_memory_bytes=1, makes_group=False)
    try:
        command = started(supervising, "sleep 0.1 & sleep 0.1 & wait; echo done")
        assert finished(command) == (0, "done\n")
        assert command.exceeded is None
        command = started(supervising, "sleep 20")
        finished(command)
        assert command.exceeded is EndCause.TOO_MANY_PROCESSES
    finally:
        supervising.close()


def test_ralphs_own_programs_are_not_counted() -> None:
    supervising = CommandSupervisor(ENVIRONMENT, most_processes=1, makes_group=False)
    try:
        command = supervising.start(
            ["/bin/sh", "-c", "sleep 1.5 & sleep 1.5; wait"],
            cwd=Path("/"),
            environment=ENVIRONMENT,
            grace_s=1,
            is_confined=False,
        )
        assert finished(command)[0] == 0
    finally:
        supervising.close()
