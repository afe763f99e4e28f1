"""The tether as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from ralph.loop.process import tether
from tests.children import is_gone
from tests.patience import wait_until, within_s

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl")

KILLS = 10
# Starts a tethered command, says its pid, and waits to be killed.
PARENT = """
import os, subprocess, sys
tether = [sys.executable, "-I", "-S", sys.argv[1], str(os.getpid())]
child = subprocess.Popen([*tether, *sys.argv[2:]], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def line_for(*command: str, parent_pid: int | None = None) -> list[str]:
    return [sys.executable, "-I", "-S", tether.__file__, str(parent_pid or os.getpid()), *command]


def test_it_becomes_the_command_with_the_same_pid_and_its_exit_code() -> None:
    with subprocess.Popen(line_for("sh", "-c", "echo $$; exit 7"), stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=within_s(30))
    assert (int(output), process.returncode) == (process.pid, 7)


@pytest.mark.parametrize(("command", "status"), [("/no/such", 127), ("/", 126)])
def test_a_command_that_is_none_says_so(command, status) -> None:
    done = subprocess.run(line_for(command), capture_output=True, check=False)
    assert done.returncode == status
    assert done.stderr.startswith(f"{command}: ".encode())


def test_without_its_parent_it_starts_nothing(tmp_path) -> None:
    line = line_for("touch", str(tmp_path / "started"), parent_pid=os.getppid())
    assert subprocess.run(line, check=False).returncode == 143
    assert not (tmp_path / "started").exists()


def is_named(process_id: int, name: str) -> bool:
    return Path(f"/proc/{process_id}/comm").read_text().strip() == name


@linux_only
@pytest.mark.parametrize("moment", ["in its start", "as the command"])
def test_it_ends_with_a_parent_that_is_killed(moment) -> None:
    line = [sys.executable, "-I", "-S", "-c", PARENT, tether.__file__, "sleep", "99"]
    for delay_ms in range(0, 4 * KILLS, 4) if moment == "in its start" else [0]:
        with subprocess.Popen(line, stdout=subprocess.PIPE, bufsize=0) as parent:
            assert parent.stdout
            child = int(parent.stdout.readline())
            if moment == "as the command":
                wait_until(partial(is_named, child, "sleep"))
            time.sleep(delay_ms / 1000)
            parent.send_signal(signal.SIGKILL)
        assert is_gone(child)
