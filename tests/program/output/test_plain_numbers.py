"""Numbers in what ralph writes for programs: no sum of them shows how floats round."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ralph.mock_api import Fault
from tests.program.model_answers import DONE, bash

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program.conftest import Ralph

# No cost or time has more than nine decimals. Only the moments in a metrics file have an exponent.
LONG_NUMBER = re.compile(r"\S{,30}\s?\b\d+\.\d{10,}(?!\d|e\+09)")
DOWN = Fault(status=529)


def long_numbers(*texts: str) -> list[str]:
    return [found for text in texts for found in LONG_NUMBER.findall(text)]


def files_below(place: Path) -> list[str]:
    """The texts of the files that ralph wrote."""
    return [
        path.read_text() for path in place.rglob("*") if path.suffix in {".json", ".jsonl", ".prom", ".log"}
    ]


def wait_twice(ralph: Ralph) -> None:
    """Makes the first waits of a request 0.05 s and 0.1 s. As floats, their sum is 0.15000000000000002."""
    ralph.user_file.write_text("[retry]\npolicy = 'custom'\nbase_delay_s = 0.05\n")


def test_what_a_run_writes_has_no_long_number(ralph, serve, tmp_path) -> None:
    wait_twice(ralph)
    serve(DOWN, DOWN, bash("true"), bash("false"), DOWN, DOWN, DONE)
    files = ("--metrics-file", "m.prom", "--result-file", "r.json", "--debug-file", "run.log")
    ran = ralph("go", "--output-format", "stream-json", *files)
    recovered = [entry for entry in ran.objects if entry.get("subtype") == "retry_recovered"]
    assert [entry["total_wait_s"] for entry in recovered] == [0.15, 0.15]
    assert ran.result["waited_s"] == 0.3
    told = [
        ralph("sessions", *words, "--format", "json").stdout
        for words in (["ls"], ["export", ran.result["session_id"]])
    ]
    assert json.loads(told[1])["totals"]["cost_usd"] == ran.result["total_cost_usd"] == 0.00017
    assert (len(files_below(tmp_path)), long_numbers(ran.stdout, *told, *files_below(tmp_path))) == (4, [])


def test_what_a_loop_writes_has_no_long_number(ralph, ralph_here, serve, tmp_path) -> None:
    wait_twice(ralph)
    serve(*[DOWN, DOWN, bash("true"), DONE] * 3)
    limits = ("--max-iterations", "3", "--max-budget-usd", "0.3")
    ran = ralph("loop", "go", *limits, "--output-format", "stream-json")
    status, listed = (
        ralph_here("loop", *words).stdout for words in (["--status", "--json"], ["ls", "--format", "json"])
    )
    assert json.loads(status)["totals"]["cost_usd"] == json.loads(listed)[0]["cost_usd"] == 0.0003
    assert json.loads(status)["left"]["usd"] == 0.2997
    assert long_numbers(ran.stdout, status, listed, *files_below(tmp_path)) == []
