"""Measures figures of ralph alone and compares each with a fixed upper bound. Measures a loop's iteration, a list of
sessions, the growth of memory in a long run, and the first request. Prints a Markdown table.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness import MockProcess, ralph, workplace
from benchmarks.outer_loop import own_part_ms
from benchmarks.sessions_list import list_all, make_journals
from ralph.mock_api import Scenario, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator

GROWTH_FROM, GROWTH_TO = 1_000, 5_000
FIRST_REQUEST_BYTES = 3_500


class Bound(NamedTuple):
    name: str
    figure: float
    unit: str
    at_most: float

    def __str__(self) -> str:
        judged = "" if self.figure <= self.at_most else ", over"
        return f"| {self.name} | {self.figure:,.1f} {self.unit} | {self.at_most:,.1f} {self.unit}{judged} |"


def main() -> None:
    print("\n| ralph alone, medians | figure | at most |\n| --- | --- | --- |")
    for bound in _bounds():
        print(bound, flush=True)


def _bounds() -> Iterator[Bound]:
    yield Bound("one loop iteration beyond its run, in a checkout", own_part_ms(), "ms", 60)
    with workplace() as place:
        make_journals(place)
        wall, _, peak_mb = list_all(place)
    yield Bound("`sessions ls --all` over 1 GB of journals, wall", wall.median, "ms", 1000)
    yield Bound("the same, resident memory", peak_mb.median, "MB", 150)
    yield Bound("growth per 1,000 turns beyond the conversation's bytes", growth_mb(), "MB", 1)
    yield Bound("bytes of the first request", _first_request_bytes(), "bytes", FIRST_REQUEST_BYTES)


def growth_mb() -> float:
    """The growth of the peak resident memory in MB per 1,000 turns, without the growth of the last request. Compares
    one run of 1,000 turns with one run of 5,000 turns.
    """
    sizes = [_memory_and_body_mb(turns) for turns in (GROWTH_FROM, GROWTH_TO)]
    (memory_before, body_before), (memory_after, body_after) = sizes
    grown_mb = (memory_after - memory_before) - (body_after - body_before)
    return grown_mb / (GROWTH_TO - GROWTH_FROM) * 1000


def _memory_and_body_mb(turns: int) -> tuple[float, float]:
    """The peak resident memory of a run with this number of turns, and the size of its last request, both in MB."""
    calls = [ToolUse("Read", {"file_path": "lines", "offset": n + 1, "limit": 1}) for n in range(turns - 1)]
    answers = [*(Turn([call]) for call in calls), Turn("Done.")]
    scenario = Scenario(answers, parse_requests=False)
    with MockProcess(scenario) as server, workplace(server.base_url) as place:
        (place.directory / "lines").write_text("line\n" * (turns + 1), encoding="utf-8")
        peak_mb = place.measure(ralph("run", "hi")).peak_mb
        return peak_mb, server.requests()[-1].body_bytes / 1e6


def _first_request_bytes() -> float:
    with MockProcess(Scenario([Turn("Done.")])) as server, workplace(server.base_url) as place:
        place.measure(ralph("run", "hi"))
        return statistics.median(request.body_bytes for request in server.requests())


if __name__ == "__main__":
    main()
