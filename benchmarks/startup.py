"""Measures the time from the start of the process to the output of `--version` and `--help`, and to the first
request.
"""

from __future__ import annotations

from benchmarks.harness import BARE_PYTHON, MockProcess, Row, Workplace, ralph, repeat, show, workplace
from ralph.mock_api import FOREVER, Scenario, Step, Turn


def main() -> None:
    scenario = Scenario([Step(Turn("Done."), repeat=FOREVER)], parse_requests=False)
    with MockProcess(scenario) as server, workplace(server.base_url) as place:
        bare = repeat(lambda: wall_ms(place, *BARE_PYTHON))
        rows = [
            Row("python -c pass", bare),
            Row("ralph --version", repeat(lambda: wall_ms(place, *ralph("--version"))), "60 ms"),
            Row(
                "ralph --complete, an option",
                repeat(lambda: wall_ms(place, *ralph("--complete", "zsh", "--re"))),
                "60 ms",
            ),
            Row(
                "ralph --complete, sessions",
                repeat(lambda: wall_ms(place, *ralph("--complete", "zsh", "-r", ""))),
                "60 ms",
            ),
            Row("ralph --help", repeat(lambda: wall_ms(place, *ralph("--help"))), "250 ms"),
            Row("ralph run --help", repeat(lambda: wall_ms(place, *ralph("run", "--help")))),
            Row("ralph run hi: first request", repeat(lambda: first_request_ms(place, server)), "250 ms"),
            Row("ralph run hi: to the end", repeat(lambda: wall_ms(place, *ralph("run", "hi")))),
        ]
    show("Start-up", rows, unit="ms", bare=bare)


def wall_ms(place: Workplace, *command: str) -> float:
    return place.measure(command).wall_s * 1000


def first_request_ms(place: Workplace, server: MockProcess) -> float:
    """The time until the server has read the first request."""
    started_s = place.measure(ralph("run", "hi")).started_s
    return (server.requests()[-1].monotonic_s - started_s) * 1000


if __name__ == "__main__":
    main()
