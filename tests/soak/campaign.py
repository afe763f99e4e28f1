"""Plays many runs and counts the faults in their plans. It draws no plans and judges no runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.campaigns.engine import Engine
from tests.soak.attempt import Fate
from tests.soak.invariants import violations
from tests.soak.plan import RunPlan
from tests.soak.process import Observed, observe

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

_STDERR_LINES = 15


@dataclass
class Campaign(Engine[RunPlan, Observed]):
    runs: int = 0
    turns: int = 0
    attempts: int = 0
    endings: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    peak_kib: int = 0
    threads: int = 0
    descriptors: int = 0

    def play(self, plan: RunPlan, stopping: threading.Event) -> tuple[Observed, list[str]]:
        seen = observe(plan, stopping)
        return seen, violations(plan, seen)

    def count(self, plan: RunPlan, seen: Observed, found: list[str]) -> None:
        self.runs += 1
        self.turns += len(plan.turns)
        self.attempts += len(plan.attempts)
        self.endings[-1 if seen.exit_code is None else seen.exit_code] += 1
        for attempt in plan.attempts:
            (self.shapes if attempt.fate is Fate.ACCEPTED else self.faults)[attempt.fault] += 1
        self.peak_kib = max(self.peak_kib, seen.gauge.peak_kib)
        self.threads = max(self.threads, seen.gauge.threads)
        self.descriptors = max(self.descriptors, seen.gauge.descriptors)

    def report(self, plan: RunPlan, seen: Observed) -> Iterator[str]:
        yield f"  repeat it: python -m tests.soak {plan.repeat_by}"
        yield "the plan:"
        yield plan.describe()
        yield "the end of standard error:"
        yield from (f"  {line}" for line in seen.stderr.splitlines()[-_STDERR_LINES:])

    @property
    def progress(self) -> str:
        return f"{self.runs} runs, {self.turns} turns"

    def summary(self) -> str:
        return "\n".join(
            [
                f"{self.runs} runs, {self.turns} turns, {self.attempts} attempts, {self.took()}",
                f"exit codes: {_listed(self.endings)}",
                f"faults ({self.faults.total()}): {_listed(self.faults)}",
                f"whole answers ({self.shapes.total()}): {_listed(self.shapes)}",
                f"at most {self.peak_kib / 1024:.1f} MiB, {self.threads} threads, {self.descriptors} descriptors",
            ]
        )


def _listed(counts: Counter[str] | Counter[int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
