"""The wait between two rounds of requests, and the cooldown of a target that has failed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.retry.backoff import STANDARD_SCHEDULE_S, GiveUp, RetryPolicy, Wait
from ralph.values.classify import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.retry.targets import Failure, Rules

# A rotation in which every route was rate-limited must not become a hot loop.
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

    `others_s`: the remaining cooldowns of routes that were not asked in this round.
    """
    failed, rested_s = tuple(failures), tuple(others_s)
    requests_s = [failure.requested_s for failure in failed if failure.is_transient]
    named = [requested_s for requested_s in requests_s if requested_s is not None]
    # The first free route decides. If a server named no wait, the schedule decides.
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
    """Possible waits after a round in which every route was rate-limited, in order of preference.

    The usual wait ends when the first route is free again. `round_robin` prefers the longest wait that a server
    requested, unless the run would end because of it.
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
    """A wait of `wait_s`, kept between the shortest and longest wait of a round of rate limits.

    `is_named`: a server requested it.
    """
    bounded_s = min(max(wait_s, LEAST_ROUND_WAIT_S), policy.longest_round_wait_s)
    return Wait(bounded_s, from_server=is_named and wait_s >= bounded_s)


def cooldown_s(requested_s: float | None, policy: RetryPolicy, next_retry: int) -> float:
    """The seconds for which a failed route is not asked: the wait that the server requested.

    If it requested none, it is the policy's wait before the next retry; if there is none, the wait before the previous
    retry; if there is none either, the first wait of the standard schedule.
    """
    if requested_s is not None:
        return requested_s
    for retry in (next_retry, next_retry - 1):
        wait = policy.next_wait(retry, None, 0.0) if retry else None
        if isinstance(wait, Wait):
            return wait.seconds
    return STANDARD_SCHEDULE_S[0]
