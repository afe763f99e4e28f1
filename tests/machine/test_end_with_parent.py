"""A process that ends with its parent, such as an iteration of a loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import ralph
from tests.patience import wait_until, within_s
from tests.processes.children import is_gone

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl")

KILLS = 10
# The parent's pid and a command, which shows what it is given.
CHILD = f"""
import os, sys
sys.path.insert(0, {str(Path(ralph.__file__).parents[1])!r})
from ralph.machine.process_start import end_with_parent
end_with_parent(int(sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])
"""
# Starts such a process, says its pid, and waits to be killed.
PARENT = """
import os, subprocess, sys
line = [sys.executable, "-I", "-S", "-c", sys.argv[1], str(os.getpid()), *sys.argv[2:]]
child = subprocess.Popen(line, start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def line_for(*command: str, parent_pid: int | None = None) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", CHILD, str(parent_pid or os.getpid()), *command]


def test_it_continues_while_its_parent_lives() -> None:
    with subprocess.Popen(line_for("sh", "-c", "echo $$; exit 7"), stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=within_s(30))
    assert (int(output), process.returncode) == (process.pid, 7)


@linux_only
def test_it_has_no_signal_blocked_or_ignored_that_stops_it() -> None:
    blocked = {signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    ignored = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        ran = subprocess.run(
            line_for("grep", "Sig[BI]", "/proc/self/status"), check=True, capture_output=True, text=True
        )
    finally:
        signal.signal(signal.SIGTERM, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    masks = {name: int(mask, 16) for name, mask in (line.split(":") for line in ran.stdout.splitlines())}
    assert masks["SigBlk"] == 0
    assert not masks["SigIgn"] & 1 << (signal.SIGTERM - 1)


def test_without_its_parent_it_starts_nothing(tmp_path) -> None:
    line = line_for("touch", str(tmp_path / "started"), parent_pid=os.getppid())
    assert subprocess.run(line, check=False).returncode == 143
    assert not (tmp_path / "started").exists()


def is_named(process_id: int, name: str) -> bool:
    return Path(f"/proc/{process_id}/comm").read_text().strip() == name


@linux_only
@pytest.mark.parametrize("moment", ["in its start", "as the command"])
def test_it_ends_with_a_parent_that_is_killed(moment) -> None:
    line = [sys.executable, "-I", "-S", "-c", PARENT, CHILD, "sleep", "99"]
    for delay_ms in range(0, 4 * KILLS, 4) if moment == "in its start" else [0]:
        with subprocess.Popen(line, stdout=subprocess.PIPE, bufsize=0) as parent:
            assert parent.stdout
            child = int(parent.stdout.readline())
            if moment == "as the command":
                wait_until(partial(is_named, child, "sleep"))
            time.sleep(delay_ms / 1000)
            parent.send_signal(signal.SIGKILL)
        assert is_gone(child)
