"""Runs one iteration of `ralph loop`: begins or resumes it, waits after each setback, and returns its result. There are three
kinds of setbacks: the API is down, this machine lacks a resource such as memory, or the process was killed. `iterate.py`
decides what follows the result. First come the ports of a loop, and the recorder of its state.
"""

from __future__ import annotations

import math
import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.git.look import Snapshot
from ralph.loop.events import IterationBegan, IterationResumed, LoopWaits, iteration_prompt
from ralph.loop.rules import Share, is_counted, outage_wait, share, wait_after_kill
from ralph.loop.state import MOST_WAITS_KEPT, LoopWait, Phase, new_iteration, snapshot_before
from ralph.loop.values import IterationOrder, IterationResult, LoopEnd, Setback, loop_end
from ralph.retry.backoff import LASTED_TOO_LONG, PATIENT_SCHEDULE_S, GiveUp, ShortTime, Wait, met_again
from ralph.values.events import Notice
from ralph.values.outcome import Outcome, shortage_of
from ralph.values.ports import NoTurnLock
from ralph.values.usage import total_usd

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.git.look import Changes
    from ralph.loop.state import CurrentIteration, LoopState
    from ralph.loop.values import CheckResult, IterationSession
    from ralph.retry.backoff import ShortTime, Wait
    from ralph.settings.tables import LoopSettings
    from ralph.values.limits import LimitSettings
    from ralph.values.ports import Clock, Events, TurnLock, Waiter
    from ralph.values.redaction import LookedCommit


# --- The ports, which are the interfaces to the outside world. Tests use the fakes in `tests/fakes/loop.py`.


class Checkout(Protocol):
    """The directory that the iterations change. Every method raises CheckoutError, and Interrupted after all processes that
    it started are gone. If this machine lacks a resource such as memory, a method raises ShortageError, or
    another error for which `shortage_of` returns the shortage.
    """

    def snapshot(self) -> Snapshot: ...

    def changes(self, before: Snapshot, after: Snapshot) -> Changes: ...

    def commit(self, message: str, seen: Snapshot | None = None) -> bool:
        """Commits all uncommitted work, including untracked files, or if `seen` is the last snapshot, the work that it saw.
        Returns False if there was nothing to commit.
        """

    def look_through(self, since: str) -> tuple[str, tuple[LookedCommit, ...]]:
        """The id of the current commit, or "" if there is none, and where secrets are in its ancestors that the commit
        `since` does not have. `since` may be "".
        """

    def commit_aside(
        self, message: str, *, earlier: str | None, has_work: bool, pushes: bool, limit_s: float
    ) -> str | None:
        """As `GitCheckout.commit_aside`: commits HEAD and all uncommitted work to a branch of its own. Also raises OSError."""

    def push(self, branch: str | None = None) -> int:
        """Pushes the current branch, or another one. Returns the number of commits that the remote did not have before."""

    def unpushed(self) -> int | None:
        """The number of commits that the remote lacks, or None if that is unknown. Contacts no remote."""


class Iterations(Protocol):
    def run(self, order: IterationOrder) -> IterationResult:
        """Runs one process to its end, and then kills all that it has left. A signal is passed on to it and returned in
        `stopped_by`; Interrupted is never raised. If this machine lacks a resource such as memory, the result has a
        setback. Raises OSError if the process cannot be started for another reason.
        """

    def seen(self, session_id: str) -> IterationSession | None:
        """The state of an iteration's session. None if no session with this id can be resumed. Raises OSError."""


class Check(Protocol):
    def run(self, limit_s: float) -> CheckResult:
        """Runs the command of `--until` or `--gate`. Raises ShortageError if it cannot start, and Interrupted after its end."""


class StopFile(Protocol):
    def is_there(self) -> bool: ...

    def remove(self) -> None:
        """Removes the stop file if it is there. Raises OSError."""

    def make_room(self) -> None:
        """Makes the directory of the stop file, so that the model can create the file. Raises OSError."""


class LoopRecord(Protocol):
    def save(self, state: LoopState) -> None:
        """Saves the state atomically. Raises OSError."""

    def keep_check(self, iteration: int, tail: str) -> None:
        """Keeps the end of a check's output. If that fails, the output is not kept."""


class Page(Protocol):
    def write(self) -> str | None:
        """Writes the page about the loop as it is recorded now. Returns the reason if that failed. Raises Interrupted."""


class LoopWorld(Struct, frozen=True):
    """All ports and settings that a loop uses."""

    checkout: Checkout
    iterations: Iterations
    check: Check | None
    gate: Check | None
    open_tasks: Callable[[], int | None] | None
    """Counts the open tasks of the `--plan` as it is now. Returns None if the plan has no task. Raises OSError."""
    stop_file: StopFile
    record: LoopRecord
    events: Events
    waiter: Waiter
    clock: Clock
    read_prompt: Callable[[], str]
    """Reads the user's prompt as it is now. Raises OSError."""
    own_limits: LimitSettings
    """The limits that the settings give to each iteration."""
    schedule: LoopSettings
    redact: Callable[[str], str]
    """Replaces everything in a text that is a known credential or looks like one."""
    late_input: Callable[[], str | None]
    """An error text if standard input received data after ralph had stopped waiting for it: no iteration may begin then."""
    page: Page | None = None
    turn_lock: TurnLock = field(default_factory=NoTurnLock)
    """Is held while the loop commits or runs its gate or its check."""


# --- The recorder

T = TypeVar("T")
LACKING = "what this machine lacks (a process, a thread, memory, a file descriptor)"


class OutageLastsError(Exception):
    """A resource is still missing after all waits that the settings and the loop's time limit allow. The message is a
    sentence that names the resource, and `outcome` is the outcome of the loop.
    """

    def __init__(self, message: str, outcome: Outcome = Outcome.API_UNAVAILABLE) -> None:
        super().__init__(message)
        self.outcome = outcome


class LoopRecorder:
    """Keeps a loop's state in memory and in its record, and repeats what fails because this machine lacks a resource such as
    memory or a process. `save` returns only when the state is on disk. `rules.py` decides how long to wait.
    """

    def __init__(self, state: LoopState, world: LoopWorld) -> None:
        self.state = state
        self.retries = True
        """False once the loop ends: `retry` then raises the error of a shortage at once."""
        self.taken_over_at = state.updated_at or state.started_at
        """When an earlier process of the loop last saved the state, or when a new loop began. ISO 8601, in UTC."""
        self.warned = set[str]()
        self._world = world
        self._before_s = state.elapsed_s
        self._started_s = world.clock.now_s()

    @property
    def current(self) -> CurrentIteration:
        """The iteration in progress. The callers know that there is one."""
        assert self.state.current is not None  # noqa: S101 - callers know that an iteration is in progress
        return self.state.current

    def save(self, **changes: object) -> None:
        """Changes fields of the state and saves it. Raises OSError, Interrupted and OutageLastsError."""
        stamp = {"updated_at": self.now(), "elapsed_s": self.elapsed_s()}
        self.state = replace(self.state, **stamp, **changes)
        self.retry(lambda: self._world.record.save(self.state), is_recorded=False)

    def save_current(self, **changes: object) -> None:
        """Changes fields of the iteration in progress and saves the state. Raises as `save` does."""
        self.save(current=replace(self.current, **changes))

    def count(self, result: IterationResult) -> None:
        """Sets the turns and the cost of the iteration in progress. The next `save` writes them."""
        current = replace(self.current, turns=result.turns, cost_usd=result.cost_usd)
        self.state = replace(self.state, current=current)

    def count_unrecorded(self, worked_until: datetime) -> None:
        """Adds to `elapsed_s` the time that a killed process of the loop worked after its last save: until its iteration
        last wrote to the session's journal.
        """
        unrecorded_s = (worked_until - datetime.fromisoformat(self.taken_over_at)).total_seconds()
        self._before_s += max(unrecorded_s, 0.0)

    def elapsed_s(self) -> float:
        """The running time of this loop in seconds, summed over all its processes."""
        return round(self._before_s + self._world.clock.now_s() - self._started_s, 3)

    def left_s(self) -> float:
        """The remaining seconds of the loop's time limit. Infinite without one."""
        limit_s = self.state.plan.limits.max_time_s
        return math.inf if limit_s is None else limit_s - self.elapsed_s()

    def now(self) -> str:
        return self._world.clock.utc_now().isoformat()

    def warn(self, text: str) -> None:
        self.warned.add(text)
        self._world.events.emit(Notice(text, is_vital=True))

    def wait(self, wait: Wait, setback: Setback, number: int, *, is_recorded: bool = True) -> None:
        """Announces a wait and waits. `number` is the number of consecutive setbacks of this kind. With `is_recorded`, the
        record shows the wait until it is over. Raises OSError, Interrupted and OutageLastsError.
        """
        world, current = self._world, self.state.current
        began = world.clock.utc_now()
        until = began + timedelta(seconds=wait.seconds)
        world.events.emit(
            LoopWaits(
                setback=setback,
                setbacks=number,
                wait_s=wait.seconds,
                until=until,
                is_from_server=wait.from_server,
                has_own_schedule=world.schedule.outage_waits_s != PATIENT_SCHEDULE_S,
                iteration=None if current is None else current.number,
                session_id=None if current is None else current.session_id,
            )
        )
        if current is None or not is_recorded:
            self.sleep(wait.seconds, setback)
            return
        self.save_current(phase=Phase.WAITING, waits_until=until.isoformat())
        self.sleep(wait.seconds, setback)
        waited = LoopWait(setback.name.lower(), began.isoformat(), self.now(), current.number)
        self.save(
            current=replace(self.current, phase=current.phase, waits_until=None),
            waits=(*self.state.waits, waited)[-MOST_WAITS_KEPT:],
        )

    def sleep(self, seconds: float, setback: Setback = Setback.OUTAGE) -> None:
        """Sleeps, unless `seconds` is 0 or less. Raises Interrupted."""
        if seconds > 0:
            awaited = "the API" if setback is Setback.OUTAGE else "this machine"
            self._world.waiter.sleep(seconds, waiting_for=awaited)

    def retry(self, act: Callable[[], T], *, is_recorded: bool = True) -> T:
        """Returns the value of `act`, which is called again after a wait as long as it fails because this machine lacks a
        resource. `is_recorded` is as in `wait`. Raises Interrupted, all other errors of `act`, and OutageLastsError.
        """
        number, slept_s = 0, 0.0
        short: ShortTime | None = None
        clock = self._world.clock
        while True:
            try:
                return act()
            except (OSError, MemoryError) as error:
                shortage = shortage_of(error)
                if not self.retries or shortage is None:
                    raise
            short = met_again(short, str(shortage), clock.now_s())
            left_s = short.left_s(clock.now_s())
            if left_s <= 0:
                raise OutageLastsError(f"{LASTED_TOO_LONG}: {shortage}", Outcome.IO_ERROR)
            number += 1
            wait = outage_wait(number, slept_s, None, self._world.schedule, self.left_s(), away=LACKING)
            if isinstance(wait, GiveUp):
                raise OutageLastsError(wait.reason)
            wait = replace(wait, seconds=min(wait.seconds, left_s))
            self.wait(wait, Setback.SHORTAGE, number, is_recorded=is_recorded)
            slept_s += wait.seconds

    def retry_locked(self, act: Callable[[], T]) -> T:
        """As `retry`, with the turn lock held while `act` runs, but not during the waits."""

        def act_locked() -> T:
            try:
                self._world.turn_lock.take()
                return act()
            finally:
                self._world.turn_lock.release()

        return self.retry(act_locked)


# --- The iteration


class Iteration:
    def __init__(self, recorder: LoopRecorder, world: LoopWorld) -> None:
        self._recorder = recorder
        self._world = world
        self._prompt: str | None = None
        """The prompt of a new session, or None if the iteration resumes a session."""
        self._task_chars = 0
        """The length of the user's own text, which is at the end of the prompt."""
        self.before = Snapshot("")
        """The state of the checkout when the iteration began."""
        self.granted = Share(None, None, is_rest_of_budget=False, is_rest_of_time=False)
        """The limits that the iteration's last process got."""
        self._short_time: ShortTime | None = None
        """For how long every end of the iteration's processes was due to the same shortage of this machine."""

    def begin(self) -> None:
        """Begins an iteration and records that. Does not start a process; `run` does. Raises CheckoutError, OSError,
        Interrupted and OutageLastsError.
        """
        recorder = self._recorder
        self.before = recorder.retry(self._world.checkout.snapshot)
        self._compose_prompt()
        number, now, elapsed_s = len(recorder.state.iterations) + 1, recorder.now(), recorder.elapsed_s()
        began = new_iteration(number, str(uuid.uuid4()), self.before, started_at=now, elapsed_s=elapsed_s)
        recorder.save(current=began)

    def resume(self) -> None:
        """Prepares to resume an iteration that an earlier process of this loop began. Waits for the rest of a wait that the
        end of that process interrupted. Raises OSError, Interrupted and OutageLastsError.
        """
        recorder, current = self._recorder, self._recorder.current
        self.before = snapshot_before(current)
        seen = session_seen(recorder, self._world)
        if seen is not None and seen.written_at is not None:
            recorder.count_unrecorded(seen.written_at)
        is_anew = seen is None or not seen.can_resume
        most = recorder.state.plan.limits.max_iterations
        self._world.events.emit(IterationResumed(current.number, most, current.session_id, is_anew=is_anew))
        fresh = replace(current, outages=0, slept_s=0.0, kills=0, waits_until=None, phase=Phase.WORKING)
        if seen is not None:
            spent = self._with_earlier(IterationResult(0, Outcome.COMPLETED, seen.turns, seen.cost_usd))
            fresh = replace(fresh, turns=spent.turns, cost_usd=spent.cost_usd)
        if not is_anew:
            recorder.sleep(self._rest_of_wait_s())
        else:
            self._compose_prompt()
            fresh = _with_another_session(fresh)
        recorder.save(current=fresh)

    def _rest_of_wait_s(self) -> float:
        """The rest of a wait that the end of an earlier process interrupted, or 0 or less. The wall clock may have been set
        back, so this is never more than what remained when that process last saved the state.
        """
        recorder = self._recorder
        if not recorder.current.waits_until:
            return 0.0
        until = datetime.fromisoformat(recorder.current.waits_until)
        was_s = (until - datetime.fromisoformat(recorder.taken_over_at)).total_seconds()
        rest_s = (until - self._world.clock.utc_now()).total_seconds()
        return min(was_s, rest_s, recorder.left_s())

    def run(self) -> IterationResult | LoopEnd:
        """Runs the iteration until it ends for a reason other than a setback, and returns its result. If there were
        too many setbacks, returns the loop's end. Raises OSError, Interrupted and OutageLastsError.
        """
        recorder, world = self._recorder, self._world
        while True:
            self.granted = share(recorder.state, world.own_limits, recorder.elapsed_s())
            unseen = None if self._prompt is not None else unseen_end(recorder, world)
            result = self._with_earlier(unseen or world.iterations.run(self._order()))
            recorder.count(result)
            setback = result.has_to_wait_for
            if setback is None:
                return result
            if setback is Setback.KILL and (ended := unseen_end(recorder, world)) is not None:
                return self._with_earlier(ended)
            wait, number = self._counted(result, setback)
            left_s = self._short_left_s(result, setback)
            if left_s <= 0:
                return loop_end(Outcome.IO_ERROR, f"{LASTED_TOO_LONG}: {result.reason}")
            if isinstance(wait, GiveUp):
                end = loop_end(Outcome.API_UNAVAILABLE, wait.reason)
                return replace(end, retry_after_s=result.retry_after_s, advice=result.advice)
            wait = replace(wait, seconds=min(wait.seconds, left_s))
            recorder.wait(wait, setback, number)
            self._resume_after(wait)

    def _short_left_s(self, result: IterationResult, setback: Setback) -> float:
        if setback is not Setback.SHORTAGE:
            self._short_time = None
            return math.inf
        now_s = self._world.clock.now_s()
        self._short_time = met_again(self._short_time, f"{result.turns} {result.reason}", now_s)
        return self._short_time.left_s(now_s)

    def _counted(self, result: IterationResult, setback: Setback) -> tuple[Wait | GiveUp, int]:
        """Counts one more setback. Returns the next wait, or the decision to give up, and the number of consecutive setbacks
        of this kind. A kill does not reset the number of outages: otherwise both could alternate for ever.
        """
        recorder, schedule = self._recorder, self._world.schedule
        current, left_s = recorder.current, recorder.left_s()
        if setback is Setback.KILL:
            number = current.kills + 1
            recorder.save_current(kills=number)
            reason = f"iteration {current.number} {result.reason}"
            return wait_after_kill(number, reason, schedule, left_s), number
        number = current.outages + 1
        recorder.save_current(outages=number, kills=0)
        away = LACKING if setback is Setback.SHORTAGE else "the API"
        wait = outage_wait(number, current.slept_s, result.retry_after_s, schedule, left_s, away=away)
        return wait, number

    def _resume_after(self, wait: Wait) -> None:
        current = self._recorder.current
        fresh = replace(current, slept_s=current.slept_s + wait.seconds)
        seen = session_seen(self._recorder, self._world)
        if seen is not None and seen.can_resume:
            self._prompt = None
        else:
            self._compose_prompt()
            fresh = _with_another_session(fresh)
        self._recorder.save(current=fresh)

    def _with_earlier(self, result: IterationResult) -> IterationResult:
        """Adds the turns and the cost of the iteration's earlier sessions to the result, whose texts lose the credentials."""
        current, redact = self._recorder.current, self._world.redact
        return replace(
            result,
            turns=result.turns + current.earlier_turns,
            cost_usd=total_usd((result.cost_usd, current.earlier_cost_usd)),
            last_words=redact(result.last_words),
            summary=redact(result.summary),
            reason=redact(result.reason),
        )

    def _compose_prompt(self) -> None:
        """Makes the prompt: the facts that a fresh context needs, then the user's. Also makes the directory of the stop
        file, if that can end the loop. Raises OSError.
        """
        recorder = self._recorder
        if not recorder.state.plan.has_condition:
            try:
                self._world.stop_file.make_room()
            except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
                if not recorder.state.iterations:
                    raise
                recorder.warn(f"no stop file can be made: {error.filename}: {error.strerror}")
        own = self._world.read_prompt()
        self._task_chars = len(own)
        self._prompt = iteration_prompt(self._recorder.state, own)

    def _order(self) -> IterationOrder:
        current, granted = self._recorder.current, self.granted
        if self._prompt is not None:
            self._world.events.emit(
                IterationBegan(
                    current.number,
                    self._recorder.state.plan.limits.max_iterations,
                    current.session_id,
                    left_usd=granted.budget_usd if granted.is_rest_of_budget else None,
                    left_s=granted.time_s if granted.is_rest_of_time else None,
                )
            )
        waiting_for = f"iteration {current.number}"
        return IterationOrder(
            *(current.session_id, self._prompt, granted.budget_usd, granted.time_s, waiting_for),
            task_chars=self._task_chars,
            number=current.number,
        )


def _with_another_session(current: CurrentIteration) -> CurrentIteration:
    """Gives the iteration a new session id, because the old session cannot be resumed. Its turns and cost stay in the totals."""
    return replace(
        current,
        session_id=str(uuid.uuid4()),
        earlier_turns=current.turns,
        earlier_cost_usd=current.cost_usd,
    )


def session_seen(recorder: LoopRecorder, world: LoopWorld) -> IterationSession | None:
    """The session of the iteration in progress. Raises OSError, Interrupted and OutageLastsError."""
    return recorder.retry(lambda: world.iterations.seen(recorder.current.session_id))


def unseen_end(recorder: LoopRecorder, world: LoopWorld) -> IterationResult | None:
    """The result of a session that ended without the loop noticing, because the loop or the session's process was
    killed. None if its journal has no result, or one that does not complete the iteration (`is_counted`).
    """
    seen = session_seen(recorder, world)
    ended = seen.ended if seen is not None else None
    return ended if ended is not None and is_counted(ended.outcome) else None
