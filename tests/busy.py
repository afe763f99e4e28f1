"""`python -m tests.busy [pytest's arguments]`: runs the tests while six other programs want the processor all the time.

They end with this process, however it ends.
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
    """The exit code of the tests."""
    command = [sys.executable, "-I", "-S", "-c", _BUSY, str(os.getpid())]
    busy = [subprocess.Popen(command) for _ in range(_PROGRAMS)]
    try:
        return subprocess.call([sys.executable, "-m", "pytest", *arguments])
    except KeyboardInterrupt:  # the tests got it too, and have told what came of them
        return 130
    finally:
        for program in busy:
            program.kill()
            program.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
