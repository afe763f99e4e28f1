"""CPU time of ralph for one answer of 20,000 text deltas, start-up apart."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from harness import BARE_PYTHON, Figure, MockProcess, Row, Workplace, ralph, repeat, show, workplace

from ralph.mock_api import FOREVER, Scenario, Step, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

DELTAS = 20_000
CHUNK_CHARS = 16
_LINES = ("x" * (5 * CHUNK_CHARS - 1) + "\n") * (DELTAS // 5)
_ONE_LINE = "x" * (CHUNK_CHARS * DELTAS)
_PARTIAL = ("--output-format", "stream-json", "--include-partial-messages")


def main() -> None:
    with workplace() as place:
        bare = repeat(partial(cpu_ms, place, BARE_PYTHON))
    rows = [
        Row("python -c pass", bare),
        Row("one delta, text", _cpu_of_run("Done.")),
        Row(f"{DELTAS:,} deltas, text", _cpu_of_run(_LINES)),
        Row(f"{DELTAS:,} deltas, text, all one line", _cpu_of_run(_ONE_LINE)),
        Row(f"{DELTAS:,} deltas, text, --quiet", _cpu_of_run(_LINES, "--quiet")),
        Row(f"{DELTAS:,} deltas, stream-json, partial", _cpu_of_run(_LINES, *_PARTIAL)),
    ]
    show("CPU time of one long answer", rows, unit="ms", bare=bare)


def cpu_ms(place: Workplace, command: Sequence[str]) -> float:
    return place.measure(command).cpu_s * 1000


def _cpu_of_run(text: str, *options: str) -> Figure:
    step = Step(Turn(text, chunk_chars=CHUNK_CHARS), repeat=FOREVER)
    with MockProcess(Scenario([step], parse_requests=False)) as server, workplace(server.base_url) as place:
        return repeat(partial(cpu_ms, place, ralph("hi", *options)))


if __name__ == "__main__":
    main()
