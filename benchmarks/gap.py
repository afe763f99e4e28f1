"""The gap between two turns in which a command ran: from the last byte of an answer to the next request.

The server sends a whole answer at once and reads the next request, so what lies between two requests is ralph's, but for
the server's own millisecond. Each command differs from the others, or the guard against repeated calls would answer.
"""

from __future__ import annotations

from itertools import pairwise

from benchmarks.harness import RUNS, MockProcess, Row, figure, ralph, show, workplace
from ralph.mock_api import Scenario, ToolUse, Turn

TURNS = 30


def main() -> None:
    echo = _gaps([ToolUse("Bash", {"command": f"echo {number}"}) for number in range(TURNS)])
    read = _gaps(
        [ToolUse("Read", {"file_path": "lines", "offset": number + 1, "limit": 1}) for number in range(TURNS)]
    )
    rows = [
        Row("first command of a run (echo)", figure([gaps[0] for gaps in echo])),
        Row("every other command (echo)", figure([gap for gaps in echo for gap in gaps[1:]])),
        Row("for comparison: Read of one line", figure([gap for gaps in read for gap in gaps[1:]])),
    ]
    show("Gap between two turns", rows, unit="ms")


def _gaps(calls: list[ToolUse]) -> list[list[float]]:
    """In milliseconds, of each run."""
    scenario = Scenario([Turn([call]) for call in calls] + [Turn("Done.")], parse_requests=False)
    runs = []
    for _ in range(RUNS):
        with MockProcess(scenario, keep_requests=None) as server, workplace(server.base_url) as place:
            (place.directory / "lines").write_text("line\n" * (TURNS + 1), encoding="utf-8")
            place.measure(ralph("hi"))
            times_s = [request.monotonic_s for request in server.requests()]
        runs.append([(after - before) * 1000 for before, after in pairwise(times_s)])
    return runs


if __name__ == "__main__":
    main()
