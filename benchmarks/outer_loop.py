"""What an iteration of `ralph loop` costs beside the `ralph run` that it starts."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from benchmarks.harness import BARE_PYTHON, Figure, MockProcess, Row, ralph, repeat, show, workplace
from ralph.mock_api import FOREVER, Scenario, Step, Turn

if TYPE_CHECKING:
    from benchmarks.harness import Workplace

ITERATIONS = 3
"""As many as may pass without progress."""
RUNS = 7


def main() -> None:
    scenario = Scenario([Step(Turn("Done."), repeat=FOREVER)], parse_requests=False)
    with MockProcess(scenario) as server, workplace(server.base_url) as place:
        bare = repeat(lambda: wall_ms(place, *BARE_PYTHON), runs=RUNS)
        run = repeat(lambda: wall_ms(place, *ralph("hi")), runs=RUNS)
        plain = repeat(lambda: per_iteration_ms(place), runs=RUNS)
        make_checkout(place)
        git = repeat(lambda: per_iteration_ms(place), runs=RUNS)
        rows = [
            Row("python -c pass", bare),
            Row("ralph hi", run),
            Row("one iteration more, outside git", plain),
            Row("one iteration more, in a checkout", git),
            Row(
                "of that the loop's own, in a checkout",
                Figure(git.median - run.median, git.minimum - run.minimum),
            ),
        ]
    show("ralph loop", rows, unit="ms", bare=bare)


def per_iteration_ms(place: Workplace) -> float:
    return (loop_ms(place, ITERATIONS) - loop_ms(place, 1)) / (ITERATIONS - 1)


def loop_ms(place: Workplace, iterations: int) -> float:
    options = ("--max-iterations", str(iterations), "--until", "false")
    return place.measure(ralph("loop", "hi", *options), exit_code=3).wall_s * 1000


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
