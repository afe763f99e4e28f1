"""Measures the peak resident memory of short runs, and of Python with single libraries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import (
    BARE_PYTHON,
    PYTHON,
    RUNS,
    MockProcess,
    Row,
    Workplace,
    ralph,
    repeat,
    show,
    workplace,
)
from ralph.mock_api import Scenario, ToolUse, Turn

if TYPE_CHECKING:
    from benchmarks.harness import Figure

TURNS = 20
_LIBRARIES = ("ssl", "typer", "httpx")


def main() -> None:
    with workplace() as place:
        bare = repeat(partial(peak_mb, place, *BARE_PYTHON))
        libraries = [
            Row(f"python -c 'import {name}'", repeat(partial(peak_mb, place, PYTHON, "-c", f"import {name}")))
            for name in _LIBRARIES
        ]
    rows = [
        Row("python -c pass", bare),
        *libraries,
        Row("ralph hi: one turn", _peak_of_run(turns=1), "45 MB"),
        Row(f"{TURNS} turns with Read, Glob and Bash", _peak_of_run(turns=TURNS), "45 MB"),
    ]
    show("Peak memory", rows, unit="MB", bare=bare)


def peak_mb(place: Workplace, *command: str) -> float:
    return place.measure(command).peak_mb


def _peak_of_run(turns: int) -> Figure:
    answers = [_tool_turn(number) for number in range(turns - 1)] + [Turn("Done.")]
    scenario = Scenario(answers * (RUNS + 1), parse_requests=False)
    with MockProcess(scenario) as server, workplace(server.base_url) as place:
        (place.directory / "numbers.txt").write_text("".join(f"line {n} of a file\n" for n in range(2000)))
        return repeat(partial(peak_mb, place, *ralph("run", "hi")))


def _tool_turn(number: int) -> Turn:
    """A turn with one call of Read, Glob or Bash. All calls are different, because ralph refuses repeated calls."""
    calls = (
        ToolUse("Read", {"file_path": "numbers.txt", "offset": number + 1, "limit": 200}),
        ToolUse("Glob", {"pattern": f"*{number}.txt"}),
        ToolUse("Bash", {"command": f"seq {number} 500"}),
    )
    return Turn([calls[number % 3]])


if __name__ == "__main__":
    main()
