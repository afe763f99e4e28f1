"""`--metrics-file` with whole runs: what the file says after each kind of end, and that it never harms a run."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ralph.mock_api import Fault, Step
from tests.conftest import may_pass_over_permissions
from tests.patience import wait_until
from tests.program.machine.test_disk import in_small_disk, needs_mounts
from tests.program.model_answers import DONE, SCHEMA, bash, report
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program.conftest import Ralph

Labels = tuple[tuple[str, str], ...]


def numbers(path: Path) -> dict[tuple[str, Labels], float]:
    """The numbers in the file by name and labels, as a reader of the format sees them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def number(path: Path, name: str, **labels: str) -> float | None:
    """The number of one sample, or None if there is no such sample."""
    return numbers(path).get((f"ralph_{name}", tuple(sorted(labels.items()))))


@pytest.fixture
def prom(ralph: Ralph) -> Path:
    return ralph.cwd / "run.prom"


def run(ralph: Ralph, *arguments: str):
    return ralph("go", "--metrics-file", "run.prom", *arguments)


def test_after_a_success_the_file_tells_what_the_result_tells(ralph, serve, prom) -> None:
    ralph.retry_quickly()
    serve(bash("true"), Fault(status=529), bash("false"), report(payload={}), report(payload={"files": 1}))
    ran = run(ralph, "--json-schema", SCHEMA, "--output-format", "json").having(0)
    model = "claude-sonnet-5-5"
    about = {"model": model, "target": model}
    assert number(prom, "requests_total", outcome="answered", **about) == 4
    assert number(prom, "requests_total", outcome="overloaded", **about) == 1
    assert number(prom, "retries_total", kind="overloaded") == ran.result["retries"] == 1
    assert number(prom, "retry_wait_seconds_total") == pytest.approx(ran.result["waited_s"], abs=0.01)
    assert number(prom, "turns_total") == ran.result["num_turns"] == 3
    assert number(prom, "tokens_total", model=model, type="output") == ran.result["usage"]["output_tokens"]
    assert number(prom, "cost_usd_total", model=model) == pytest.approx(ran.result["total_cost_usd"])
    assert number(prom, "tool_calls_total", tool="Bash", result="ok") == 1
    assert number(prom, "tool_calls_total", tool="Bash", result="error") == 1
    assert number(prom, "tool_calls_total", tool="final_report", result="error") == 1
    accepted = {"source": "tool_call", "status": "success", "forced_final_reason": "none"}
    assert number(prom, "final_report_total", **accepted) == 1
    assert number(prom, "final_report_attempts_total") == 2
    assert number(prom, "final_report_turns_sum") == 3
    assert number(prom, "retry_collapse_total", reason="report_failed") == 1
    assert number(prom, "run_outcome", outcome="completed") == 1
    assert number(prom, "run_exit_code") == 0


SILENT = Step(DONE, Fault(stall_before_headers_s=math.inf))


MISUSE = {
    "nothing to do": ((), b""),
    "no session": (("--continue",), None),
    "a wrong flag": (("go", "--max-turns", "0"), None),
}


@every_row("name", MISUSE)
def test_misuse_leaves_a_file_that_does_not_look_like_a_killed_run(
    ralph, ralph_here, serve, prom, name
) -> None:
    arguments, stdin = MISUSE[name]
    serve(DONE)
    prom.write_text("ralph_run_exit_code 0\n")
    words = (*arguments, "--metrics-file", "run.prom")
    assert (ralph_here(*words) if stdin is None else ralph(*words, stdin=stdin)).code == 2
    assert number(prom, "run_exit_code") == 2
    assert number(prom, "run_outcome", outcome="completed") is None


def test_a_killed_run_leaves_a_whole_file_without_an_end_and_the_next_run_cleans_up(
    ralph, serve, prom
) -> None:
    server = serve(SILENT, DONE)
    process = ralph.start("go", "--metrics-file", "run.prom")
    wait_until(lambda: server.request_count == 1)
    process.kill()
    ralph.finish(process)
    assert number(prom, "last_write_time_seconds") is not None
    assert number(prom, "run_exit_code") is None
    assert run(ralph).code == 0
    assert number(prom, "run_exit_code") == 0
    assert [path.name for path in ralph.cwd.iterdir()] == ["run.prom"]


# The whole program with a shorter interval than a minute. tests/output/telemetry/test_metrics_file.py tests the minute.
IMPATIENT = """
import sys
import ralph.output.metrics_file as metrics_file
metrics_file.WRITE_EVERY_S = 0.2
sys.argv = ["ralph", "run", "go", "--metrics-file", "run.prom"]
from ralph.__main__ import main
main()
"""


def test_the_file_is_kept_fresh_while_a_run_waits(ralph, serve, prom) -> None:
    """The run waits for a command here. All waits are one call of the waiter."""
    server = serve(bash("sleep 60"))
    command = [sys.executable, "-c", IMPATIENT]
    process = subprocess.Popen(
        command, cwd=ralph.cwd, env=ralph.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until(lambda: server.request_count == 1)
    writes: set[float | None] = set()

    def has_written_again() -> bool:
        writes.add(number(prom, "last_write_time_seconds"))
        return len(writes) >= 4

    wait_until(has_written_again)
    assert number(prom, "run_exit_code") is None
    assert ralph.stopped_by(process, signal.SIGTERM).code == 143


# Root has the right to write there, and learns only by trying that nobody can.
NOT_IN_PROC = (
    (74, "cannot write the metrics file /proc/run.prom")
    if may_pass_over_permissions()
    else (2, "the directory /proc cannot be written to")
)


@every_row(
    ("path", "code", "why"),
    [
        ("missing/run.prom", 2, "missing does not exist"),
        (".", 2, "is a directory"),
        ("-", 2, "--metrics-file: must be a file"),
        ("/dev/full", 74, "cannot write the metrics file /dev/full: No space left on device"),
        ("/proc/run.prom", *NOT_IN_PROC),
    ],
)
def test_a_path_that_cannot_be_written_is_one_line_and_nothing_is_sent(
    ralph_here, serve, path, code, why
) -> None:
    server = serve(DONE)
    ran = ralph_here("go", "--metrics-file", path)
    assert (ran.code, server.request_count, ran.stdout) == (code, 0, "")
    [line] = ran.stderr.splitlines()
    assert why in line


@needs_mounts
def test_a_disk_that_is_full_at_the_end_is_told_and_changes_nothing(ralph, serve, tmp_path) -> None:
    place, kept = tmp_path / "metrics", tmp_path / "kept"
    serve(bash(f"head -c 1000000 /dev/zero > {place}/filler; echo filled"), DONE)
    mount = "mount -t tmpfs -o size=64k tmpfs"
    after = f"cp -r '{place}' '{kept}'"
    words = ("go", "--metrics-file", str(place / "run.prom"), "--sandbox", "off")
    ran = in_small_disk(ralph, mount, place, *words, after=after)
    assert (ran.code, ran.stdout) == (0, "All done.\n")
    told = f"[notice] cannot write the metrics file {place}/run.prom: No space left on device"
    assert ran.stderr.splitlines()[-2] == told
    assert ran.last_line.startswith("[ralph] completed")
    assert sorted(path.name for path in kept.iterdir()) == ["filler", "run.prom"]
    assert number(kept / "run.prom", "run_exit_code") is None
