"""All measurements, one table after the other. Takes about seven minutes; leave the machine alone meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = ("startup", "ratios", "memory", "request_size", "turns", "gap", "stream", "outer_loop")


def main() -> None:
    for name in NAMES:
        subprocess.run(
            (sys.executable, "-m", f"benchmarks.{name}"), cwd=Path(__file__).parents[1], check=True
        )


if __name__ == "__main__":
    main()
