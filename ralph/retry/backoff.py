"""Retry policies. They compute the wait before retry n from n, the wait that the server requested, and the time slept
so far.

Pure. Retries are counted from 1. All times are seconds. There is no jitter: a single client causes no thundering
herd.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable

STANDARD_SCHEDULE_S = (2.0, 4.0, 8.0, 16.0)
"""The waits of the standard policy (R2 of the retry specification): four retries, so five requests at most."""
LONGEST_STANDARD_WAIT_S = 60.0
ROUND_WAIT_CAP_S = 60.0
"""The longest wait in a round of rate limits: ralph must not sleep long after a limit has ended."""

PATIENT_SCHEDULE_S = (5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 900.0, 1800.0)
PATIENT_TAIL_S = 1800.0
PATIENT_BUDGET_S = 8 * 3600.0
"""The most seconds of scheduled sleep, added up; the time of requests does not count. 21 sleeps, 27,105 s together, fit
into it.
"""
PATIENT_MAX_RETRIES = 21

# 2 ** 1024 overflows a float; no schedule needs a longer wait than this.
_LARGEST_EXPONENT = 64


class Wait(Struct, frozen=True):
    seconds: float
    from_server: bool = False
    """True: the server requested this wait. False: ralph computed it."""


class GiveUp(Struct, frozen=True):
    reason: str
    """The reason why there is no further retry, in words for people."""
    is_early: bool = False
    """True: retries were left, but the wait would have been too long. A notice then tells the user the reason."""
    outlasts_run: bool = False
    """The run's time limit leaves no room for the wait."""


class RetryPolicy(Struct, frozen=True):
    """A policy of retries.

    `next_wait(attempt, requested_s, slept_s)` decides about retry number `attempt` (1-based). `objection(attempt,
    wait_s, slept_s)` checks a wait that was computed from the failures of several targets: it returns the decision to
    give up instead; None: the wait is allowed.
    """

    name: str
    max_retries: int
    next_wait: Callable[[int, float | None, float], Wait | GiveUp]
    objection: Callable[[int, float, float], GiveUp | None]
    outlasts_outages: bool = False
    """True: a round of rate limits never shortens the waits of this policy."""
    longest_round_wait_s: float = ROUND_WAIT_CAP_S
    """The longest wait after all targets were rate-limited."""


def standard() -> RetryPolicy:
    def objection(attempt: int, _wait_s: float, _slept_s: float) -> GiveUp | None:
        return _used_up(attempt, len(STANDARD_SCHEDULE_S))

    def next_wait(attempt: int, requested_s: float | None, slept_s: float) -> Wait | GiveUp:
        if (refused := objection(attempt, 0.0, slept_s)) is not None:
            return refused
        if requested_s is not None:
            return Wait(min(requested_s, LONGEST_STANDARD_WAIT_S), from_server=True)
        return Wait(STANDARD_SCHEDULE_S[attempt - 1])

    return RetryPolicy("standard", len(STANDARD_SCHEDULE_S), next_wait, objection)


def patient() -> RetryPolicy:
    def objection(_attempt: int, wait_s: float, slept_s: float) -> GiveUp | None:
        if slept_s + wait_s <= PATIENT_BUDGET_S:
            return None
        return GiveUp(f"the budget of {PATIENT_BUDGET_S:g}s of waiting is used up")

    def next_wait(attempt: int, requested_s: float | None, slept_s: float) -> Wait | GiveUp:
        scheduled_s = (
            PATIENT_SCHEDULE_S[attempt - 1] if attempt <= len(PATIENT_SCHEDULE_S) else PATIENT_TAIL_S
        )
        wait = Wait(scheduled_s)
        if requested_s is not None and requested_s > scheduled_s:
            wait = Wait(requested_s, from_server=True)
        refused = objection(attempt, wait.seconds, slept_s)
        if refused is not None and wait.from_server:
            reason = f"the server asks for {wait.seconds:g}s, more than is left of {PATIENT_BUDGET_S:g}s"
            return GiveUp(reason, is_early=True)
        return refused or wait

    return RetryPolicy("patient", PATIENT_MAX_RETRIES, next_wait, objection, outlasts_outages=True)


def off() -> RetryPolicy:
    none = GiveUp("retry is off")
    return RetryPolicy(
        "off", 0, lambda _attempt, _requested_s, _slept_s: none, lambda _attempt, _wait_s, _slept_s: none
    )


def custom(max_retries: int, base_delay_s: float, max_delay_s: float) -> RetryPolicy:
    """An exponential policy that starts at `base_delay_s`. A longer wait that the server requested replaces the
    computed one.

    `max_delay_s` <= 0 means no maximum.
    """

    def objection(attempt: int, wait_s: float, _slept_s: float) -> GiveUp | None:
        if max_delay_s > 0 and wait_s > max_delay_s and attempt <= max_retries:
            reason = f"the wait of {wait_s:g}s is over the maximum of {max_delay_s:g}s"
            return GiveUp(reason, is_early=True)
        return _used_up(attempt, max_retries)

    def next_wait(attempt: int, requested_s: float | None, slept_s: float) -> Wait | GiveUp:
        scheduled_s = base_delay_s * 2.0 ** min(attempt - 1, _LARGEST_EXPONENT)
        extended = requested_s is not None and requested_s > scheduled_s
        wait = Wait(
            requested_s if extended and requested_s is not None else scheduled_s, from_server=extended
        )
        return objection(attempt, wait.seconds, slept_s) or wait

    return RetryPolicy("custom", max_retries, next_wait, objection, longest_round_wait_s=math.inf)


def _used_up(attempt: int, max_retries: int) -> GiveUp | None:
    return GiveUp(f"{max_retries} retries did not help") if attempt > max_retries else None


def sped_up(policy: RetryPolicy, factor: float) -> RetryPolicy:
    """The policy with all waits divided by `factor` (> 0). It is for demonstrations, which must tell the user that
    waits are shortened.
    """

    def next_wait(attempt: int, requested_s: float | None, slept_s: float) -> Wait | GiveUp:
        decision = policy.next_wait(attempt, requested_s, slept_s * factor)
        if isinstance(decision, GiveUp):
            return decision
        return Wait(decision.seconds / factor, decision.from_server)

    def objection(attempt: int, wait_s: float, slept_s: float) -> GiveUp | None:
        return policy.objection(attempt, wait_s * factor, slept_s * factor)

    return replace(policy, next_wait=next_wait, objection=objection)
