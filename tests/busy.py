"""Runs the tests while six other programs use the processor all the time: `python -m tests.busy [PYTEST
ARGUMENTS]`.

These programs end when this process ends, even if it is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys

_PROGRAMS = 6
_BUSY = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


def main(arguments: list[str]) -> int:
    """Runs pytest with the busy programs beside it. Returns pytest's exit code, or 130 after Ctrl-C."""
    command = [sys.executable, "-I", "-S", "-c", _BUSY, str(os.getpid())]
    busy = [subprocess.Popen(command) for _ in range(_PROGRAMS)]
    try:
        return subprocess.call([sys.executable, "-m", "pytest", *arguments])
    except KeyboardInterrupt:  # pytest received the signal too, and has printed its summary
        return 130
    finally:
        for program in busy:
            program.kill()
            program.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
