"""Runs a program as in a container that forbids namespaces, so that ralph's sandbox reaches the level `landlock`:
`without_namespaces.py PROGRAM ARGUMENTS...`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    sys.path[0] = str(Path(__file__).parents[1])
    from tests.program.namespaces import forbidding_namespaces  # noqa: PLC0415 - found there only now

    forbidding_namespaces()["preexec_fn"]()
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
