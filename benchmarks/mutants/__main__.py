"""Applies each mutant to a copy of the repository and runs the tests that may fail: `python -m benchmarks.mutants
[NAME...]`. `--check` only tests whether the text of each mutant occurs exactly once. `--all` runs the whole test
suite for each mutant. `--seeds` proves the rows of `specs/seeds.md` (or those that are named) instead: each mistake of
`seeds.py` must make a test fail that its rows name. Not part of the suite.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.mutants.copies import REPOSITORY, copied_to, modules_of, place_of
from benchmarks.mutants.mutants import MUTANTS
from benchmarks.mutants.proof import survivors
from benchmarks.mutants.seeds import SEEDS

if TYPE_CHECKING:
    from benchmarks.mutants.mutants import Mutant
    from benchmarks.mutants.seeds import Break

LIMIT_S = 900.0


def files_for(mutant: Mutant, tests: Path) -> list[str]:
    """The test files to run for a mutant, in an order that soon finds a failure: small files first, then those in
    `cli` folders, then the recorded scenes.
    """
    found = {path for pattern in mutant.tests for path in tests.rglob(pattern)}
    ordered = sorted(found, key=lambda path: ("cli" in path.parts, path.stat().st_size))
    return [str(path) for path in (*ordered, *sorted((tests / "recorded").glob("test_*.py")))]


def fate_of(mutant: Mutant, *, runs_all: bool, workers: int) -> str:
    """Runs the tests with the mutant. Returns "killed by" and the first test that fails, "SURVIVED" if none does, or
    "NOT RUN" with a reason. A failed test is run again alone, and does not count if it then passes.
    """
    with tempfile.TemporaryDirectory(prefix="ralph-mutant-") as name:
        directory = Path(name)
        copied_to(directory)
        module = place_of(mutant, modules_of(directory / "ralph"))
        module.write_text(module.read_text().replace(mutant.old, mutant.new))
        files = [str(directory / "tests")] if runs_all else files_for(mutant, directory / "tests")
        doubtful: list[str] = []
        while True:
            code, failed = _ran(
                directory, ["-n", str(workers), *files, *(f"--deselect={one}" for one in doubtful)]
            )
            if code == 0:
                return "SURVIVED"
            if not failed:
                return f"NOT RUN: pytest ended with {code}"
            again, _ = _ran(directory, ["-n", "0", failed[0]])
            if again or failed[0] in doubtful:
                return f"killed by {failed[0][:140]}"
            doubtful.append(failed[0])


def _ran(directory: Path, words: list[str]) -> tuple[int, list[str]]:
    """Runs pytest until the first failure. Returns its exit code and the failed test. If the tests take too long,
    they count as failed.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *words]
    try:
        ran = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, ["all of them: they did not end"]
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return ran.returncode, [line.split(" ", 1)[1].split(" - ")[0] for line in lines]


def main() -> int:
    """Tries the mutants. Returns 0 if a test failed for each of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seeds", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    proofs = [one for one in SEEDS if not options.names or set(one.rows) & set(options.names)]
    missing, modules = [], modules_of(REPOSITORY / "ralph")
    mistakes: tuple[Mutant | Break, ...] = (*chosen, *proofs)
    for mistake in mistakes:
        try:
            place_of(mistake, modules)
        except ValueError as error:
            missing.append(str(error))
    print(f"{len(mistakes)} mutants, {len(missing)} without their place", *missing, sep="\n")
    if options.check or missing:
        return int(bool(missing))
    if options.seeds:
        alive = survivors(proofs, workers=options.workers)
        rows = {row for one in proofs for row in one.rows}
        print(f"{len(proofs)} mistakes for {len(rows)} rows; survivors: {' '.join(alive) or 'none'}")
        return int(bool(alive))
    killed = 0
    for mutant in chosen:
        started_s = time.monotonic()
        fate = fate_of(mutant, runs_all=options.all, workers=options.workers)
        killed += fate.startswith("killed")
        print(f"{mutant.name}: {fate} ({time.monotonic() - started_s:.0f} s)", flush=True)
    print(f"{killed} of {len(chosen)} killed")
    return int(killed < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
