"""Which target is asked next, and with which key: a pure state machine. State, failure, time -> decision, new state.

A route is a target and one of its keys. A round asks each usable route once, without a wait between them; the
retries of the policy are what stands between rounds. With a single route that is the plain retry policy.

What a failure does to its route outlives three things. A transient one cools it down for a time (`fallback` only);
one that asking again cannot mend bars it for the chain; one of the account or the model skips it for the run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.retry.backoff import STANDARD_SCHEDULE_S, GiveUp, RetryPolicy, Wait
from ralph.values.classify import (
    ErrorClass,
    FailureKind,
    failure_kind,
    is_bad_key,
    is_shortage,
)
from ralph.values.errors import AgentError, HttpError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A rotation in which everybody was rate-limited is never a hot loop.
LEAST_ROUND_WAIT_S = 1.0

_OF_THE_REQUEST = frozenset({FailureKind.INVALID_REQUEST, FailureKind.CONTEXT_OVERFLOW})
"""No other target would take it either."""
_OF_THE_KEY = frozenset({FailureKind.RATE_LIMIT, FailureKind.USAGE_LIMIT})
"""Another key of the same target may have room left."""
_FOR_THE_RUN = frozenset(
    {FailureKind.AUTH, FailureKind.BILLING, FailureKind.USAGE_LIMIT, FailureKind.NOT_FOUND}
)
"""Nothing that a run could wait for."""


class Route(Struct, frozen=True):
    target: int
    """Index into the run's targets, from 0."""
    key: int = 0
    """Index into the target's keys, from 0."""


class Failure(Struct, frozen=True):
    """What choosing needs to know of an error."""

    kind: FailureKind
    is_transient: bool
    requested_s: float | None = None
    """Seconds that the server asks to be left alone."""
    is_of_key: bool = False
    """Another key of the same target may fare better."""
    is_of_machine: bool = False
    """No target would fare better, and none is to blame."""


def failure_of(error: AgentError, error_class: ErrorClass) -> Failure:
    kind = failure_kind(error)
    return Failure(
        kind,
        error_class is ErrorClass.TRANSIENT,
        error.retry_after if isinstance(error, HttpError) else None,
        kind in _OF_THE_KEY or is_bad_key(error),
        is_shortage(error),
    )


class Rules(Struct, frozen=True):
    """What is fixed for a run."""

    key_counts: tuple[int, ...]
    """Keys of each target, 1 where it needs none."""
    strategy: str = "fallback"
    """One of `setting_tables.STRATEGIES`."""
    returns: bool = True
    """`fallback`: back to the first target when its cooldown has ended; else on with the one that serves."""
    first: int = 0
    """The target that is preferred; the others follow in their order."""

    listed: int | None = None
    """How many of them were there at the start; one that came later takes the place of the first. None: all."""

    @property
    def order(self) -> tuple[int, ...]:
        """The targets that can be asked, the preferred one first."""
        listed = range(len(self.key_counts) if self.listed is None else self.listed)
        others = listed if self.first in listed else listed[1:]
        return (self.first, *(target for target in others if target != self.first))

    @property
    def is_rotation(self) -> bool:
        return sum(self.key_counts[target] for target in self.order) > 1

    def keys_of(self, target: int) -> list[Route]:
        return [Route(target, key) for key in range(self.key_counts[target])]


class ChainState(Struct, frozen=True):
    """What belongs to one use of the call site; the next one starts afresh."""

    retries: int = 0
    slept_s: float = 0.0
    barred: frozenset[Route] = frozenset()
    """Asking these again cannot help."""
    tried: frozenset[Route] = frozenset()
    """In this round."""
    failures: tuple[Failure, ...] = ()
    """Of this round."""
    is_forced: bool = False
    """The round began with every route cooling down: they are asked nevertheless, the one that is free first."""


class TargetsState(Struct, frozen=True):
    route: Route = Route(0)
    """Asked next; after an answer, the one that gave it."""
    skipped: frozenset[Route] = frozenset()
    """Out for the rest of the run."""
    releases_s: Mapping[Route, float] = field(default_factory=dict)
    """When the cooldown of a route ends, on the run's clock."""
    chain: ChainState = ChainState()
    is_away: bool = False
    """The first target was left, and has not answered since."""
    announced: int | None = None
    """The other target whose first answer has been told."""


class MoveOn(Struct, frozen=True):
    """Ask the state's route at once: that is no retry."""


Decision = Wait | MoveOn | GiveUp
"""`Wait`: a retry. Sleep, then ask the state's route."""


CANNOT_HELP = GiveUp("asking again cannot help")
"""Nobody is left who could be asked in this chain."""
REFUSED_BY_ALL = GiveUp("no other target would take the request either")


def begin(state: TargetsState, rules: Rules, now_s: float) -> TargetsState:
    """A new chain. `route` is whom to ask first."""
    if rules.strategy == "round_robin":
        state = replace(state, route=Route(rules.first), chain=ChainState())
        return replace(state, route=_rotated(state, rules) or state.route)
    return _begin_round(replace(state, chain=ChainState()), rules, now_s)


def after_failure(
    state: TargetsState, failure: Failure, *, rules: Rules, policy: RetryPolicy, now_s: float
) -> tuple[Decision, TargetsState]:
    """What comes after `state.route` failed at `now_s`."""
    chain = state.chain
    if failure.kind in _OF_THE_REQUEST and not failure.is_transient:
        return REFUSED_BY_ALL, state
    hit = {state.route}
    if failure.is_of_machine:
        hit = set(usable_routes(state, rules))
    else:
        state = _with_damage(state, failure, rules, policy, now_s)
    chain = replace(state.chain, tried=chain.tried | hit, failures=(*chain.failures, failure))
    state = replace(state, chain=chain)
    route = _pick(state, rules, now_s)
    if route is not None:
        return MoveOn(), _moved(state, route)
    return _after_round(state, rules, policy, now_s)


def after_answer(
    state: TargetsState, rules: Rules
) -> tuple[TargetsState, Literal["succeeded", "recovered"] | None]:
    """Counters start afresh; and what the answer means for a change of targets, told once."""
    serving = state.route.target
    releases_s = {route: end_s for route, end_s in state.releases_s.items() if route != state.route}
    state = replace(state, chain=ChainState(), releases_s=releases_s)
    if serving == rules.first:
        told: Literal["recovered"] | None = "recovered" if state.is_away else None
        return replace(state, is_away=False, announced=None), told
    if state.announced == serving:
        return state, None
    return replace(state, is_away=True, announced=serving), "succeeded"


def preferring(state: TargetsState, rules: Rules, first: int) -> tuple[TargetsState, Rules]:
    """That target comes first from now on. It is asked for by name: whatever it was left out for is forgotten."""
    rules = replace(rules, first=first)
    skipped = state.skipped.difference(rules.keys_of(first))
    return replace(state, route=Route(first), skipped=skipped, is_away=False, announced=None), rules


def forgiven(state: TargetsState) -> TargetsState:
    """A new task: whoever was left out for the last one may be asked again."""
    return replace(state, skipped=frozenset())


def resumed(
    state: TargetsState, rules: Rules, ends_s: Mapping[int, float], serving: int | None
) -> TargetsState:
    """As an earlier run left it: which targets cool down until when, on the run's clock, and which answered last."""
    releases_s = {route: end_s for target, end_s in ends_s.items() for route in rules.keys_of(target)}
    route = state.route if serving is None else Route(serving)
    return replace(state, releases_s=releases_s, route=route, is_away=route.target != rules.first)


def cooling_ends_s(state: TargetsState, rules: Rules) -> dict[int, float]:
    """When each target that cools down with all its keys is free again, on the run's clock."""
    found = {}
    for target in range(len(rules.key_counts)):
        routes = rules.keys_of(target)
        ends_s = [state.releases_s[route] for route in routes if route in state.releases_s]
        if len(ends_s) == len(routes):
            found[target] = min(ends_s)
    return found


def round_wait(
    policy: RetryPolicy,
    retry: int,
    failures: Iterable[Failure],
    slept_s: float,
    rules: Rules,
    *,
    others_s: Iterable[float] = (),
) -> Wait | GiveUp:
    """How long to wait before retry number `retry` (1-based), after a round with these failures.

    `others_s`: how long those still cool down that were left alone in this round.
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
    """After a round in which all were rate-limited, the preferred one first: until the first of them is free again.

    `round_robin` asks all of them then, and waits for the last; unless that is so long that the run would end.
    """
    cooldowns_s = [
        (_cooldown_s(requested_s, policy, retry), requested_s is not None) for requested_s in requests_s
    ]
    cooldowns_s += [(left_s, False) for left_s in rested_s]
    waits = [_round_wait(*min(cooldowns_s), policy)]
    if rules.strategy == "round_robin":
        named = [cooldown_s for cooldown_s, is_named in cooldowns_s if is_named]
        waits.insert(0, _round_wait(max(named, default=float(retry)), bool(named), policy))
    return waits


def _round_wait(wait_s: float, is_named: bool, policy: RetryPolicy) -> Wait:
    """Within the bounds of a round of rate limits. `is_named`: a server asked for it."""
    bounded_s = min(max(wait_s, LEAST_ROUND_WAIT_S), policy.longest_round_wait_s)
    return Wait(bounded_s, from_server=is_named and wait_s >= bounded_s)


def usable_routes(state: TargetsState, rules: Rules) -> list[Route]:
    """What this chain may still ask, the preferred target's first."""
    out = state.skipped | state.chain.barred
    return [route for target in rules.order for route in rules.keys_of(target) if route not in out]


def _with_damage(
    state: TargetsState, failure: Failure, rules: Rules, policy: RetryPolicy, now_s: float
) -> TargetsState:
    """The state without what this failure has cost: a key, a target, for a while or for good."""
    hit = [state.route] if failure.is_of_key else rules.keys_of(state.route.target)
    chain = state.chain
    if not failure.is_transient and failure.kind in _FOR_THE_RUN:
        return replace(state, skipped=state.skipped.union(hit))
    if not failure.is_transient:
        state = replace(state, chain=replace(chain, barred=chain.barred.union(hit)))
    if rules.strategy != "fallback":
        return state
    end_s = now_s + _cooldown_s(failure.requested_s, policy, chain.retries + 1)
    # What another key was told for itself still holds; the one that was asked has just heard anew.
    cooled = {route: max(end_s, state.releases_s.get(route, end_s)) for route in hit}
    return replace(state, releases_s={**state.releases_s, **cooled, state.route: end_s})


def _cooldown_s(requested_s: float | None, policy: RetryPolicy, next_retry: int) -> float:
    """What the server asks for; else the policy's wait before the next retry, after the last one that one's, and
    without any the standard's first.
    """
    if requested_s is not None:
        return requested_s
    for retry in (next_retry, next_retry - 1):
        wait = policy.next_wait(retry, None, 0.0) if retry else None
        if isinstance(wait, Wait):
            return wait.seconds
    return STANDARD_SCHEDULE_S[0]


def _after_round(
    state: TargetsState, rules: Rules, policy: RetryPolicy, now_s: float
) -> tuple[Decision, TargetsState]:
    chain = state.chain
    if not usable_routes(state, rules):
        return CANNOT_HELP, state
    retry = chain.retries + 1
    rested = set(usable_routes(state, rules)) - chain.tried
    wait = round_wait(
        policy,
        retry,
        chain.failures,
        chain.slept_s,
        rules,
        others_s=[state.releases_s[route] - now_s for route in rested],
    )
    if isinstance(wait, GiveUp):
        return wait, state
    state = replace(state, chain=ChainState(retry, chain.slept_s + wait.seconds, chain.barred))
    return wait, _begin_round(state, rules, now_s + wait.seconds)


def _begin_round(state: TargetsState, rules: Rules, at_s: float) -> TargetsState:
    is_free = any(_is_free(route, state, at_s) for route in usable_routes(state, rules))
    state = replace(state, chain=replace(state.chain, is_forced=not is_free))
    return _moved(state, _pick(state, rules, at_s) or state.route)


def _moved(state: TargetsState, route: Route) -> TargetsState:
    if route.target == state.route.target:
        return replace(state, route=route)
    return replace(state, route=route, is_away=True, announced=None)


def _pick(state: TargetsState, rules: Rules, now_s: float) -> Route | None:
    """The next route of this round; None: it is over."""
    if rules.strategy == "round_robin":
        return _rotated(state, rules)
    usable = usable_routes(state, rules)
    if not rules.returns:
        usable.sort(key=lambda route: route.target != state.route.target)  # stable: the rest keeps its order
    untried = [route for route in usable if route not in state.chain.tried]
    free = [route for route in usable if _is_free(route, state, now_s)]
    if free or not state.chain.is_forced:
        return next((route for route in free if route in untried), None)
    return min(untried, key=lambda route: state.releases_s[route], default=None)


def _rotated(state: TargetsState, rules: Rules) -> Route | None:
    """`round_robin`: a key that was refused gives way to the next of its target, any other failure to the next target."""
    order = rules.order
    place = order.index(state.route.target)
    failed = state.chain.failures
    is_new = not failed and not state.chain.retries
    key_was_refused = bool(failed) and failed[-1].is_of_key and not failed[-1].is_transient
    starts_at = place if is_new or key_was_refused else place + 1
    turns = [order[(starts_at + step) % len(order)] for step in range(len(order))]
    untried = [route for route in usable_routes(state, rules) if route not in state.chain.tried]
    return min(untried, key=lambda route: (turns.index(route.target), route.key), default=None)


def _is_free(route: Route, state: TargetsState, at_s: float) -> bool:
    return state.releases_s.get(route, -math.inf) <= at_s
