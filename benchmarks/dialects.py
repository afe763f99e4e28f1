"""Compares the other APIs that ralph speaks with the Messages API: the CPU time of a turn, which is a request, its answer and
a Read of a line. Whole processes play the same scenario by turns. Only the process of ralph itself is counted, from its second
request to its last one, so neither its start nor other processes. The results are in `specs/speed.md`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import PYTHON, MockProcess, Workplace, workplace
from benchmarks.ratios import in_turn
from ralph.mock_api import Scenario, Text, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS = {"anthropic": "claude-sonnet-5-5", "openai-chat": "gpt-5", "openai-responses": "gpt-5"}
"""The model that is asked on each API."""
METERED_RUN = Path(__file__).with_name("metered_run.py")
TURNS = 40
RUNS = 15
AT_MOST = 1.1


def _one_delta(number: int) -> Turn:
    return Turn([Text("x"), _read(number)], chunk_chars=0)


def _deltas_of_text(number: int) -> Turn:
    return Turn([Text("x" * 400 * 16), _read(number)], chunk_chars=16)


def _deltas_of_arguments(number: int) -> Turn:
    return Turn([_read(number, "./" * 180)], chunk_chars=1)


def _read(number: int, folder: str = "") -> ToolUse:
    # All calls are different, because ralph refuses repeated calls.
    return ToolUse("Read", {"file_path": f"{folder}lines", "offset": number + 1, "limit": 1})


ANSWERS = {
    "one delta": _one_delta,
    "400 deltas of text": _deltas_of_text,
    "370 deltas of arguments": _deltas_of_arguments,
}


def main() -> None:
    print(f"\n| CPU of a turn, medians, at most {AT_MOST} | Messages | Chat | ratio | Responses | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, answer in ANSWERS.items():
        messages, *others = _costs_ms(answer)
        cells = " | ".join(f"{cost:.2f} ms | {cost / messages:.2f}" for cost in others)
        print(f"| {name} | {messages:.2f} ms | {cells} |", flush=True)


def _costs_ms(answer: Callable[[int], Turn]) -> list[float]:
    """The median cost of a turn on each API."""
    turns = [*map(answer, range(TURNS)), Turn("Done.")]
    # Each run of ralph uses up all turns.
    scenario = Scenario(turns * len(MODELS) * (RUNS + 1), validate=False)
    with MockProcess(scenario) as server, workplace(server.base_url) as place:
        (place.directory / "lines").write_text("line\n" * TURNS, encoding="utf-8")
        return [cost for (cost,) in in_turn(*(partial(_cost_ms, place, api) for api in MODELS), runs=RUNS)]


def _cost_ms(place: Workplace, api: str) -> list[float]:
    figures = place.home / "figures.json"
    options = ("--api", api, "--model", MODELS[api], "--base-url", place.base_url)
    place.measure((PYTHON, str(METERED_RUN), str(figures), "run", "hi", *options))
    starts_s, *_ = json.loads(figures.read_text(encoding="utf-8"))
    return [(starts_s[-1] - starts_s[1]) / (len(starts_s) - 2) * 1000]


if __name__ == "__main__":
    main()
