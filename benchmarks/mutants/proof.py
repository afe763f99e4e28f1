"""Proves the rows of `specs/seeds.md`: makes each mistake of `SEEDS` in a copy of the repository and runs the tests
that its rows name. A row survives a mistake if none of its own tests fails.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.mutants.copies import copied_to, modules_of, place_of
from benchmarks.mutants.seeds import named_tests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.mutants.seeds import Break

LIMIT_S = 240.0
"""The longest time for the tests of one mistake. All tests together, without a mistake, may take ten times as long."""


class Copy:
    """A copy of the repository in which one mistake at a time is made."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        copied_to(directory)
        self._modules = modules_of(directory / "ralph")
        self._times_s = count(int(time.time()) - 1_000_000)

    def failed_without(self, tests: Sequence[str]) -> set[str]:
        """The tests that fail without a mistake."""
        return self._failed(tests, 10 * LIMIT_S)

    def failed_with(self, mistake: Break, tests: Sequence[str]) -> set[str]:
        """The tests that fail with the mistake, twice. Tests that do not end in time count as failed."""
        module = place_of(mistake, self._modules)
        try:
            self._write(module, self._modules[module].replace(mistake.old, mistake.new))
            failed = self._failed(tests, LIMIT_S)
            return failed and self._failed(sorted(failed), LIMIT_S)
        finally:
            self._write(module, self._modules[module])

    def _write(self, module: Path, text: str) -> None:
        """Writes a module. Each write gets a second of its own, by which Python knows that its bytecode is stale."""
        module.write_text(text)
        at_s = next(self._times_s)
        os.utime(module, (at_s, at_s))

    def _failed(self, tests: Sequence[str], limit_s: float) -> set[str]:
        """The tests that fail, without their parameters. None if they cannot even be collected."""
        if not tests:  # pytest would run all that there are
            return set()
        words = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no", *tests]
        try:
            ran = subprocess.run(
                [sys.executable, *words],
                cwd=self._directory,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return set(tests)
        if ran.returncode > 1:
            print(f"pytest ended with {ran.returncode}: {ran.stdout[-1000:]}{ran.stderr[-1000:]}")
            return set()
        return set(re.findall(r"^(?:FAILED|ERROR) (tests/[\w/]+\.py::\w+)", ran.stdout, re.MULTILINE))


def survivors(mistakes: Sequence[Break], *, workers: int) -> list[str]:
    """Makes the mistakes, and prints what came of each. Returns the rows whose tests did not notice one. Raises
    RuntimeError if a test fails without a mistake.
    """
    tests_of = named_tests()
    survived: list[str] = []
    free: queue.Queue[Copy] = queue.Queue()

    def unnoticed(mistake: Break) -> list[str]:
        copy, started_s = free.get(), time.monotonic()
        failed = copy.failed_with(mistake, tests_for([mistake]))
        free.put(copy)
        rows = [row for row in mistake.rows if not failed.intersection(tests_of[row])]
        fate = f"SURVIVED: {' '.join(rows)}" if rows else "killed"
        print(f"{mistake.name}: {fate} ({time.monotonic() - started_s:.0f} s)", flush=True)
        return rows

    def tests_for(chosen: Sequence[Break]) -> list[str]:
        return sorted({test for mistake in chosen for row in mistake.rows for test in tests_of[row]})

    with tempfile.TemporaryDirectory(prefix="ralph-seeds-") as name, ThreadPoolExecutor(workers) as pool:
        copies = [Copy(Path(name) / str(number)) for number in range(workers)]
        shares = [tests_for(mistakes)[number::workers] for number in range(workers)]
        broken = sorted(set().union(*pool.map(Copy.failed_without, copies, shares)))
        if broken:
            raise RuntimeError(f"{len(broken)} tests fail without a mistake: {', '.join(broken)}")
        for copy in copies:
            free.put(copy)
        for rows in pool.map(unnoticed, mistakes):
            survived += rows
    return survived
