"""Measures the CPU time of ralph for turns 10, 100 and 1,000 of a run, without sending the request. A request
contains the whole history, so sending it takes longer in later turns. Nothing else may take longer. The server
answers at once and checks nothing. Each turn reads 20 lines of a file.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import PYTHON, MockProcess, figure, workplace
from ralph.mock_api import Scenario, ToolUse, Turn

TURNS = 1010
LOOKED_AT = (10, 100, 1000)
AROUND = 5
"""The result for a turn is the median of this turn and of this many turns before and after it."""
RUNS = 15
METERED_RUN = Path(__file__).with_name("metered_run.py")


class TurnCost(NamedTuple):
    own_ms: float
    """The CPU time from the start of one request to the start of the next, without the time to send it."""
    sending_ms: float
    body_bytes: int


def main() -> None:
    runs = [_run() for _ in range(RUNS)]
    print("\nCPU time per turn")
    print(f"{'':12}{'median ms':>12}{'minimum ms':>12}{'sending ms':>12}{'body bytes':>12}{'x turn 10':>12}")
    base = figure([_at(turns, LOOKED_AT[0]).own_ms for turns in runs])
    for number in LOOKED_AT:
        costs = [_at(turns, number) for turns in runs]
        own = figure([cost.own_ms for cost in costs])
        sending = statistics.median(cost.sending_ms for cost in costs)
        ratio = own.median / base.median
        print(f"turn {number:<7,}{own.median:12.2f}{own.minimum:12.2f}{sending:12.2f}", end="")
        print(f"{costs[0].body_bytes:12,}{ratio:12.2f}")
    print(f"target: turn {LOOKED_AT[-1]:,} within 1.2 x turn {LOOKED_AT[0]}")


def _at(turns: list[TurnCost], number: int) -> TurnCost:
    """The result for turn `number` of one run, counted from 1."""
    near = turns[number - 1 - AROUND : number + AROUND]
    return TurnCost(
        statistics.median(turn.own_ms for turn in near),
        statistics.median(turn.sending_ms for turn in near),
        turns[number - 1].body_bytes,
    )


def _run() -> list[TurnCost]:
    # All calls are different, because ralph refuses repeated calls.
    calls = [
        ToolUse("Read", {"file_path": "numbers.txt", "offset": n + 1, "limit": 20}) for n in range(TURNS)
    ]
    scenario = Scenario([Turn([call]) for call in calls] + [Turn("Done.")], parse_requests=False)
    with MockProcess(scenario) as server, workplace(server.base_url) as place:
        lines = "".join(f"line {n} of a file that is read a little at a time\n" for n in range(2 * TURNS))
        (place.directory / "numbers.txt").write_text(lines, encoding="utf-8")
        figures = place.home / "figures.json"
        place.measure((PYTHON, str(METERED_RUN), str(figures), "run", "hi"))
        starts_s, sending_s, body_bytes = json.loads(figures.read_text(encoding="utf-8"))
    return [
        TurnCost((starts_s[n + 1] - starts_s[n] - sending_s[n]) * 1000, sending_s[n] * 1000, body_bytes[n])
        for n in range(TURNS)
    ]


if __name__ == "__main__":
    main()
