"""Runs all measurements and prints their tables. Takes about ten minutes. Nothing else should run on the machine
meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = (
    "startup",
    "ratios",
    "bounds",
    "memory",
    "request_size",
    "turns",
    "dialects",
    "gap",
    "sandbox",
    "stream",
    "outer_loop",
)


def main() -> None:
    for name in NAMES:
        subprocess.run(
            (sys.executable, "-m", f"benchmarks.{name}"), cwd=Path(__file__).parents[1], check=True
        )


if __name__ == "__main__":
    main()
