"""Computes the wait between two rounds of requests, and the cooldown of a target that has failed. No I/O happens
here. A route is a target with one of its keys. In a round, ralph asks each usable route once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.retry.backoff import STANDARD_SCHEDULE_S, GiveUp, RetryPolicy, Wait
from ralph.values.classify import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.retry.targets import Failure, Rules

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
    """The wait before a retry, after a round of requests that all failed. If the policy allows no wait, the result is
    the decision to give up.

    `retry` is the number of the retry, counted from 1. `failures` are the failures of the round. `others_s` holds the
    remaining cooldowns, in seconds, of the targets and keys that were not asked in the round.
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
    judged = [policy.objection(retry, wait.seconds, slept_s) or wait for wait in waits]
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
) -> list[Wait]:
    """The possible waits after a round in which every target and key was rate-limited. The caller uses the first wait
    that the policy allows.

    The last wait in the list ends when the first target can be asked again. With `round_robin`, another wait precedes
    it. That is the longest wait that a server requested. If no server requested a wait, its length in seconds is the
    number of the retry.
    """
    cooldowns_s = [
        (cooldown_s(requested_s, policy, retry), requested_s is not None) for requested_s in requests_s
    ]
    cooldowns_s += [(left_s, False) for left_s in rested_s]
    waits = [_round_wait(*min(cooldowns_s), policy)]
    if rules.strategy == "round_robin":
        named = [cooldown_s for cooldown_s, is_named in cooldowns_s if is_named]
        waits.insert(0, _round_wait(max(named, default=float(retry)), bool(named), policy))
    return waits


def _round_wait(wait_s: float, is_named: bool, policy: RetryPolicy) -> Wait:
    """A wait of `wait_s` seconds, but at least `LEAST_ROUND_WAIT_S` and at most the policy's longest round wait.

    `is_named` is True if a server requested this wait.
    """
    bounded_s = min(max(wait_s, LEAST_ROUND_WAIT_S), policy.longest_round_wait_s)
    return Wait(bounded_s, from_server=is_named and wait_s >= bounded_s)


def cooldown_s(requested_s: float | None, policy: RetryPolicy, next_retry: int) -> float:
    """The length of a cooldown in seconds. During a cooldown, a target and key that failed are not asked.

    If the server requested a wait, the result is that wait. Otherwise the result is the policy's wait before the next
    retry, which has the number `next_retry`. If the policy has no further retry, the result is the wait before the
    previous retry. If there was no previous retry, it is the first wait of the standard schedule.
    """
    if requested_s is not None:
        return requested_s
    for retry in (next_retry, next_retry - 1):
        wait = policy.next_wait(retry, None, 0.0) if retry else None
        if isinstance(wait, Wait):
            return wait.seconds
    return STANDARD_SCHEDULE_S[0]
