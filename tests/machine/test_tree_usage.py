from __future__ import annotations

import subprocess
import sys

import pytest

from ralph.machine.tree_usage import exact_memory_bytes, tree_usage, why_too_much

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
MIB = 1024 * 1024
# Four processes and two threads beside; the parent's memory is shared with its children until somebody writes to it.
TREE = """
import os, threading, time
memory = bytearray(os.urandom(64 * 1024 * 1024))
for _ in range(2):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
for _ in range(3):
    if os.fork() == 0:
        time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def root():
    """The pid of a process with descendants."""
    with subprocess.Popen(
        [sys.executable, "-c", TREE], stdout=subprocess.PIPE, start_new_session=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        yield started.pid
        for pid in reversed(tree_usage(started.pid).pids):
            subprocess.run(["kill", "-9", str(pid)], check=False)


def test_processes_and_threads_of_a_tree_are_counted(root) -> None:
    usage = tree_usage(root)
    assert (len(usage.pids), usage.tasks) == (4, 6)
    assert why_too_much(root, 6, 0) == ""
    assert why_too_much(root, 5, 0) == "more than 5 processes and threads"
    assert why_too_much(root, 0, 0) == ""


def test_shared_memory_counts_once_where_it_matters(root) -> None:
    usage = tree_usage(root)
    assert usage.memory_bytes > 4 * 64 * MIB
    assert 64 * MIB < exact_memory_bytes(usage.pids) < 150 * MIB
    assert why_too_much(root, 0, 200 * MIB) == ""
    assert why_too_much(root, 0, 60 * MIB) == "more than 60 MiB of memory"


def test_a_tree_that_has_ended_uses_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    usage = tree_usage(ended.pid)
    assert (usage.tasks, usage.memory_bytes) == (0, 0)
    assert why_too_much(ended.pid, 1, 1) == ""
