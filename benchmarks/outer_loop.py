"""Measures what an iteration of `ralph loop` costs in addition to the `ralph run` that it starts.

A loop of three iterations, a loop of one iteration, and a run of the same task are measured by turns, so that other
programs disturb all of them alike. The cost of the loop itself is the difference of two differences, so it varies
more than other figures.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from benchmarks.harness import (
    BARE_PYTHON,
    Figure,
    MockProcess,
    Row,
    figure,
    ralph,
    repeat,
    show,
    workplace,
)
from ralph.mock_api import FOREVER, Scenario, Step, Turn

if TYPE_CHECKING:
    from benchmarks.harness import Workplace

ITERATIONS = 3
"""The iterations of the longer loop. A loop ends by itself after four iterations without progress."""
RUNS = 11


def main() -> None:
    scenario = Scenario([Step(Turn("Done."), repeat=FOREVER)], parse_requests=False)
    with MockProcess(scenario) as server, workplace(server.base_url) as place:
        bare = repeat(lambda: wall_ms(place, *BARE_PYTHON), runs=RUNS)
        rows = [Row("python -c pass", bare)]
        for where in ("outside git", "in a checkout"):
            if where == "in a checkout":
                make_checkout(place)
            run, iteration, own = in_turn(place)
            rows += [
                Row("ralph hi", run),
                Row(f"one iteration more, {where}", iteration),
                Row("of that the loop's own", own, "60 ms"),
            ]
    show("ralph loop", rows, unit="ms", bare=bare)


def own_part_ms() -> float:
    """The median time in ms that the loop itself takes for an iteration that changes nothing in a git checkout."""
    scenario = Scenario([Step(Turn("Done."), repeat=FOREVER)], parse_requests=False)
    with MockProcess(scenario) as server, workplace(server.base_url) as place:
        make_checkout(place)
        _, _, own = in_turn(place)
    return own.median


def in_turn(place: Workplace, runs: int = RUNS) -> tuple[Figure, Figure, Figure]:
    """Three figures of wall time in ms: for a run, for one more iteration of a loop, and for the loop's own part of
    this iteration, which is the difference of the two.
    """
    rows = [_once(place) for _ in range(runs + 1)][1:]
    run, iteration, own = (figure(column) for column in zip(*rows, strict=True))
    return run, iteration, own


def _once(place: Workplace) -> tuple[float, float, float]:
    run = wall_ms(place, *ralph("run", "hi"))
    iteration = (loop_ms(place, ITERATIONS) - loop_ms(place, 1)) / (ITERATIONS - 1)
    return run, iteration, iteration - run


def loop_ms(place: Workplace, iterations: int) -> float:
    options = ("--max-iterations", str(iterations), "--until", "false")
    return place.measure(ralph("loop", "--print", "hi", *options), exit_code=3).wall_s * 1000


def wall_ms(place: Workplace, *command: str) -> float:
    return place.measure(command).wall_s * 1000


def make_checkout(place: Workplace) -> None:
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["config", "user.name", "benchmark"],
        ["config", "user.email", "benchmark@localhost"],
        ["commit", "-q", "--allow-empty", "-m", "begin"],
    ):
        subprocess.run(["git", *arguments], cwd=place.directory, env=place.environment(), check=True)


if __name__ == "__main__":
    main()
