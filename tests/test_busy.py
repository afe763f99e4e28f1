"""The busy programs of `make test-busy` must end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ralph.machine import launcher
from tests.patience import wait_until
from tests.processes.children import is_gone, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
ROOT = Path(__file__).parents[1]
PROGRAMS = 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_six_busy_programs_run_beside_the_tests_and_end_with_them(number, tmp_path) -> None:
    waits = tmp_path / "test_waits.py"
    waits.write_text("def test_it():\n    import time\n    time.sleep(600)\n")
    command = [sys.executable, "-m", "tests.busy", "-p", "no:cacheprovider", str(waits)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        wait_until(lambda: len(busy_below(process.pid)) == PROGRAMS)
        wait_until(lambda: len(launcher.children_of(process.pid)) == PROGRAMS + 1)
        busy, programs = busy_below(process.pid), launcher.children_of(process.pid)
        try:
            process.send_signal(number)
            if number == signal.SIGINT:
                launcher.send_signal(programs, number)  # a terminal sends it to all of them
            process.wait()
            assert all(is_gone(pid) for pid in busy)
        finally:
            launcher.send_signal([pid for pid in programs if is_running(pid)], signal.SIGKILL)


def busy_below(pid: int) -> list[int]:
    found = []
    for child in launcher.children_of(pid):
        with suppress(OSError):  # gone
            if b"getppid" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found
