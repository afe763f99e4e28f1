"""Plays many sessions, a few at a time, and counts. It draws no plan and judges no session."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.nemesis.invariants import interrupted, violations
from tests.nemesis.journal_text import lines_of
from tests.nemesis.process import Observed, observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.nemesis.plan import SessionPlan

_PROGRESS_S = 5.0
_STDERR_LINES = 5
_MOST_BROKEN = 5
"""Enough to look at."""

Outcome = tuple[Observed, list[str]]
Pending = dict[Future[Outcome], tuple[int, "SessionPlan"]]


@dataclass
class Campaign:
    """`say` gets each line for people. After `run()` the counts tell what happened."""

    say: Callable[[str], None]
    most_kills: int
    """No session is begun once so many kills have hit."""
    jobs: int = 2
    sessions: int = 0
    kills: int = 0
    broken: int = 0
    unknown: int = 0
    """Commands whose effects nobody knows."""
    torn: int = 0
    temporary_files: int = 0
    """Left beside a file by a kill in the middle of writing it."""
    places: Counter[str] = field(default_factory=Counter)
    started_s: float = field(default_factory=time.monotonic)
    go_on_from: int | None = None
    """The first session that was not finished, when Ctrl-C ended it."""
    _told_s: float = field(default_factory=time.monotonic)

    def run(self, plans: Iterable[tuple[int, SessionPlan]]) -> bool:
        """Play them in order. True when every invariant held in every session."""
        stopping, pending, unplayed, usual_s = threading.Event(), Pending(), 1, 0.0
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for number, plan in plans:
                    unplayed = number
                    usual_s = usual_s or self._usual_s(plan, stopping)
                    pending[pool.submit(_play, plan, usual_s, stopping)] = number, plan
                    unplayed = number + 1
                    if len(pending) >= self.jobs:
                        self._collect(pending)
                    if self.kills >= self.most_kills or self.broken >= _MOST_BROKEN:
                        break
                while pending:
                    self._collect(pending)
            except KeyboardInterrupt:
                stopping.set()
                self.go_on_from = min((number for number, _ in pending.values()), default=unplayed)
        return not self.broken

    def _usual_s(self, plan: SessionPlan, stopping: threading.Event) -> float:
        """How long a session takes here that nobody kills; it is judged like the others."""
        calm = replace(plan, name=f"{plan.name}, without its kills", kills=())
        started_s = time.monotonic()
        seen, found = _play(calm, 0.0, stopping)
        took_s = time.monotonic() - started_s
        self._count(calm, seen, found)
        return took_s

    def _collect(self, pending: Pending) -> None:
        """Count the sessions that have ended; return when at least one has."""
        done: set[Future[Outcome]] = set()
        while not done:
            done = wait(pending, _PROGRESS_S, FIRST_COMPLETED).done
            for future in done:
                self._count(pending[future][1], *future.result())
                del pending[future]
            self._tell_progress()

    def _count(self, plan: SessionPlan, seen: Observed, found: list[str]) -> None:
        self.sessions += 1
        self.kills += seen.kills
        self.torn += sum(bool(life.added) for life in seen.lives)
        self.places.update(life.place for life in seen.lives if life.place)
        self.temporary_files += sum(path.name.startswith(".ralph-") for path in seen.work.iterdir())
        if found:
            self.broken += 1
            self.say("\n".join(_report(plan, seen, found)))
        else:
            self.unknown += len(interrupted(lines_of(seen.lives[-1].journal)))
            shutil.rmtree(seen.room, ignore_errors=True)

    def _tell_progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _PROGRESS_S:
            self._told_s = now_s
            self.say(f"{now_s - self.started_s:4.0f} s: {self.sessions} sessions, {self.kills} kills")

    def summary(self) -> str:
        broken = f"{self.broken} sessions broke an invariant" if self.broken else "every invariant held"
        took_s = time.monotonic() - self.started_s
        places = ", ".join(f"{name}: {count}" for name, count in self.places.most_common())
        return "\n".join(
            [
                f"{self.sessions} sessions, {self.kills} kills, {took_s:.0f} s: {broken}",
                f"killed {places}",
                f"{self.torn} last lines torn, {self.unknown} commands with unknown effects",
                f"{self.temporary_files} temporary files left beside what was written",
            ]
        )


def _play(plan: SessionPlan, usual_s: float, stopping: threading.Event) -> Outcome:
    seen = observe(plan, usual_s, stopping)
    return seen, violations(plan, seen)


def _report(plan: SessionPlan, seen: Observed, found: list[str]) -> Iterator[str]:
    yield f"VIOLATION in {plan.name}"
    yield from (f"  {sentence}" for sentence in found)
    yield f"  repeat it: python -m tests.nemesis {plan.repeat_by}"
    yield f"  its journal, its files and its output are kept in {seen.room}"
    for number, life in enumerate(seen.lives):
        end = f"killed {life.place}" if life.exit_code is None else f"exit code {life.exit_code}"
        yield f"  process {number}: {end}; {len(life.journal)} bytes of journal, {len(life.added)} added"
    yield "the end of standard error:"
    yield from (f"  {line[:300]}" for line in seen.lives[-1].stderr.splitlines()[-_STDERR_LINES:])
