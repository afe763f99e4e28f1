"""Fakes for the outer loop: scripted iterations, a checkout that is only a number, and a clock that tests set."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.git.answer import CheckoutError
from ralph.git.look import Changes, Snapshot
from ralph.loop.events import LoopWaits, line_of
from ralph.loop.iterate import iterate
from ralph.loop.iteration import LoopWorld
from ralph.loop.state import LoopState, read_state, state_text
from ralph.loop.values import (
    CheckResult,
    IterationOrder,
    IterationResult,
    IterationSession,
    LoopEnd,
    LoopLimits,
    LoopPlan,
    Setback,
)
from ralph.settings.tables import LoopSettings
from ralph.values.limits import LimitSettings
from ralph.values.outcome import Outcome, ShortageError
from ralph.values.ports import NoTurnLock
from ralph.values.redaction import Redactor
from tests.fakes import EPOCH, FakeClock, FakeWaiter, RecordingEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ralph.loop.iteration import Page
    from ralph.values.ports import TurnLock
    from ralph.values.redaction import LookedCommit


def ended(outcome: Outcome, **fields: object) -> IterationResult:
    result = IterationResult(outcome.exit_code(), outcome, turns=2, cost_usd=0.5)
    return replace(result, **fields)


DONE = ended(Outcome.COMPLETED)
AWAY = ended(Outcome.API_UNAVAILABLE)


@dataclass(frozen=True)
class ScriptedIteration:
    """The result and the effects of one process."""

    result: IterationResult = DONE
    changes: bool = True
    seconds: float = 60.0
    stops: bool = False
    """Whether it creates the stop file."""
    has_session: bool = True
    ended_as: IterationResult | None = None
    """The end that its session's journal records. None means the result of the process."""


@dataclass
class Shortages:
    """The number of times that a step will raise ShortageError, by the name of the step."""

    left: dict[str, int] = field(default_factory=dict)

    def meet(self, step: str) -> None:
        if self.left.get(step, 0) > 0:
            self.left[step] -= 1
            raise ShortageError("process")


class FakeCheckout:
    def __init__(self, shortages: Shortages) -> None:
        self._shortages = shortages
        self.version = 0
        self.branch: str | None = "main"
        self.head = "head"
        self.looked_since: list[str] = []
        """The commits behind which those were looked through that came later."""
        self.uncommitted = 0
        self.messages: list[str] = []
        self.push_problems: list[str | None] = []
        self.commit_problem: str | None = None
        self.to_push = 0
        self.aside: list[str] = []
        """The messages of commits to branches of their own."""
        self.pushed_aside: list[str] = []
        self.aside_limits_s: list[float] = []

    def snapshot(self) -> Snapshot:
        self._shortages.meet("snapshot")
        return Snapshot(digest=str(self.version), head=self.head, branch=self.branch)

    def changes(self, before: Snapshot, after: Snapshot) -> Changes:
        self._shortages.meet("changes")
        return Changes(files=("a.py",) if before.digest != after.digest else ())

    def commit(self, message: str, seen: Snapshot | None = None) -> bool:
        self._shortages.meet("commit")
        if self.commit_problem is not None:
            raise CheckoutError(self.commit_problem)
        was, self.uncommitted = self.uncommitted, 0
        if was:
            self.messages.append(message)
            self.to_push += 1
        return bool(was)

    def look_through(self, since: str) -> tuple[str, tuple[LookedCommit, ...]]:
        self._shortages.meet("look_through")
        self.looked_since.append(since)
        return self.head, ()

    def commit_aside(
        self, message: str, *, earlier: str | None, has_work: bool, pushes: bool, limit_s: float
    ) -> str | None:
        self._shortages.meet("commit_aside")
        self.aside_limits_s.append(limit_s)
        if self.commit_problem is not None:
            raise CheckoutError(self.commit_problem)
        if not (has_work and self.uncommitted) and not (pushes and self.to_push):
            return None
        self.aside.append(message)
        return earlier or f"ralph/red-{len(self.aside)}"

    def push(self, branch: str | None = None) -> int:
        self._shortages.meet("push")
        if branch is not None:
            self.pushed_aside.append(branch)
            return 1
        problem = self.push_problems.pop(0) if self.push_problems else None
        if problem is not None:
            raise CheckoutError(problem)
        pushed, self.to_push = self.to_push, 0
        return pushed

    def unpushed(self) -> int | None:
        return self.to_push


class FakeIterations:
    def __init__(self, script: Iterable[ScriptedIteration], checkout: FakeCheckout, clock: FakeClock) -> None:
        self.script = list(script)
        self.orders: list[IterationOrder] = []
        self.sessions: dict[str, IterationSession] = {}
        self.has_stop_file = False
        self.rooms_made = 0
        self.play: Callable[[IterationOrder], IterationResult] | None = None
        """If this is set, its return value replaces the result in the script."""
        self._checkout = checkout
        self._clock = clock

    def run(self, order: IterationOrder) -> IterationResult:
        self.orders.append(order)
        assert len(self.orders) < 100, "a loop without an end"
        played = self.script.pop(0) if self.script else ScriptedIteration()
        if self.play is not None:
            played = replaced(played, result=self.play(order))
        self._clock.seconds += played.seconds
        if played.changes:
            self._checkout.version += 1
            self._checkout.uncommitted += 1
        self.has_stop_file = self.has_stop_file or played.stops
        result = played.result
        if played.has_session:
            self.sessions[order.session_id] = IterationSession(
                result.turns, result.cost_usd, played.ended_as or result
            )
        return result

    def seen(self, session_id: str) -> IterationSession | None:
        return self.sessions.get(session_id)

    def is_there(self) -> bool:
        return self.has_stop_file

    def make_room(self) -> None:
        self.rooms_made += 1

    def remove(self) -> None:
        self.has_stop_file = False


class FakeCheck:
    """A check that returns scripted exit codes. The last one is repeated for ever."""

    def __init__(self, verdicts: Iterable[int], clock: FakeClock, shortages: Shortages) -> None:
        self._verdicts = list(verdicts)
        self._shortages = shortages
        self.limits_s: list[float] = []
        self.takes_s = 0.0
        self._clock = clock
        self.before: Callable[[], None] = lambda: None
        """Is called at the beginning of each run."""

    def run(self, limit_s: float) -> CheckResult:
        self._shortages.meet("check")
        self.before()
        self.limits_s.append(limit_s)
        self._clock.seconds += self.takes_s
        code = self._verdicts.pop(0) if len(self._verdicts) > 1 else self._verdicts[0]
        return CheckResult(code, f"output of check {len(self.limits_s)}\n", None, self.takes_s)


class FakeRecord:
    """Keeps each saved state as it would be read from disk."""

    def __init__(self) -> None:
        self.states: list[LoopState] = []
        self.checks: dict[int, str] = {}

    def save(self, state: LoopState) -> None:
        self.states.append(read_state(state_text(state)))

    def keep_check(self, iteration: int, tail: str) -> None:
        self.checks[iteration] = tail


@dataclass
class LoopRig:
    """A loop with all its fakes. `play()` runs it to its end."""

    script: list[ScriptedIteration] = field(default_factory=list)
    verdicts: list[int] | None = None
    """Exit codes of the check. The check before the first iteration gets the first one. None means that there is no
    `--until`.
    """
    gates: list[int] | None = None
    """Exit codes of the gate, as `verdicts`."""
    open_tasks: list[int | OSError | None] | None = None
    """The number of open tasks at each look at the plan. The last one is repeated for ever. None means that there is no
    `--plan`.
    """
    limits: LoopLimits = field(default_factory=LoopLimits)
    own_limits: LimitSettings = field(default_factory=LimitSettings)
    schedule: LoopSettings = field(default_factory=LoopSettings)
    options: dict[str, object] = field(default_factory=dict)
    """Other fields of the plan."""
    interrupt_at_s: float | None = None
    prompt: Callable[[], str] = lambda: "the task"
    page: Page | None = None
    turn_lock: TurnLock = field(default_factory=NoTurnLock)

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.shortages = Shortages()
        self.checkout = FakeCheckout(self.shortages)
        self.iterations = FakeIterations(self.script, self.checkout, self.clock)
        self.check = None if self.verdicts is None else FakeCheck(self.verdicts, self.clock, self.shortages)
        self.gate = None if self.gates is None else FakeCheck(self.gates, self.clock, self.shortages)
        self.record = FakeRecord()
        self.events = RecordingEvents()
        self.waiter = FakeWaiter(self.clock, self.interrupt_at_s)

    def new_state(self) -> LoopState:
        until = None if self.verdicts is None else "make test"
        plan = LoopPlan(
            "/work",
            "/work",
            prompt="the task",
            gate=None if self.gates is None else "make lint",
            until=until,
            plan=None if self.open_tasks is None else "PLAN.md",
            limits=self.limits,
            **self.options,  # type: ignore[arg-type]  # by name
        )
        return LoopState(plan, EPOCH.isoformat(), pid=1)

    def play(self, state: LoopState | None = None) -> LoopEnd:
        end, self.state = iterate(
            state or self.new_state(),
            LoopWorld(
                self.checkout,
                self.iterations,
                self.check,
                self.gate,
                None if self.open_tasks is None else self._count_tasks,
                self.iterations,
                self.record,
                self.events,
                self.waiter,
                self.clock,
                self.prompt,
                self.own_limits,
                self.schedule,
                Redactor().redact_all,
                lambda: None,
                self.page,
                self.turn_lock,
            ),
        )
        return end

    def _count_tasks(self) -> int | None:
        assert self.open_tasks is not None
        found = self.open_tasks.pop(0) if len(self.open_tasks) > 1 else self.open_tasks[0]
        if isinstance(found, OSError):
            raise found
        return found

    def played(self) -> LoopState:
        self.play()
        return self.state

    def stopped_in_its_first_iteration(self, *, waiting: bool = False) -> LoopState:
        """Runs the loop, then returns the state that was on disk when the first iteration's process had just
        started. With `waiting`, the state from its first wait.
        """
        self.play()
        states = [one for one in self.record.states if one.current is not None and not one.iterations]
        return next(
            one for one in states if one.current is not None and bool(one.current.waits_until) == waiting
        )

    @property
    def told(self) -> list[str]:
        """The lines that the user sees."""
        return [line for event in self.events.events if (line := line_of(event)) is not None]

    @property
    def setbacks(self) -> list[tuple[Setback, int]]:
        """The kind of each setback for which the loop waited, with the number of such setbacks in a row."""
        return [(event.setback, event.setbacks) for event in self.events.of(LoopWaits)]

    @property
    def prompts(self) -> list[str]:
        return [order.prompt for order in self.iterations.orders if order.prompt is not None]
