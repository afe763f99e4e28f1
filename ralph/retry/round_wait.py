"""The wait between two rounds of requests, and the cooldown of a target that has failed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.retry.backoff import STANDARD_SCHEDULE_S, GiveUp, RetryPolicy, Wait
from ralph.values.classify import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.retry.targets import Failure, Rules

# A rotation in which everybody was rate-limited is never a hot loop.
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
    """The wait before retry number `retry` (1-based), after a round with these failures.

    `others_s`: the rest of the cooldowns of routes that were not asked in this round.
    """
    failed, rested_s = tuple(failures), tuple(others_s)
    requests_s = [failure.requested_s for failure in failed if failure.is_transient]
    named = [requested_s for requested_s in requests_s if requested_s is not None]
    # What matters is when the first of them can be asked again; where one named nothing, the schedule knows.
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
    """Waits after a round in which all were rate-limited, the preferred one first: until the first of them is free again.

    `round_robin` asks all of them then, and waits for the last; unless that is so long that the run would end.
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
    """A wait within the bounds of a round of rate limits. `is_named`: a server asked for it."""
    bounded_s = min(max(wait_s, LEAST_ROUND_WAIT_S), policy.longest_round_wait_s)
    return Wait(bounded_s, from_server=is_named and wait_s >= bounded_s)


def cooldown_s(requested_s: float | None, policy: RetryPolicy, next_retry: int) -> float:
    """The wait that the server asks for; else the policy's before the next retry, or before the last one where none is left;
    else the first of the standard policy.
    """
    if requested_s is not None:
        return requested_s
    for retry in (next_retry, next_retry - 1):
        wait = policy.next_wait(retry, None, 0.0) if retry else None
        if isinstance(wait, Wait):
            return wait.seconds
    return STANDARD_SCHEDULE_S[0]
