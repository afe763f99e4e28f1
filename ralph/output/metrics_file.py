"""`--metrics-file`: counts the events of a run, and writes the counts to a file in Prometheus' text format.

A reader always sees a complete file. Nothing is sent over a network. Import this module only if the option is given:
the client library loads HTTP servers and TLS, which takes about 60 ms.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ralph.machine.files.opened_file import remove_leftovers
from ralph.output.result_file import write_result_file
from ralph.values import events as ev
from ralph.values.answer import FINAL_REPORT
from ralph.values.usage import RunUsage, TokenUsage, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.values.events import Event
    from ralph.values.ports import Clock

WRITE_EVERY_S = 60.0

TURN_BUCKETS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
"""The buckets of a histogram of the turns in which models gave their final report. Most runs are short, and a few
are very long."""

UNKNOWN_TOOL = "unknown"
"""The label for every tool that does not exist. A label for each name that a model invents would make too many time
series."""


class _Metric(NamedTuple):
    """One metric. It is a counter if its name ends in `_total`, otherwise a gauge."""

    name: str
    labels: tuple[str, ...]
    about: str


# Names and labels are a promise, because people's alerts depend on them (docs/telemetry.md).
METRICS = (
    _Metric(
        "ralph_requests_total",
        ("model", "target", "outcome"),
        "Requests to the API, every attempt one. outcome: answered, interrupted, or the kind of failure.",
    ),
    _Metric("ralph_retries_total", ("kind",), "Retries, by the kind of failure that made them necessary."),
    _Metric(
        "ralph_retry_wait_seconds_total",
        (),
        "Seconds really waited between attempts; counted when the last attempt of a chain is over.",
    ),
    _Metric(
        "ralph_tokens_total",
        ("model", "type"),
        "Tokens as the server counted them. input: neither written to the cache nor read from it.",
    ),
    _Metric(
        "ralph_cost_usd_total",
        ("model",),
        "US dollars, failed attempts included. A model has no sample, never 0, once the price of anything it "
        "answered is not known.",
    ),
    _Metric("ralph_turns_total", (), "Turns: an accepted answer with the results of its tools."),
    _Metric(
        "ralph_tool_calls_total",
        ("tool", "result"),
        "Tool calls answered. result: ok or error, refused calls being errors. tool: unknown stands for every "
        "name that the model invented.",
    ),
    _Metric("ralph_retry_collapse_total", ("reason",), "Reports that failed and so shortened their run."),
    _Metric(
        "ralph_final_report_total",
        ("source", "status", "forced_final_reason"),
        "Final reports. source: tool_call, text, or synthetic (ralph's own, as the model gave none). "
        "forced_final_reason: none where nothing forced the final turn.",
    ),
    _Metric(
        "ralph_final_report_attempts_total",
        (),
        "Reports that the model sent, refused ones included; counted when a run's report is known.",
    ),
    _Metric("ralph_runs_total", ("outcome",), "Tasks that ended. A driver can give one process several."),
    _Metric("ralph_run_outcome", ("outcome",), "1 for how the last task ended; no sample before one has."),
    _Metric("ralph_run_exit_code", (), "Of the last end; no sample before there is one."),
    _Metric("ralph_sandbox_info", ("level",), "1 for the level of the sandbox in which commands run."),
    _Metric(
        "ralph_last_write_time_seconds",
        (),
        "Unix time at which this file was written, once a minute. Old, and no exit code: ralph did not end by itself.",
    ),
)


class MetricsFile:
    """An `Events` sink that counts events. `open`, `tick` and `close` write the file."""

    def __init__(self, path: str, clock: Clock, directories: Sequence[str] = ()) -> None:
        """`path` and `directories` are as in `result_file_problem`."""
        self._path = path
        self._directories = directories
        self._clock = clock
        self._has_told = False
        self._tried_s = clock.now_s()
        self._metrics = _RunMetrics()
        self._registry = CollectorRegistry()
        self._registry.register(self._metrics)

    def emit(self, event: Event) -> None:
        self._metrics.emit(event)

    def open(self) -> None:
        """Writes the file for the first time, before the first request. Raises OSError."""
        self._write()
        remove_leftovers(Path(self._path).parent)

    def tick(self, now_s: float) -> str | None:
        """Writes the file if the last attempt to write it was at least a minute ago. `now_s` is the current time.
        Call this several times a second. A failure does not end the run. For the first failure, returns a sentence
        about it. Otherwise returns None.
        """
        if now_s - self._tried_s < WRITE_EVERY_S:
            return None
        try:
            self._write()
        except OSError as error:
            if not self._has_told:
                self._has_told = True
                return f"{self.problem(error)}; it is tried again each minute"
        return None

    def close(self, exit_code: int | None = None) -> None:
        """Writes the file for the last time. Raises OSError. `exit_code` is that of the process. If it is None, the
        exit code in the file stays as it is.
        """
        if exit_code is not None:
            self._metrics.put("ralph_run_exit_code", exit_code)
        self._write()

    def problem(self, error: OSError) -> str:
        """A sentence for the user about an error of `open` or `close`."""
        return f"cannot write the metrics file {self._path}: {error.strerror or error}"

    def _write(self) -> None:
        self._tried_s = self._clock.now_s()
        self._metrics.put("ralph_last_write_time_seconds", self._clock.utc_now().timestamp())
        write_result_file(self._path, generate_latest(self._registry), self._directories)


class _RunMetrics:
    """The numbers of a run, as a collector for the client library. A metric without a value is not written.

    The library's own Counter and Gauge are not used. They share values through the directory in
    PROMETHEUS_MULTIPROC_DIR, which may belong to another program, and a Gauge starts at 0, which would be a wrong
    exit code.
    """

    def __init__(self) -> None:
        self._labels = {metric.name: metric.labels for metric in METRICS}
        self._numbers: dict[str, dict[tuple[str, ...], float]] = {metric.name: {} for metric in METRICS}
        self._tools = {FINAL_REPORT}
        self._usage = RunUsage()
        self._report_turns: list[int] = []
        # A run that a driver steers ends once per message, and its events count from 1 again.
        self._turns_of_ended_runs = 0
        self._turns_of_this_run = 0
        self._attempts_of_this_run = 0
        for name, labels in self._labels.items():
            if name.endswith("_total") and not labels:
                self.put(name, 0)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        numbers, key = self._numbers[name], self._key(name, labels)
        numbers[key] = numbers.get(key, 0) + amount

    def put(self, name: str, value: float, **labels: str) -> None:
        self._numbers[name][self._key(name, labels)] = value

    def _key(self, name: str, labels: dict[str, str]) -> tuple[str, ...]:
        """The label values as valid UTF-8. Invalid bytes, which a name from the command line may contain, are
        replaced.
        """
        return tuple(labels[label].encode(errors="replace").decode() for label in self._labels[name])

    def collect(self) -> Iterator[Metric]:
        for name, labels, about in METRICS:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, about, labels=labels)
            for values, number in self._numbers[name].items():
                family.add_metric(values, plain(number))
            yield family
        turns = self._report_turns
        within = [(str(float(most)), sum(turn <= most for turn in turns)) for most in TURN_BUCKETS]
        yield HistogramMetricFamily(
            "ralph_final_report_turns",
            "The turn that gave the report; of a synthetic one, the last turn.",
            buckets=[*within, ("+Inf", len(turns))],
            sum_value=sum(turns),
        )

    def emit(self, event: Event) -> None:
        match event:
            case ev.StreamReceived():
                pass  # the most frequent event by far
            case ev.AttemptEnded():
                self._count_attempt(event)
            case ev.RetryScheduled():
                self.add("ralph_retries_total", kind=event.kind)
            case ev.RetryRecovered() | ev.RetryExhausted():
                self.add("ralph_retry_wait_seconds_total", event.total_wait_s)
            case ev.ToolFinished():
                name = event.call.name if event.call.name in self._tools else UNKNOWN_TOOL
                result = "error" if event.result.output.is_error else "ok"
                self.add("ralph_tool_calls_total", tool=name, result=result)
            case ev.ReportAccepted():
                self._count_report(event)
            case ev.RunStarted():
                self._tools.update(event.tools)
                self.put("ralph_sandbox_info", 1, level=event.sandbox)
            case ev.RunEnded():
                self._count_end(event)
            case ev.TurnStarted():
                self._count_turns(event.turn - 1)
            case ev.TurnsCollapsed():
                self.add("ralph_retry_collapse_total", reason=event.reason)

    def _count_attempt(self, event: ev.AttemptEnded) -> None:
        tokens, model = event.tokens, event.model
        self.add("ralph_requests_total", model=model, target=event.target, outcome=event.kind or "answered")
        if tokens == TokenUsage():
            return
        self.add("ralph_tokens_total", tokens.input, model=model, type="input")
        self.add("ralph_tokens_total", tokens.cache_write, model=model, type="cache_write")
        self.add("ralph_tokens_total", tokens.cache_read, model=model, type="cache_read")
        self.add("ralph_tokens_total", tokens.output, model=model, type="output")
        # As in the result: if a part of a model's cost is unknown, the sum is unknown.
        self._usage = self._usage.plus(model, tokens, event.facts)
        self._numbers["ralph_cost_usd_total"].clear()
        for name, usage in self._usage.by_model.items():
            if usage.cost_usd is not None:
                self.put("ralph_cost_usd_total", usage.cost_usd, model=name)

    def _count_report(self, event: ev.ReportAccepted) -> None:
        forced = event.forced_reason or "none"
        self.add(
            "ralph_final_report_total", source=event.source, status=event.status, forced_final_reason=forced
        )
        # The event has the run's count so far.
        new_attempts = max(event.attempts - self._attempts_of_this_run, 0)
        self.add("ralph_final_report_attempts_total", new_attempts)
        self._attempts_of_this_run += new_attempts
        self._report_turns.append(event.turn)

    def _count_turns(self, of_this_run: int) -> None:
        """Sets the number of turns to `of_this_run`, but never lowers it: a run that ends early reports 0."""
        self._turns_of_this_run = max(of_this_run, self._turns_of_this_run)
        self.put("ralph_turns_total", self._turns_of_ended_runs + self._turns_of_this_run)

    def _count_end(self, event: ev.RunEnded) -> None:
        self._count_turns(event.num_turns)
        self._turns_of_ended_runs += self._turns_of_this_run
        self._turns_of_this_run = self._attempts_of_this_run = 0
        outcome = event.outcome.value
        self.add("ralph_runs_total", outcome=outcome)
        self._numbers["ralph_run_outcome"].clear()
        self.put("ralph_run_outcome", 1, outcome=outcome)
        self.put("ralph_run_exit_code", event.exit_code)
