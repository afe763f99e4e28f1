"""The retry policies. A policy computes the wait before a retry. `round_wait` computes the wait between two rounds of
requests, and `cooldown_s` the cooldown of a target that has failed. No I/O happens here.

The wait depends on the number of the retry (counted from 1), the wait that the server requested, and the sum of the
waits so far. All times are in seconds. The waits have no random part. A random part would help if many clients
retried at the same moment, but a run is a single client.

A route is a target with one of its keys. In a round, ralph asks each usable route once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.values.errors import FailureKind
from ralph.values.screen_text import counted, time_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ralph.retry.targets import Failure, Rules


STANDARD_SCHEDULE_S = (2.0, 4.0, 8.0, 16.0)
"""The waits of the standard policy (rule R2 of the retry specification). The policy allows four retries, so at most
five requests."""
LONGEST_STANDARD_WAIT_S = 60.0
ROUND_WAIT_CAP_S = 60.0
"""The longest wait after all targets were rate-limited. It is short, so that ralph asks again soon after the limits
have ended."""

PATIENT_SCHEDULE_S = (5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 900.0, 1800.0)
PATIENT_TAIL_S = 1800.0
"""The length of each wait of the patient policy after the waits in its schedule."""
PATIENT_BUDGET_S = 8 * 3600.0
"""The maximum sum of all waits of the patient policy. The time of requests is not included."""
PATIENT_MAX_RETRIES = 21
"""The maximum number of waits of the patient policy. That many waits fit into its budget: their sum is 27,105 s."""

# 2 ** 1024 overflows a float; no schedule needs a longer wait than this.
_LARGEST_EXPONENT = 64


class Wait(Struct, frozen=True):
    seconds: float
    from_server: bool = False
    """True if the server requested this wait, False if ralph computed it."""


class GiveUp(Struct, frozen=True):
    reason: str
    """The reason why there is no further retry, written for people."""
    is_early: bool = False
    """True if the policy had a retry left, but the wait before this retry would have been too long. The user then
    gets a notice with the reason."""
    outlasts_run: bool = False
    """True if the wait would end after the run's time limit."""
    is_about_size: bool = False
    """True if the request may be too large for the server. A smaller one may be answered."""


LASTS_S = 600.0
"""If every error for this many seconds was the same shortage, ralph assumes that it will not pass. The outcome is then
io_error."""
LASTED_TOO_LONG = f"the same shortage has lasted for {time_limit(LASTS_S)}"


class ShortTime(Struct, frozen=True):
    words: str
    """The text that names the shortage."""
    since_s: float

    def left_s(self, now_s: float) -> float:
        """The seconds until ralph assumes that the shortage will not pass."""
        return self.since_s + LASTS_S - now_s


def met_again(before: ShortTime | None, words: str, now_s: float) -> ShortTime:
    return before if before is not None and before.words == words else ShortTime(words, now_s)


class RetryPolicy(Struct, frozen=True):
    """Decides how many retries there are, and how long ralph waits before each of them."""

    name: str
    max_retries: int
    next_wait: Callable[[int, float | None, float], Wait | GiveUp]
    """Takes the number of the retry (counted from 1), the wait that the server requested (or None), and the sum of
    the waits so far in seconds. Returns the wait before that retry, or the decision to give up."""
    objection: Callable[[int, float, float], GiveUp | None]
    """Checks a wait that was computed from the failures of several targets. Takes the number of the retry, the wait
    in seconds, and the sum of the waits so far in seconds. Returns None if the policy allows the wait, otherwise the
    decision to give up."""
    outlasts_outages: bool = False
    """True if the waits of this policy must not be shortened when all targets are rate-limited."""
    longest_round_wait_s: float = ROUND_WAIT_CAP_S
    """The longest wait, in seconds, after all targets were rate-limited."""


def standard() -> RetryPolicy:
    """Four retries. A requested wait is used up to 60 s. If it is longer than all remaining waits, ralph gives up at
    once. A requested wait of 0 is used only for the first retry: a server that always sends it would use up all
    retries within a second.
    """

    def objection(attempt: int, wait_s: float, _slept_s: float) -> GiveUp | None:
        left_s = LONGEST_STANDARD_WAIT_S * (len(STANDARD_SCHEDULE_S) + 1 - attempt)
        if 0 < left_s < wait_s:
            reason = f"the server asks for a wait of {time_limit(wait_s)}, and --retry standard waits {time_limit(left_s)} at most"
            return GiveUp(reason, is_early=True)
        return _used_up(attempt, len(STANDARD_SCHEDULE_S))

    def next_wait(attempt: int, requested_s: float | None, slept_s: float) -> Wait | GiveUp:
        if (refused := objection(attempt, requested_s or 0.0, slept_s)) is not None:
            return refused
        if requested_s is None or (requested_s == 0 and attempt > 1):
            return Wait(STANDARD_SCHEDULE_S[attempt - 1])
        return Wait(min(requested_s, LONGEST_STANDARD_WAIT_S), from_server=True)

    return RetryPolicy("standard", len(STANDARD_SCHEDULE_S), next_wait, objection)


def patient() -> RetryPolicy:
    """For long outages: waits that grow up to a maximum, with a limited sum. A longer requested wait is used."""

    def objection(_attempt: int, wait_s: float, slept_s: float) -> GiveUp | None:
        if slept_s + wait_s <= PATIENT_BUDGET_S:
            return None
        return GiveUp(f"--retry patient waits {time_limit(PATIENT_BUDGET_S)} in all, which are used up")

    def next_wait(attempt: int, requested_s: float | None, slept_s: float) -> Wait | GiveUp:
        scheduled_s = (
            PATIENT_SCHEDULE_S[attempt - 1] if attempt <= len(PATIENT_SCHEDULE_S) else PATIENT_TAIL_S
        )
        wait = Wait(scheduled_s)
        if requested_s is not None and requested_s > scheduled_s:
            wait = Wait(requested_s, from_server=True)
        refused = objection(attempt, wait.seconds, slept_s)
        if refused is not None and wait.from_server:
            rest = f"{time_limit(round(PATIENT_BUDGET_S - slept_s))} of its {time_limit(PATIENT_BUDGET_S)}"
            asked = f"the server asks for a wait of {time_limit(wait.seconds)}"
            return GiveUp(f"{asked}, and --retry patient has {rest} left", is_early=True)
        return refused or wait

    return RetryPolicy("patient", PATIENT_MAX_RETRIES, next_wait, objection, outlasts_outages=True)


def off() -> RetryPolicy:
    none = GiveUp("retry is off")
    return RetryPolicy(
        "off", 0, lambda _attempt, _requested_s, _slept_s: none, lambda _attempt, _wait_s, _slept_s: none
    )


def custom(max_retries: int, base_delay_s: float, max_delay_s: float) -> RetryPolicy:
    """The user's own numbers: each wait is twice as long as the one before. A longer requested wait is used. If a
    wait would be longer than `max_delay_s` (> 0), ralph gives up.
    """

    def objection(attempt: int, wait_s: float, _slept_s: float) -> GiveUp | None:
        if max_delay_s > 0 and wait_s > max_delay_s and attempt <= max_retries:
            reason = f"the wait of {time_limit(wait_s)} is over the maximum of {time_limit(max_delay_s)} (retry.max_delay_s)"
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
    return (
        GiveUp(f"{counted(max_retries, 'retry', 'retries')} did not help") if attempt > max_retries else None
    )


def sped_up(policy: RetryPolicy, factor: float) -> RetryPolicy:
    """The policy with all waits divided by `factor` (> 0). The demo uses it."""

    def next_wait(attempt: int, requested_s: float | None, slept_s: float) -> Wait | GiveUp:
        decision = policy.next_wait(attempt, requested_s, slept_s * factor)
        if isinstance(decision, GiveUp):
            return decision
        return Wait(decision.seconds / factor, decision.from_server)

    def objection(attempt: int, wait_s: float, slept_s: float) -> GiveUp | None:
        return policy.objection(attempt, wait_s * factor, slept_s * factor)

    return replace(policy, next_wait=next_wait, objection=objection)


# If every route is rate-limited and the servers request no wait, the requests must not follow without a pause.
LEAST_ROUND_WAIT_S = 1.0


def round_wait(
    policy: RetryPolicy,
    retry: int,
    failures: Iterable[Failure],
    slept_s: float,
    rules: Rules,
    *,
    others_s: Iterable[float] = (),
) -> Wait | GiveUp:
    """The wait before retry number `retry`, after a round of requests that all failed, or the decision to give up.
    `others_s` are the remaining cooldowns, in seconds, of the targets and keys that were not asked in the round.
    """
    failed, rested_s = tuple(failures), tuple(others_s)
    requests_s = [failure.requested_s for failure in failed if failure.is_transient]
    named = [requested_s for requested_s in requests_s if requested_s is not None]
    # The wait ends when the first route can be asked again. If a server named no wait, the policy's schedule decides.
    soonest_s = min((*named, *rested_s)) if named and len(named) == len(requests_s) else None
    decision = policy.next_wait(retry, soonest_s, slept_s)
    if isinstance(decision, Wait) and soonest_s not in named:
        decision = Wait(decision.seconds)
    if not rules.is_rotation or any(failure.kind is not FailureKind.RATE_LIMIT for failure in failed):
        return decision
    waits = _waits_of_rate_limits(policy, retry, requests_s, rested_s, rules)
    judged = [
        policy.objection(retry, wait_s, slept_s) or _round_wait(wait_s, is_named, policy)
        for wait_s, is_named in waits
    ]
    limited = next((wait for wait in judged if isinstance(wait, Wait)), judged[-1])
    if not policy.outlasts_outages:
        return limited
    if isinstance(decision, GiveUp) or isinstance(limited, GiveUp) or decision.seconds > limited.seconds:
        return decision
    return limited


def _waits_of_rate_limits(
    policy: RetryPolicy,
    retry: int,
    requests_s: Iterable[float | None],
    rested_s: Sequence[float],
    rules: Rules,
) -> list[tuple[float, bool]]:
    """The possible waits in seconds after a round in which every target and key was rate-limited, and whether a
    server named them: the first that the policy allows counts. The last one ends when the first target can be asked
    again. With `round_robin`, the longest requested wait precedes it, or the number of the retry if none was
    requested.
    """
    cooldowns_s = [
        (cooldown_s(requested_s, policy, retry), requested_s is not None) for requested_s in requests_s
    ]
    cooldowns_s += [(left_s, False) for left_s in rested_s]
    waits = [min(cooldowns_s)]
    if rules.strategy == "round_robin":
        named = [cooldown_s for cooldown_s, is_named in cooldowns_s if is_named]
        waits.insert(0, (max(named, default=float(retry)), bool(named)))
    return waits


def _round_wait(wait_s: float, is_named: bool, policy: RetryPolicy) -> Wait:
    bounded_s = min(max(wait_s, LEAST_ROUND_WAIT_S), policy.longest_round_wait_s)
    return Wait(bounded_s, from_server=is_named and wait_s >= bounded_s)


def cooldown_s(requested_s: float | None, policy: RetryPolicy, next_retry: int) -> float:
    """The seconds for which a target and key that failed are not asked: the requested wait, or the policy's wait
    before the next retry, or before the previous one.
    """
    if requested_s is not None:
        return requested_s
    for retry in (next_retry, next_retry - 1):
        wait = policy.next_wait(retry, None, 0.0) if retry else None
        if isinstance(wait, Wait):
            return wait.seconds
    return STANDARD_SCHEDULE_S[0]
