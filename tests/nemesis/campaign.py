"""Plays many sessions and counts their kills. It draws no plans and judges no sessions."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.campaigns.engine import Engine
from tests.nemesis.invariants import interrupted, violations
from tests.nemesis.journal_text import lines_of
from tests.nemesis.plan import SessionPlan
from tests.nemesis.process import Observed, observe

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

_STDERR_LINES = 5
_MOST_BROKEN = 5
"""The campaign ends after this many broken sessions, which are enough to examine."""


@dataclass
class Campaign(Engine[SessionPlan, Observed]):
    most_kills: int = 500
    """No session begins after this many kills."""
    sessions: int = 0
    kills: int = 0
    unknown: int = 0
    """The number of commands whose effects are unknown."""
    torn: int = 0
    temporary_files: int = 0
    """The number of temporary files that a kill in the middle of a write has left."""
    places: Counter[str] = field(default_factory=Counter)
    _usual_s: float = 0.0
    """The seconds that a session takes on this machine if nobody kills it."""

    def before(self, plan: SessionPlan) -> None:
        """Plays the first plan without its kills too, and judges that session like the others."""
        if self._usual_s:
            return
        calm = replace(plan, name=f"{plan.name}, without its kills", kills=())
        started_s = time.monotonic()
        seen, found = self.play(calm, self._stopping)
        self._usual_s = time.monotonic() - started_s
        self.take(calm, seen, found)

    def play(self, plan: SessionPlan, stopping: threading.Event) -> tuple[Observed, list[str]]:
        seen = observe(plan, self._usual_s, stopping)
        return seen, violations(plan, seen)

    def count(self, plan: SessionPlan, seen: Observed, found: list[str]) -> None:
        self.sessions += 1
        self.kills += seen.kills
        self.torn += sum(bool(life.added) for life in seen.lives)
        self.places.update(life.place for life in seen.lives if life.place)
        self.temporary_files += sum(path.name.startswith(".ralph-") for path in seen.work.iterdir())
        if not found:
            self.unknown += len(interrupted(lines_of(seen.lives[-1].journal)))
            shutil.rmtree(seen.cluster, ignore_errors=True)

    def report(self, plan: SessionPlan, seen: Observed) -> Iterator[str]:
        yield f"  repeat it: python -m tests.nemesis {plan.repeat_by}"
        yield f"  its journal, its files and its output are kept in {seen.cluster}"
        for number, life in enumerate(seen.lives):
            end = f"killed {life.place}" if life.exit_code is None else f"exit code {life.exit_code}"
            yield f"  process {number}: {end}; {len(life.journal)} bytes of journal, {len(life.added)} added"
        yield "the end of standard error:"
        yield from (f"  {line[:300]}" for line in seen.lives[-1].stderr.splitlines()[-_STDERR_LINES:])

    @property
    def progress(self) -> str:
        return f"{self.sessions} sessions, {self.kills} kills"

    @property
    def is_enough(self) -> bool:
        return self.kills >= self.most_kills or self.broken >= _MOST_BROKEN

    def summary(self) -> str:
        places = ", ".join(f"{name}: {count}" for name, count in self.places.most_common())
        return "\n".join(
            [
                f"{self.sessions} sessions, {self.kills} kills, {self.took()}",
                f"killed {places}",
                f"{self.torn} last lines torn, {self.unknown} commands with unknown effects",
                f"{self.temporary_files} temporary files left beside what was written",
            ]
        )
