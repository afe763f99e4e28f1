"""Compares ralph with the smallest possible program (`benchmarks/floor.py`). Both are measured by turns in the same
session, and the table shows ratios of their medians. A ratio says more than a time, because both programs ran on the
same machine under the same load. The results are in `specs/speed.md`.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import tempfile
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness import BARE_PYTHON, PYTHON, MockProcess, figure, ralph, workplace
from benchmarks.startup import wall_ms
from benchmarks.stream import PARTIAL, send_apart
from ralph.mock_api import FOREVER, Scenario, Step, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.harness import Measured, Workplace

FLOOR = (PYTHON, str(Path(__file__).with_name("floor.py")), "hi")
RUNS = 15
STREAM_RUNS = 7
COMMANDS = 30


class Ratio(NamedTuple):
    name: str
    ralph: float
    floor: float
    unit: str
    at_most: float
    """The target. 0 if there is none."""

    def __str__(self) -> str:
        ratio = self.ralph / self.floor
        judged = "" if ratio <= self.at_most or not self.at_most else ", over"
        return (
            f"| {self.name} | {self.ralph:,.1f} {self.unit} | {self.floor:,.1f} {self.unit}"
            f" | {ratio:.2f} | {self.at_most or '-'}{judged} |"
        )


def main() -> None:
    print("\n| ralph beside the floor, medians | ralph | floor | ratio | at most |")
    print("| --- | --- | --- | --- | --- |")
    for measure in (_starts, _one_turn, _one_turn_over_tls, _gaps, _deltas):
        for ratio in measure():
            print(ratio, flush=True)


def in_turn(*measures: Callable[[], list[float]], runs: int = RUNS) -> list[list[float]]:
    """The medians of the values that each function returns. All functions are called by turns. The first call of each
    is not counted.
    """
    for measure in measures:
        measure()
    taken: list[list[list[float]]] = [[] for _ in measures]
    for _ in range(runs):
        for number, measure in enumerate(measures):
            taken[number].append(measure())
    return [[figure(column).median for column in zip(*rows, strict=True)] for rows in taken]


def _starts() -> Sequence[Ratio]:
    with workplace() as place:
        bare, version, helped = in_turn(
            lambda: [wall_ms(place, *BARE_PYTHON)],
            lambda: [wall_ms(place, *ralph("--version"))],
            lambda: [wall_ms(place, *ralph("--help"))],
        )
    return (
        Ratio("--version, against python -c pass", version[0], bare[0], "ms", 1.4),
        Ratio("--help, against python -c pass", helped[0], bare[0], "ms", 4),
    )


def _one_turn() -> Sequence[Ratio]:
    scenario = Scenario([Step(Turn("Done."), repeat=FOREVER)], parse_requests=False)
    with MockProcess(scenario) as server, workplace(server.base_url) as place:

        def once(command: Sequence[str]) -> list[float]:
            measured: Measured = place.measure(command)
            first_s = server.requests()[-1].monotonic_s - measured.started_s
            return [first_s * 1000, measured.wall_s * 1000, measured.cpu_s * 1000, measured.peak_mb]

        ours, floor = in_turn(lambda: once(ralph("run", "hi")), lambda: once(FLOOR))
    names = ("start to first request", "one turn, wall", "one turn, CPU", "one turn, resident memory")
    rows = zip(names, ours, floor, ("ms", "ms", "ms", "MB"), (3, 2.6, 2.75, 1.6), strict=True)
    return [Ratio(*row) for row in rows]


def _one_turn_over_tls() -> Sequence[Ratio]:
    """Measures like `_one_turn`, but both programs must load OpenSSL and check a certificate."""
    with tempfile.TemporaryDirectory() as folder:
        certificate = _certificate(Path(folder))
        with (
            _sender("Done.", certificate) as port,
            workplace(f"https://127.0.0.1:{port}", certificate) as place,
        ):

            def once(command: Sequence[str]) -> list[float]:
                measured = place.measure(command)
                return [measured.cpu_s * 1000, measured.peak_mb]

            ours, floor = in_turn(lambda: once(ralph("run", "hi")), lambda: once(FLOOR))
    names = ("one turn over TLS, CPU", "one turn over TLS, resident memory")
    return [Ratio(*row, 0) for row in zip(names, ours, floor, ("ms", "MB"), strict=True)]


def _certificate(folder: Path) -> str:
    """Makes a key and a certificate for 127.0.0.1 with openssl, and returns the file with both."""
    both = str(folder / "both.pem")
    request = (
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    )
    subject = ("-days", "2", "-subj", "/CN=benchmark", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        (*request, *subject, "-keyout", both, "-out", f"{both}.cert"), check=True, capture_output=True
    )
    with Path(both).open("a", encoding="ascii") as file:
        file.write(Path(f"{both}.cert").read_text(encoding="ascii"))
    return both


@contextmanager
def _sender(*arguments: str) -> Iterator[int]:
    """Runs `send_apart` in a process of its own and yields the port of its server."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=send_apart, args=(theirs, *arguments), daemon=True
    )
    server.start()
    try:
        yield ours.recv()
    finally:
        server.terminate()
        server.join()


def _gaps() -> Sequence[Ratio]:
    """The times between two requests with one tool call in between. All calls are different."""
    commands = [ToolUse("Bash", {"command": f"echo {number}"}) for number in range(COMMANDS)]
    reads = [
        ToolUse("Read", {"file_path": "lines", "offset": number + 1, "limit": 1})
        for number in range(COMMANDS)
    ]
    return [
        Ratio("gap between turns, Bash echo, --sandbox off", *_gap(commands, "--sandbox", "off"), "ms", 2.5),
        Ratio("gap between turns, Bash echo, with the sandbox", *_gap(commands), "ms", 0),
        Ratio("gap between turns, Read of a line in between", *_gap(reads), "ms", 0),
    ]


def _gap(calls: Sequence[ToolUse], *options: str) -> tuple[float, float]:
    """The gaps of ralph with these options, and of the floor."""
    answers = [Turn([call]) for call in calls] + [Turn("Done.")]
    scenario = Scenario(answers * 2 * (RUNS + 1), parse_requests=False)
    with MockProcess(scenario, keep_requests=len(answers)) as server, workplace(server.base_url) as place:
        (place.directory / "lines").write_text("line\n" * (COMMANDS + 1), encoding="utf-8")

        def once(command: Sequence[str]) -> list[float]:
            place.measure(command)
            times_s = [request.monotonic_s for request in server.requests()]
            gaps_ms = [(after - before) * 1000 for before, after in pairwise(times_s)]
            return [figure(gaps_ms[1:]).median]

        (ours,), (floor,) = in_turn(lambda: once(ralph("run", "hi", *options)), lambda: once(FLOOR))
    return ours, floor


def _deltas() -> Sequence[Ratio]:
    """User and system time for an answer with 20,000 deltas, each in its own packet."""
    with _sender() as port, workplace(f"http://127.0.0.1:{port}") as place:
        (text,), (partial,), (floor,) = in_turn(
            lambda: [_cpu_ms(place, ralph("run", "hi"))],
            lambda: [_cpu_ms(place, ralph("run", "hi", *PARTIAL))],
            lambda: [_cpu_ms(place, FLOOR)],
            runs=STREAM_RUNS,
        )
    return (
        Ratio("20,000 deltas, a packet each, CPU, text", text, floor, "ms", 2),
        Ratio("20,000 deltas, a packet each, CPU, stream-json, partial", partial, floor, "ms", 3),
    )


def _cpu_ms(place: Workplace, command: Sequence[str]) -> float:
    return place.measure(command).cpu_s * 1000


if __name__ == "__main__":
    main()
