"""Plays many runs, a few at a time, and counts. It draws no plan and judges no run."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.soak.attempt import Fate
from tests.soak.invariants import violations
from tests.soak.process import Observed, observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.soak.plan import RunPlan

_PROGRESS_S = 5.0
_STDERR_LINES = 15

Outcome = tuple[Observed, list[str]]
Pending = dict[Future[Outcome], tuple[int, "RunPlan"]]


@dataclass
class Campaign:
    """`say` gets each line for people. After `run()` the counts tell what happened."""

    say: Callable[[str], None]
    jobs: int = 2
    runs: int = 0
    turns: int = 0
    attempts: int = 0
    broken_runs: int = 0
    endings: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    peak_kib: int = 0
    threads: int = 0
    descriptors: int = 0
    started_s: float = field(default_factory=time.monotonic)
    go_on_from: int | None = None
    """The first run that was not finished, when Ctrl-C ended it."""
    _told_s: float = field(default_factory=time.monotonic)

    def run(self, plans: Iterable[tuple[int, RunPlan]]) -> bool:
        """Play them in order. True when every invariant held in every run."""
        stopping, pending, unplayed = threading.Event(), Pending(), 1
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for number, plan in plans:
                    unplayed = number
                    pending[pool.submit(_play, plan, stopping)] = number, plan
                    unplayed = number + 1
                    if len(pending) >= self.jobs:
                        self._collect(pending)
                while pending:
                    self._collect(pending)
            except KeyboardInterrupt:
                stopping.set()
                self.go_on_from = min((number for number, _ in pending.values()), default=unplayed)
        return not self.broken_runs

    def _collect(self, pending: Pending) -> None:
        """Count the runs that have ended; return when at least one has."""
        done: set[Future[Outcome]] = set()
        while not done:
            done = wait(pending, _PROGRESS_S, FIRST_COMPLETED).done
            for future in done:
                self._count(pending[future][1], *future.result())
                del pending[future]
            self._tell_progress()

    def _count(self, plan: RunPlan, seen: Observed, found: list[str]) -> None:
        self.runs += 1
        self.turns += len(plan.turns)
        self.attempts += len(plan.attempts)
        self.endings[-1 if seen.exit_code is None else seen.exit_code] += 1
        for attempt in plan.attempts:
            (self.shapes if attempt.fate is Fate.ACCEPTED else self.faults)[attempt.fault] += 1
        self.peak_kib = max(self.peak_kib, seen.gauge.peak_kib)
        self.threads = max(self.threads, seen.gauge.threads)
        self.descriptors = max(self.descriptors, seen.gauge.descriptors)
        if found:
            self.broken_runs += 1
            self.say("\n".join(_report(plan, seen, found)))

    def _tell_progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _PROGRESS_S:
            self._told_s = now_s
            self.say(f"{now_s - self.started_s:4.0f} s: {self.runs} runs, {self.turns} turns")

    def summary(self) -> str:
        broken = f"{self.broken_runs} runs broke an invariant" if self.broken_runs else "every invariant held"
        took_s = time.monotonic() - self.started_s
        return "\n".join(
            [
                f"{self.runs} runs, {self.turns} turns, {self.attempts} attempts, {took_s:.0f} s: {broken}",
                f"exit codes: {_listed(self.endings)}",
                f"faults ({self.faults.total()}): {_listed(self.faults)}",
                f"whole answers ({self.shapes.total()}): {_listed(self.shapes)}",
                f"at most {self.peak_kib / 1024:.1f} MiB, {self.threads} threads, {self.descriptors} descriptors",
            ]
        )


def _play(plan: RunPlan, stopping: threading.Event) -> Outcome:
    seen = observe(plan, stopping)
    return seen, violations(plan, seen)


def _report(plan: RunPlan, seen: Observed, found: list[str]) -> Iterator[str]:
    yield f"VIOLATION in {plan.name}"
    yield from (f"  {sentence}" for sentence in found)
    yield f"  repeat it: python -m tests.soak {plan.repeat_by}"
    yield "the plan:"
    yield plan.describe()
    yield "the end of standard error:"
    yield from (f"  {line}" for line in seen.stderr.splitlines()[-_STDERR_LINES:])


def _listed(counts: Counter[str] | Counter[int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
