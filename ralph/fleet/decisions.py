"""Decides what follows from the end of a job's process: another attempt or the end of the job. Also says how long to wait,
how much a run may spend, and how bad an exit code is. No I/O happens here.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.waiter import STOP_SIGNALS
from ralph.values.outcome import Outcome
from ralph.values.usage import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST_DELAY_S = 60.0
LONGEST_DELAY_S = 3600.0
LONGEST_ASKED_S = 8 * 86_400.0
"""A server that asks for a longer wait than this is asked again after this time. Limits of a week exist."""
SHARE = 4
"""A run may spend this part of what is left of the set's budget, and asks again when it has spent it. So many runs at
once can never spend more than there is, and the first does not take all."""
LEAST_GRANT_USD = 1.0
"""A rest that is less than this is given whole. A run begins a request only if it may spend what that request
costs at most, which is about half a dollar for an answer of 32,000 tokens."""
NOTHING_USD = 0.0001
"""No request costs less. Such a rest is left by the rounding of sums."""

_STOPPED = {128 + number for number in STOP_SIGNALS}
"""A process that somebody stopped by a signal, as a service manager does with all processes of a worker.
It can be resumed."""
_WORST_FIRST = (70, 74, 77, 78, 69, 2, 4, 1, 3, 124, 75)


class JobState(enum.Enum):
    WAITING = "waiting"
    """The jobs that `after` names have not ended."""
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    UNDELIVERED = "undelivered"
    """It has ended, and its work is kept on a machine, because the git host did not take it."""
    BLOCKED = "blocked"
    """A job that `after` names has ended with another exit code than 0, which is this job's exit code too."""

    @property
    def is_final(self) -> bool:
        return self not in {JobState.WAITING, JobState.QUEUED, JobState.RUNNING}


class ProcessEnd(Struct, frozen=True, kw_only=True):
    """How a job's process ended, and what it said of itself."""

    exit_code: int
    reason: str = ""
    result: str = ""
    retry_after_s: float | None = None
    """How long the server asked to wait. None if it did not say."""
    turns: int = 0
    """Turns and cost are those of the whole session, or of the whole loop."""
    cost_usd: float = 0.0
    limit: str | None = None
    """The limit that ended it, as `ralph run` names it: `max_turns` or `max_budget_usd`."""
    was_killed: bool = False
    """True if a signal ended the process that nobody of the fleet had sent, such as the kernel's at a lack of memory."""


class Final(Struct, frozen=True):
    """The job has ended."""

    exit_code: int
    reason: str


class NextAttempt(Struct, frozen=True):
    """The next attempt starts after `delay_s`."""

    delay_s: float
    reason: str
    is_try: bool = True
    """Whether the attempt that has ended counts."""


def after_end(
    end: ProcessEnd, *, tries: int, most_tries: int, has_own_access: bool = True, has_worked: bool = True
) -> Final | NextAttempt:
    """Decides what follows after a try. `tries` counts this one. A job without `has_own_access` uses the key of its machine.
    If the API refuses that, the fault is the machine's, unless `has_worked` says that another job has ended well with it.
    """
    is_refused = end.exit_code == Outcome.AUTH.exit_code() and not has_own_access
    if is_refused and not has_worked:
        return NextAttempt(0.0, end.reason, is_try=False)
    is_away = end.exit_code == Outcome.API_UNAVAILABLE.exit_code()
    if not (is_away or is_refused or end.was_killed or end.exit_code in _STOPPED):
        return Final(end.exit_code, end.reason)
    code = (Outcome.AUTH if is_refused else Outcome.API_UNAVAILABLE).exit_code()
    reason = end.reason or "the API was not available"
    if tries >= most_tries:
        return Final(code, f"gave up after {tries} attempts: {reason}")
    return NextAttempt(delay_after(tries, end.retry_after_s), reason)


def delay_after(tries: int, retry_after_s: float | None) -> float:
    """The wait before the next attempt, in seconds: what the server asked for, or twice as long each time."""
    if retry_after_s is not None and retry_after_s >= 0:
        return min(retry_after_s, LONGEST_ASKED_S)
    return min(FIRST_DELAY_S * 2.0 ** min(tries - 1, 10), LONGEST_DELAY_S)


def grant_usd(left_usd: float, least_usd: float = LEAST_GRANT_USD) -> float:
    """How much of the `left_usd` of a set's budget one run may spend before it asks again. 0 if nothing is left. A run
    for which a grant did not suffice asks with the `least_usd` that it needs.
    """
    return plain(min(left_usd, max(left_usd / SHARE, least_usd))) if left_usd >= NOTHING_USD else 0.0


def outcome_of(exit_code: int) -> Outcome:
    """The outcome of an exit code of ralph. Ends by a signal are interruptions."""
    if exit_code > 128:
        return Outcome.INTERRUPTED
    others = (outcome for outcome in Outcome if outcome is not Outcome.INTERRUPTED)
    return next((outcome for outcome in others if outcome.exit_code() == exit_code), Outcome.INTERNAL_ERROR)


def worst_exit_code(codes: Iterable[int]) -> int:
    """The worst of the exit codes of jobs. Ends by a signal (128+n) are less bad than all other failures. A code that
    ralph does not have is as bad as 70. 0 if there is no code.
    """
    return min(codes, key=badness, default=0)


def badness(code: int) -> int:
    """The place of an exit code among all, from the worst, which is 0, to the code 0."""
    if code == 0:
        return len(_WORST_FIRST) + 1
    if code > 128:
        return len(_WORST_FIRST)
    return _WORST_FIRST.index(code) if code in _WORST_FIRST else 0
