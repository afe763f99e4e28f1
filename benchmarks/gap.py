"""Measures the gap between two turns of ralph with a command in between: from the last byte of an answer to the next
request. The server sends a complete answer at once and then reads the next request, so the time between two requests
is ralph's, apart from about one millisecond. All commands are different, because ralph refuses repeated calls.
"""

from __future__ import annotations

import subprocess
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.harness import RUNS, MockProcess, Row, figure, ralph, show, workplace
from ralph.mock_api import Scenario, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TURNS = 30
FILES = 20_000
MISSES = 3
"""The number of failing calls in a row. ralph's guards would refuse further ones."""


def main() -> None:
    commands = [ToolUse("Bash", {"command": f"echo {number}"}) for number in range(TURNS)]
    echo = _gaps(commands)
    open_echo = _gaps(commands, words=("--sandbox", "off"))
    read = _gaps(
        [ToolUse("Read", {"file_path": "lines", "offset": number + 1, "limit": 1}) for number in range(TURNS)]
    )
    rows = [
        Row("first command of a run (echo)", figure([gaps[0] for gaps in echo])),
        Row("every other command (echo)", figure([gap for gaps in echo for gap in gaps[1:]])),
        Row("first command, without sandbox", figure([gaps[0] for gaps in open_echo])),
        Row("every other, without sandbox", figure([gap for gaps in open_echo for gap in gaps[1:]])),
        Row("for comparison: Read of one line", figure([gap for gaps in read for gap in gaps[1:]])),
    ]
    show("Gap between two turns", rows, unit="ms")
    rows = [
        Row(name, figure([gap for gaps in _gaps(calls, runs=3, make=_checkout) for gap in gaps[1:]]))
        for name, calls in _in_checkout().items()
    ]
    show(f"Gap between two turns, in a checkout of {FILES:,} files", rows, unit="ms")


def _in_checkout() -> dict[str, list[ToolUse]]:
    numbers = range(TURNS)
    missing = [f"    return value_{number} - other\n    done" for number in range(MISSES)]
    return {
        "Read of one line": [
            ToolUse("Read", {"file_path": "lines", "offset": number + 1, "limit": 1}) for number in numbers
        ],
        "Glob, 200 of the files": [
            ToolUse("Glob", {"pattern": f"**/file_{number}.py"}) for number in numbers
        ],
        "Grep, one match": [ToolUse("Grep", {"pattern": f"number {number} of all$"}) for number in numbers],
        "Edit of one line": [
            ToolUse(
                "Edit",
                {"file_path": "edited", "old_string": f"line {number}.", "new_string": f"done {number}."},
            )
            for number in numbers
        ],
        "Edit that does not match, in 10 MB": [
            ToolUse("Edit", {"file_path": "large", "old_string": old, "new_string": "x"}) for old in missing
        ],
    }


def _checkout(directory: Path) -> None:
    subprocess.run(("git", "init", "-q"), cwd=directory, check=True)
    for number in range(FILES):
        file = directory / f"part_{number % 200}" / f"file_{number // 200}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"# number {number} of all\n" + "value = 1\n" * 50, encoding="utf-8")
    (directory / "edited").write_text("".join(f"line {number}.\n" for number in range(TURNS)))
    lines = "".join(f"    return value_{number} + other  # {number}\n" for number in range(1000))
    (directory / "large").write_text((lines * (10_000_000 // len(lines) + 1))[:10_000_000], encoding="utf-8")


def _gaps(
    calls: list[ToolUse],
    *,
    runs: int = RUNS,
    make: Callable[[Path], None] | None = None,
    words: tuple[str, ...] = (),
) -> list[list[float]]:
    """The gaps in milliseconds, as one list for each run. `words` are further options of the run."""
    scenario = Scenario([Turn([call]) for call in calls] + [Turn("Done.")], parse_requests=False)
    gaps = []
    for _ in range(runs):
        with MockProcess(scenario, keep_requests=None) as server, workplace(server.base_url) as place:
            (place.directory / "lines").write_text("line\n" * (TURNS + 1), encoding="utf-8")
            if make is not None:
                make(place.directory)
            place.measure(ralph("run", "hi", *words))
            times_s = [request.monotonic_s for request in server.requests()]
        gaps.append([(after - before) * 1000 for before, after in pairwise(times_s)])
    return gaps


if __name__ == "__main__":
    main()
