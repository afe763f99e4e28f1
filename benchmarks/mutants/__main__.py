"""`python -m benchmarks.mutants [NAME...]`: applies one mutant after the other to a copy and runs the tests that may see it.

`--check` only says whether each text is found once; `--all` runs the whole suite for each. Not part of the suite.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.mutants.mutants import MUTANTS, Mutant

REPOSITORY = Path(__file__).parents[2]
COPIED = (
    "ralph",
    "tests",
    "docs",
    "specs",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
    "loop.sh",
)
LIMIT_S = 900.0


def place_of(mutant: Mutant, package: Path) -> Path:
    """The one module that holds its text. Raises ValueError."""
    found = [path for path in sorted(package.rglob("*.py")) if mutant.old in path.read_text()]
    if len(found) != 1 or found[0].read_text().count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: its text stands in {len(found)} modules, or twice in one")
    return found[0]


def copied_to(directory: Path) -> None:
    """What the tests need."""
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copyfile(source, directory / name)


def files_for(mutant: Mutant, tests: Path) -> list[str]:
    """The smaller files first, as most mutants die early; then the recordings."""
    found = {path for pattern in mutant.tests for path in tests.rglob(pattern)}
    ordered = sorted(found, key=lambda path: ("cli" in path.parts, path.stat().st_size))
    return [str(path) for path in (*ordered, *sorted((tests / "recorded").glob("test_*.py")))]


def fate_of(mutant: Mutant, *, runs_all: bool, workers: int) -> str:
    """Which test killed it, or that it survived. A test that fails once and then passes has killed nothing."""
    with tempfile.TemporaryDirectory(prefix="ralph-mutant-") as name:
        directory = Path(name)
        copied_to(directory)
        module = place_of(mutant, directory / "ralph")
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
    """Pytest's exit code, and which tests failed. Tests that do not end in time have failed."""
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
    """0: all were killed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    missing = []
    for mutant in chosen:
        try:
            place_of(mutant, REPOSITORY / "ralph")
        except ValueError as error:
            missing.append(str(error))
    print(f"{len(chosen)} mutants, {len(missing)} without their place", *missing, sep="\n")
    if options.check or missing:
        return int(bool(missing))
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
