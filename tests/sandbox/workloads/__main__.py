"""Installs what the workloads need, plays them at each level of the sandbox, and prints what came of it, a line a row and level.

    python -m tests.sandbox.workloads [NAME...]

Exit 1 if a workload does at a level what its row does not say, or if something cannot be installed or a level cannot be made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.sandbox.workloads.play import LEVELS, command_line
from tests.sandbox.workloads.programs import FOLDER, FOLDER_VARIABLE, install, missing_of
from tests.sandbox.workloads.table import WORKLOADS
from tests.services.outside_programs import NotInstalledError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.sandbox.workloads.table import Workload

NOTE = "[the sandbox "
"""How a line of ralph's about a denial begins."""


def played(level: str, workloads: Sequence[Workload]) -> Iterator[dict[str, Any]]:
    """Plays the workloads in a process of their own. Yields what `play` prints of each. Fails if it ends early."""
    with subprocess.Popen(
        command_line(level, [one.name for one in workloads]),
        env={**os.environ, FOLDER_VARIABLE: str(FOLDER)},
        stdout=subprocess.PIPE,
        text=True,
    ) as player:
        assert player.stdout is not None
        yield from map(json.loads, player.stdout)
    assert player.returncode == 0, f"{level}: the player ended with {player.returncode}"


def why_not_as_told(workload: Workload, level: str, came: dict[str, Any]) -> str:
    """How what came of a workload differs from its row, or an empty string."""
    fails = workload.fails(level, has_sockets=came["has_sockets"])
    text: str = came["text"]
    note = text.partition(NOTE)[2].partition("]")[0]
    if fails is None:
        wrong = came["has_failed"] or workload.seen not in text or note
        return f"{workload.name} does not work with {level}:\n{text}" if wrong else ""
    wrong = (
        not came["has_failed"]
        or fails.seen not in text
        or (fails.told not in note if fails.told else note)
        or (fails.told and "longer timeout" in text)
    )
    return f"{workload.name} does not fail with {level} as its row says:\n{text}" if wrong else ""


def main() -> int:
    names = set(sys.argv[1:])
    chosen = [one for one in WORKLOADS if not names or one.name in names]
    needed = {name for one in chosen for name in one.needs.split()}
    try:
        install(needed)
    except NotInstalledError as error:
        return _complain(str(error))
    if missing := missing_of(needed):
        return _complain(f"not installed: {', '.join(missing)}")
    wrong = []
    for level in LEVELS:
        for workload, came in zip(chosen, played(level, chosen), strict=True):
            why = why_not_as_told(workload, level, came)
            if why:
                wrong.append(why)
                print(why, flush=True)  # noqa: T201
            fails = workload.fails(level, has_sockets=came["has_sockets"])
            known = "WRONG" if why else "works" if fails is None else "fails, told" if fails.told else "fails"
            print(f"{level:12} {workload.name:36} {known:12} {came['took_s']:6.1f} s", flush=True)  # noqa: T201
    return int(bool(wrong))


def _complain(message: str) -> int:
    print(f"workloads: {message}", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
