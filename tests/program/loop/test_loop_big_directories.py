"""A loop outside git with huge files and trees in its directory: its memory stays bounded, and a signal ends it
at once. tests/loop/test_plain_directory.py tests rules without end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.loop.record import RecordError
from tests.patience import wait_until
from tests.program.conftest import loop_lines, loop_record
from tests.program.model_answers import bash

if TYPE_CHECKING:
    from collections.abc import Iterator

SPARSE_BYTES = 20_000_000_000

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


def peak_mb(process_id: int) -> float:
    status = Path(f"/proc/{process_id}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


class Peak:
    """Measures the peak of a process's memory until the process ends."""

    def __init__(self, process_id: int) -> None:
        self.mb = 0.0
        self._process_id = process_id
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while True:
            try:
                self.mb = max(self.mb, peak_mb(self._process_id))
            except (OSError, StopIteration):  # it has ended
                return
            time.sleep(0.05)


def sparse(path: Path, size: int = SPARSE_BYTES) -> None:
    with path.open("wb") as file:
        file.truncate(size)


@pytest.fixture
def deep_tree(ralph) -> Iterator[Path]:
    """A tree of 1100 directories, each inside the other, with a file in the last one."""
    place = ralph.cwd / "deep"
    place.mkdir()
    held = os.open(place, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=held)
        below = os.open("d", os.O_RDONLY, dir_fd=held)
        os.close(held)
        held = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=held))
    os.close(held)
    yield place
    subprocess.run(["rm", "-rf", place], check=True)  # pytest's own way of removing it is recursive


def test_sparse_files_pipes_and_deep_trees_end_no_loop_and_cost_no_memory(
    ralph, iterations, deep_tree
) -> None:
    (ralph.cwd / ".gitignore").write_text("ignored*\n")
    sparse(ralph.cwd / "sparse")
    os.mkfifo(ralph.cwd / "pipe")
    iterations([bash("touch ignored5; echo 1 > file")])
    process = ralph.start("loop", "go", "--max-iterations", "1")
    peak = Peak(process.pid)
    ran = ralph.finish(process).having(0)
    assert [record["files"] for record in loop_record(ralph)["iterations"]] == [["file"]]
    assert not [line for line in loop_lines(ran) if "cannot be listed" in line]
    assert 0 < peak.mb < 200
    assert deep_tree.exists()


def test_a_signal_among_rules_without_end_is_answered_and_not_after_them(ralph) -> None:
    """The directory is listed right after the first record is saved. Listing it would take until the pipe is given up."""
    os.mkfifo(ralph.cwd / ".gitignore")
    ralph.environment["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:1"
    process = ralph.start("loop", "go")
    wait_until(lambda: started(ralph))
    ran = ralph.stopped_by(process, signal.SIGTERM, code=143)
    assert "cannot be listed" not in ran.stderr


def started(ralph) -> bool:
    try:
        return bool(loop_record(ralph)["started_at"])
    except RecordError:  # there is none yet
        return False
