"""Plays many plans, a few at a time, and reports its progress. It draws no plans and judges no runs. The campaigns
in `tests/soak` and `tests/nemesis` define how one plan is played and what is counted.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PROGRESS_S = 5.0

Plan = TypeVar("Plan")
Result = TypeVar("Result")


@dataclass
class Engine(Generic[Plan, Result]):
    """Plays plans in threads. `say` receives each line for people. After `run()`, the counts say what happened."""

    say: Callable[[str], None]
    jobs: int = 2
    broken: int = 0
    """The number of plans that broke an invariant."""
    continue_from: int | None = None
    """The number of the first plan that was not finished when Ctrl-C ended the campaign, or None."""
    started_s: float = field(default_factory=time.monotonic)
    _told_s: float = field(default_factory=time.monotonic)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _pending: dict[Future[tuple[Result, list[str]]], tuple[int, Plan]] = field(default_factory=dict)

    def play(self, plan: Plan, stopping: threading.Event) -> tuple[Result, list[str]]:
        """Plays the plan once. Returns what was observed, and a sentence for each broken invariant. Called in a
        thread.
        """
        raise NotImplementedError

    def count(self, plan: Plan, seen: Result, found: list[str]) -> None:
        raise NotImplementedError

    def report(self, plan: Plan, seen: Result) -> Iterable[str]:
        """Lines for people about a run that broke an invariant."""
        raise NotImplementedError

    @property
    def progress(self) -> str:
        raise NotImplementedError

    @property
    def is_enough(self) -> bool:
        """Whether no further plan should begin."""
        return False

    def before(self, plan: Plan) -> None:
        """Called on the main thread before each plan begins."""

    def run(self, plans: Iterable[tuple[int, Plan]]) -> bool:
        """Plays the plans in order. Returns True if every invariant held in every run."""
        unplayed = 1
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for number, plan in plans:
                    unplayed = number
                    self.before(plan)
                    self._pending[pool.submit(self.play, plan, self._stopping)] = number, plan
                    unplayed = number + 1
                    if len(self._pending) >= self.jobs:
                        self._collect()
                    if self.is_enough:
                        break
                while self._pending:
                    self._collect()
            except KeyboardInterrupt:
                self._stopping.set()
                self.continue_from = min((number for number, _ in self._pending.values()), default=unplayed)
        return not self.broken

    def take(self, plan: Plan, seen: Result, found: list[str]) -> None:
        self.count(plan, seen, found)
        if found:
            self.broken += 1
            sentences = [f"  {sentence}" for sentence in found]
            self.say("\n".join([f"VIOLATION in {_name_of(plan)}", *sentences, *self.report(plan, seen)]))

    def took(self) -> str:
        held = f"{self.broken} of them broke an invariant" if self.broken else "every invariant held"
        return f"{time.monotonic() - self.started_s:.0f} s: {held}"

    def _collect(self) -> None:
        """Waits until at least one run has ended, and counts all that have."""
        done: set[Future[tuple[Result, list[str]]]] = set()
        while not done:
            done = wait(self._pending, _PROGRESS_S, FIRST_COMPLETED).done
            for future in done:
                _, plan = self._pending.pop(future)
                self.take(plan, *future.result())
            now_s = time.monotonic()
            if now_s - self._told_s >= _PROGRESS_S:
                self._told_s = now_s
                self.say(f"{now_s - self.started_s:4.0f} s: {self.progress}")


def _name_of(plan: Any) -> str:
    return str(plan.name)


def without_markers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Removes the cache markers from messages. The markers move to the newest messages, while the rest of a message
    never changes.
    """
    for message in messages:
        for block in message["content"]:
            block.pop("cache_control", None)
    return messages
