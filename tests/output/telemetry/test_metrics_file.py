"""The metrics file must agree with the events, and be complete at every moment."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ralph.output.metrics_file import METRICS, TURN_BUCKETS, MetricsFile
from ralph.values import events as ev
from ralph.values.answer import ToolCall, ToolOutput, ToolResult
from ralph.values.outcome import Outcome
from ralph.values.servers import facts_of
from ralph.values.usage import TokenUsage
from tests.fakes import EPOCH, FakeClock
from tests.output.ended import ended
from tests.test_docs import DOCS, table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ralph.values.events import Event

OPUS = "claude-opus-5-5"


def samples(text: str) -> dict[str, float]:
    """Every sample of a document, by `name{label=value,...}` with sorted labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = float(sample.value)
    return found


class Counted:
    """A metrics file with events and a clock that the test controls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.told: list[str] = []
        self.file = MetricsFile(str(path), self.clock)

    def after(self, *events: Event) -> dict[str, float]:
        for event in events:
            self.file.emit(event)
        self.file.close()
        return self.written()

    def written(self) -> dict[str, float]:
        return samples(self.path.read_text())

    def tick_at(self, seconds: float) -> None:
        self.clock.seconds = seconds
        problem = self.file.tick(seconds)
        self.told += [] if problem is None else [problem]

    @property
    def beside(self) -> list[str]:
        return sorted(path.name for path in self.path.parent.iterdir())


@pytest.fixture
def counted(tmp_path) -> Counted:
    return Counted(tmp_path / "run.prom")


def attempt(
    tokens: TokenUsage | None = None,
    *,
    model: str = OPUS,
    target: str = "main",
    kind: str | None = None,
    latency_s: float = 0.5,
) -> ev.AttemptEnded:
    facts = facts_of(model)
    return ev.AttemptEnded(1, 1, target, model, latency_s, tokens or TokenUsage(), facts, kind=kind)


def finished(name: str, *, is_error: bool = False, took_s: float = 0.25) -> ev.ToolFinished:
    output = ToolOutput("out", is_error)
    return ev.ToolFinished(ToolCall("toolu_1", name, {}), ToolResult("toolu_1", output), took_s)


def report(
    attempts: int = 1, *, turn: int = 1, source: str = "tool_call", status: str = "success"
) -> ev.ReportAccepted:
    return ev.ReportAccepted(source, status, turn, attempts)


STARTED = ev.RunStarted("/work", OPUS, ("Bash", "Read", "final_report"), "ANTHROPIC_API_KEY")

EVERYTHING: tuple[Event, ...] = (
    STARTED,
    ev.TurnStarted(1),
    attempt(kind="overloaded"),
    ev.RetryScheduled(1, 4, 2.0, 529, "HttpError", "overloaded", "Overloaded"),
    attempt(TokenUsage(1_000_000, 100_000, 400_000, 0, 2_000_000), latency_s=1.5),
    ev.RetryRecovered(1, 2.25),
    finished("Bash"),
    finished("Bash", is_error=True, took_s=0.5),
    finished("Frobnicate", is_error=True, took_s=0.0),
    ev.TurnStarted(2),
    ev.TurnsCollapsed(2, "report_failed", None, 3),
    ev.TurnStarted(3),
    ev.ReportAccepted("text", "failure", 3, 2, "turns"),
    ended(Outcome.TASK_FAILED, num_turns=3, duration_s=12.5),
)

EXPECTED = {
    f"ralph_requests_total{{model={OPUS},outcome=overloaded,target=main}}": 1,
    f"ralph_requests_total{{model={OPUS},outcome=answered,target=main}}": 1,
    "ralph_retries_total{kind=overloaded}": 1,
    "ralph_retry_wait_seconds_total": 2.25,
    f"ralph_tokens_total{{model={OPUS},type=input}}": 1_000_000,
    f"ralph_tokens_total{{model={OPUS},type=cache_write}}": 400_000,
    f"ralph_tokens_total{{model={OPUS},type=cache_read}}": 2_000_000,
    f"ralph_tokens_total{{model={OPUS},type=output}}": 100_000,
    f"ralph_cost_usd_total{{model={OPUS}}}": 4 + 2 + 2 + 0.4,
    "ralph_turns_total": 3,
    "ralph_tool_calls_total{result=ok,tool=Bash}": 1,
    "ralph_tool_calls_total{result=error,tool=Bash}": 1,
    "ralph_tool_calls_total{result=error,tool=unknown}": 1,
    "ralph_retry_collapse_total{reason=report_failed}": 1,
    "ralph_final_report_total{forced_final_reason=turns,source=text,status=failure}": 1,
    "ralph_final_report_attempts_total": 2,
    **{f"ralph_final_report_turns_bucket{{le={most}.0}}": float(most >= 3) for most in TURN_BUCKETS},
    "ralph_final_report_turns_bucket{le=+Inf}": 1,
    "ralph_final_report_turns_count": 1,
    "ralph_final_report_turns_sum": 3,
    "ralph_runs_total{outcome=task_failed}": 1,
    "ralph_run_outcome{outcome=task_failed}": 1,
    "ralph_run_exit_code": 1,
    "ralph_sandbox_info{level=none}": 1,
    "ralph_last_write_time_seconds": EPOCH.timestamp() + 100,
}


def test_the_file_holds_what_the_events_said_and_nothing_else(counted) -> None:
    counted.clock.seconds = 100
    assert counted.after(*EVERYTHING) == EXPECTED


def test_before_anything_happened_sums_are_0_and_no_end_is_claimed(counted) -> None:
    counted.file.open()
    written = counted.written()
    assert {name: value for name, value in written.items() if "_time_seconds" not in name} == {
        **{metric.name: 0 for metric in METRICS if metric.name.endswith("_total") and not metric.labels},
        **{name: 0 for name in EXPECTED if name.startswith("ralph_final_report_turns")},
    }


# --- Single numbers


def costs(written: dict[str, float]) -> list[str]:
    return [name for name in written if name.startswith("ralph_cost")]


def test_a_cost_of_which_a_part_is_not_known_is_not_told(counted) -> None:
    used = TokenUsage(input=10)
    unpriced = ev.AttemptEnded(1, 1, "spare", OPUS, 0.5, used, facts=None)
    assert costs(counted.after(attempt(used))) != []
    assert costs(counted.after(unpriced, attempt(used))) == []


@pytest.mark.parametrize("chain_end", [ev.RetryRecovered(2, 3.5), ev.RetryExhausted(2, 3.5, "Overloaded")])
def test_waits_are_counted_by_what_they_took_and_not_by_what_was_planned(counted, chain_end) -> None:
    planned = ev.RetryScheduled(1, 4, 60.0, 529, "HttpError", "overloaded", "Overloaded")
    assert counted.after(planned)["ralph_retry_wait_seconds_total"] == 0
    assert counted.after(chain_end)["ralph_retry_wait_seconds_total"] == 3.5


def test_names_that_a_model_invents_are_one_time_series(counted) -> None:
    invented = [finished(f"tool_{n}", is_error=True) for n in range(100)]
    written = counted.after(STARTED, *invented, finished("Read"), finished("final_report"))
    assert {name: value for name, value in written.items() if name.startswith("ralph_tool_calls")} == {
        "ralph_tool_calls_total{result=error,tool=unknown}": 100,
        "ralph_tool_calls_total{result=ok,tool=Read}": 1,
        "ralph_tool_calls_total{result=ok,tool=final_report}": 1,
    }


@pytest.mark.parametrize(
    ("events", "turns"),
    [
        ([ev.TurnStarted(1)], 0),
        ([ev.TurnStarted(1), ev.TurnStarted(2)], 1),
        # A turn that begins again after its failure is the same turn.
        ([ev.TurnStarted(3), ev.TurnStarted(3)], 2),
        ([ev.TurnStarted(3), ended(num_turns=3)], 3),
        ([ev.TurnStarted(3), ended(num_turns=2)], 2),
        # An end that knows of no turns takes none back.
        ([ev.TurnStarted(3), ended(Outcome.INTERNAL_ERROR, num_turns=0)], 2),
        ([ended(num_turns=3), ev.TurnStarted(1)], 3),
        ([ended(num_turns=3), ev.TurnStarted(2)], 4),
        ([ended(num_turns=3), ev.TurnStarted(2), ended(num_turns=2)], 5),
    ],
)
def test_turns_are_those_of_all_tasks_and_never_become_fewer(counted, events, turns) -> None:
    history = [counted.after(event)["ralph_turns_total"] for event in events]
    assert history == sorted(history)
    assert history[-1] == turns


@pytest.mark.parametrize(
    ("events", "attempts"),
    [
        ([report(1)], 1),
        ([report(3)], 3),
        ([report(0, source="synthetic", status="failure")], 0),
        # The same run says again what it has said.
        ([report(2), report(2)], 2),
        ([report(2), report(3)], 3),
        # The next task begins at 1 again.
        ([report(2), ended(), report(2), ended()], 4),
        ([report(3), ended(), report(1), ended()], 4),
    ],
)
def test_report_attempts_are_counted_once_task_by_task(counted, events, attempts) -> None:
    written = counted.after(*events)
    assert written["ralph_final_report_attempts_total"] == attempts


@pytest.mark.parametrize(("turn", "first"), [(0, 1), (1, 1), (2, 2), (4, 5), (5, 5), (89, 89)])
def test_a_report_is_in_every_bucket_from_its_turn_on(counted, turn, first) -> None:
    written = counted.after(report(turn=turn))
    within = [most for most in TURN_BUCKETS if written[f"ralph_final_report_turns_bucket{{le={most}.0}}"]]
    assert within == [most for most in TURN_BUCKETS if most >= first]


def test_a_driven_run_has_one_end_for_each_task_and_tells_the_last(counted) -> None:
    written = counted.after(
        ended(), ended(Outcome.LIMIT_REACHED), ended(), ended(Outcome.NO_PROGRESS, duration_s=2.0)
    )
    assert {name: value for name, value in written.items() if name.startswith("ralph_run")} == {
        "ralph_runs_total{outcome=completed}": 2,
        "ralph_runs_total{outcome=limit_reached}": 1,
        "ralph_runs_total{outcome=no_progress}": 1,
        "ralph_run_outcome{outcome=no_progress}": 1,
        "ralph_run_exit_code": 4,
    }


def test_the_exit_code_is_the_processs_where_the_two_differ(counted) -> None:
    counted.file.emit(ended())
    counted.file.close(74)
    assert counted.written()["ralph_run_exit_code"] == 74


def test_a_name_that_is_no_text_does_not_end_the_run(counted) -> None:
    written = counted.after(attempt(model="m\udcff", target="main"))
    assert written["ralph_requests_total{model=m?,outcome=answered,target=main}"] == 1


# --- The file


@pytest.mark.parametrize(
    ("moments_s", "written_at_s"),
    [
        ([59.9], 0),
        ([60.0], 60),
        ([59.9, 60.1], 60.1),
        ([60, 119.9], 60),
        ([61, 120.9], 61),
        ([61, 121], 121),
        # After a laptop's sleep: once, and not once for each minute of it.
        ([36_000, 36_059], 36_000),
    ],
)
def test_a_tick_writes_when_a_minute_has_passed_since_the_last_file(counted, moments_s, written_at_s) -> None:
    counted.file.open()
    for moment_s in moments_s:
        counted.tick_at(moment_s)
    assert counted.written()["ralph_last_write_time_seconds"] == EPOCH.timestamp() + written_at_s


def test_a_new_file_can_be_read_by_everybody_and_an_old_one_keeps_its_mode(counted) -> None:
    before = os.umask(0o022)
    try:
        counted.file.open()
        assert stat.S_IMODE(counted.path.stat().st_mode) == 0o644
        counted.path.chmod(0o600)
        counted.file.close()
        assert stat.S_IMODE(counted.path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_what_a_killed_writer_left_beside_the_file_is_removed(counted) -> None:
    (counted.path.parent / ".ralph-0123456789ab.tmp").write_text("ralph_requests_total{mod")
    counted.file.open()
    assert counted.beside == ["run.prom"]


def test_a_link_is_replaced_and_what_it_led_to_stays(counted) -> None:
    real = counted.path.parent / "real.prom"
    real.write_text("mine")
    counted.path.symlink_to(real)
    counted.file.open()
    assert not counted.path.is_symlink()
    assert samples(counted.path.read_text())
    assert real.read_text() == "mine"


def test_a_file_that_cannot_be_written_for_a_while_is_told_once_and_tried_each_minute(tmp_path) -> None:
    directory = tmp_path / "metrics"
    directory.mkdir()
    counted = Counted(directory / "run.prom")
    counted.file.open()
    shutil.rmtree(directory)
    for moment_s in (60, 60.2, 119, 120, 180):
        counted.tick_at(moment_s)
    sentence = f"cannot write the metrics file {counted.path}: No such file or directory"
    assert counted.told == [f"{sentence}; it is tried again each minute"]
    with pytest.raises(FileNotFoundError):
        counted.file.close()
    directory.mkdir()
    counted.tick_at(200)
    assert counted.beside == [], "the last try was 20 seconds ago"
    counted.tick_at(240)
    assert counted.written()["ralph_last_write_time_seconds"] == EPOCH.timestamp() + 240
    shutil.rmtree(directory)
    counted.tick_at(300)
    assert len(counted.told) == 1, "it was told already"


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(counted, monkeypatch, call) -> None:
    counted.file.open()
    before = counted.path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        counted.tick_at(60)
        with pytest.raises(OSError, match="No space left"):
            counted.file.close()
    assert [sentence.count("No space left on device") for sentence in counted.told] == [1]
    assert counted.path.read_bytes() == before
    assert counted.beside == ["run.prom"]


# --- Processes of their own


def output_of(*command: str, environment: Iterable[tuple[str, str]] = ()) -> str:
    ran = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **dict(environment)}
    )
    assert ran.stderr == ""
    return ran.stdout


def test_another_programs_shared_metrics_are_left_alone(tmp_path) -> None:
    shared, path = tmp_path / "shared", tmp_path / "run.prom"
    shared.mkdir()
    code = (
        "import sys\n"
        "from ralph.machine.waiter import SystemClock\n"
        "from ralph.output.metrics_file import MetricsFile\n"
        "MetricsFile(sys.argv[1], SystemClock()).open()\n"
    )
    setting = [("PROMETHEUS_MULTIPROC_DIR", str(shared))]
    assert output_of(sys.executable, "-c", code, str(path), environment=setting) == ""
    assert list(shared.iterdir()) == []
    assert samples(path.read_text())["ralph_turns_total"] == 0


# --- The page


def test_the_table_of_the_page_lists_what_the_file_holds(counted) -> None:
    counted.after(*EVERYTHING)
    written: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(counted.path.read_text()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert family.documentation
        written[name] = (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
    documented = {
        name.strip("`"): (kind, set(labels.replace("`", "").split()))
        for name, kind, labels, _ in table(DOCS / "telemetry.md", "Metric")
    }
    assert documented == written
    assert {metric.name for metric in METRICS} | {"ralph_final_report_turns"} == set(documented)
