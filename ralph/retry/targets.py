"""Chooses the next target and its key. Pure: state, failure, time -> decision, new state.

A route is a target and one of its keys. A round asks each usable route once, without a wait in between. The policy's
retries separate the rounds. With a single route that is the plain retry policy.

A failure has one of three lasting effects on its route. A transient failure cools the route down for a time
(`fallback` only). A failure that another attempt cannot mend bars it for the chain. A failure of the account or the
model skips it for the run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.retry.backoff import GiveUp, RetryPolicy, Wait
from ralph.retry.round_wait import cooldown_s, round_wait
from ralph.values.classify import (
    ErrorClass,
    FailureKind,
    failure_kind,
    is_bad_key,
    is_shortage,
)
from ralph.values.errors import AgentError, HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_THE_REQUEST = frozenset({FailureKind.INVALID_REQUEST, FailureKind.CONTEXT_OVERFLOW})
"""Failures of the request itself: no other target would accept it either."""
_OF_THE_KEY = frozenset({FailureKind.RATE_LIMIT, FailureKind.USAGE_LIMIT})
"""Failures of one key: another key of the same target may have room left."""
_FOR_THE_RUN = frozenset(
    {FailureKind.AUTH, FailureKind.BILLING, FailureKind.USAGE_LIMIT, FailureKind.NOT_FOUND}
)
"""Failures that last: no wait within a run would end them."""


class Route(Struct, frozen=True):
    target: int
    """Index into the run's targets, from 0."""
    key: int = 0
    """Index into the target's keys, from 0."""


class Failure(Struct, frozen=True):
    """An error, reduced to the facts that the choice depends on."""

    kind: FailureKind
    is_transient: bool
    requested_s: float | None = None
    """The wait that the server requests, in seconds."""
    is_of_key: bool = False
    """Whether another key of the same target may succeed."""
    is_of_machine: bool = False
    """Whether this machine is the cause: no other target would succeed."""


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
    """The targets' rules, fixed for a run."""

    key_counts: tuple[int, ...]
    """The number of keys of each target, 1 for a target that needs none."""
    strategy: str = "fallback"
    """`fallback` or `round_robin`."""
    returns: bool = True
    """For `fallback`: return to the first target when its cooldown has ended; otherwise stay with the current one."""
    first: int = 0
    """The target that is preferred; the others follow in their order."""

    listed: int | None = None
    """The number of targets that were configured; None: all. A target that is added later is asked in place of target
    0.
    """

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
    """The state of one use of the call site. The next use starts with a fresh one."""

    retries: int = 0
    slept_s: float = 0.0
    barred: frozenset[Route] = frozenset()
    """Routes that cannot succeed in this chain."""
    tried: frozenset[Route] = frozenset()
    """Routes asked in this round."""
    failures: tuple[Failure, ...] = ()
    """The failures of this round."""
    is_forced: bool = False
    """True: every route was cooling down when the round began.

    The routes are asked nevertheless, beginning with the one whose cooldown ends first.
    """


class TargetsState(Struct, frozen=True):
    route: Route = Route(0)
    """The route that is asked next; after an answer, the route that gave it."""
    skipped: frozenset[Route] = frozenset()
    """Routes that are not asked for the rest of the run."""
    releases_s: Mapping[Route, float] = field(default_factory=dict)
    """The end of each route's cooldown, on the run's clock."""
    chain: ChainState = ChainState()
    is_away: bool = False
    """Whether another target has replaced the first one, which has not answered since."""
    announced: int | None = None
    """The replacement target whose first answer has been announced; None: no such answer was announced."""


class MoveOn(Struct, frozen=True):
    """The decision to ask the state's route at once. It does not count as a retry."""


Decision = Wait | MoveOn | GiveUp
"""The decision after a failure. `Wait` is a retry: sleep, then ask the state's route."""


CANNOT_HELP = GiveUp("asking again cannot help")
"""No target is left that could be tried in this chain."""
REFUSED_BY_ALL = GiveUp("no other target would take the request either")


def begin(state: TargetsState, rules: Rules, now_s: float) -> TargetsState:
    """The state at the beginning of a chain. Its `route` is the first one to try."""
    if rules.strategy == "round_robin":
        state = replace(state, route=Route(rules.first), chain=ChainState())
        return replace(state, route=_rotated(state, rules) or state.route)
    return _begin_round(replace(state, chain=ChainState()), rules, now_s)


def after_failure(
    state: TargetsState, failure: Failure, *, rules: Rules, policy: RetryPolicy, now_s: float
) -> tuple[Decision, TargetsState]:
    """The decision after `state.route` failed at `now_s`."""
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
    """The state after an answer, with its counters reset, and the confirmed change of targets; None: no change."""
    serving = state.route.target
    releases_s = {route: end_s for route, end_s in state.releases_s.items() if route != state.route}
    state = replace(state, chain=ChainState(), releases_s=releases_s)
    if serving == rules.first:
        change: Literal["recovered"] | None = "recovered" if state.is_away else None
        return replace(state, is_away=False, announced=None), change
    if state.announced == serving:
        return state, None
    return replace(state, is_away=True, announced=serving), "succeeded"


def preferring(state: TargetsState, rules: Rules, first: int) -> tuple[TargetsState, Rules]:
    """The state and rules in which target `first` is preferred.

    The user asked for this target by name, so it is no longer skipped.
    """
    rules = replace(rules, first=first)
    skipped = state.skipped.difference(rules.keys_of(first))
    return replace(state, route=Route(first), skipped=skipped, is_away=False, announced=None), rules


def forgiven(state: TargetsState) -> TargetsState:
    """The state for a new task: no target is skipped."""
    return replace(state, skipped=frozenset())


def resumed(
    state: TargetsState, rules: Rules, ends_s: Mapping[int, float], serving: int | None
) -> TargetsState:
    """The state that an earlier run left.

    `ends_s`: ends of cooldowns by target, on the run's clock; `serving`: the target that answered last.
    """
    releases_s = {route: end_s for target, end_s in ends_s.items() for route in rules.keys_of(target)}
    route = state.route if serving is None else Route(serving)
    return replace(state, releases_s=releases_s, route=route, is_away=route.target != rules.first)


def cooling_ends_s(state: TargetsState, rules: Rules) -> dict[int, float]:
    """The end of the cooldown, on the run's clock, of each target whose keys all cool down."""
    found = {}
    for target in range(len(rules.key_counts)):
        routes = rules.keys_of(target)
        ends_s = [state.releases_s[route] for route in routes if route in state.releases_s]
        if len(ends_s) == len(routes):
            found[target] = min(ends_s)
    return found


def usable_routes(state: TargetsState, rules: Rules) -> list[Route]:
    """The routes that this chain may still ask, the preferred target's first."""
    out = state.skipped | state.chain.barred
    return [route for target in rules.order for route in rules.keys_of(target) if route not in out]


def _with_damage(
    state: TargetsState, failure: Failure, rules: Rules, policy: RetryPolicy, now_s: float
) -> TargetsState:
    """The state after the failure of `state.route`.

    The failed key, or all keys of its target, cool down, are barred for the chain, or are skipped for the run.
    """
    hit = [state.route] if failure.is_of_key else rules.keys_of(state.route.target)
    chain = state.chain
    if not failure.is_transient and failure.kind in _FOR_THE_RUN:
        return replace(state, skipped=state.skipped.union(hit))
    if not failure.is_transient:
        state = replace(state, chain=replace(chain, barred=chain.barred.union(hit)))
    if rules.strategy != "fallback":
        return state
    end_s = now_s + cooldown_s(failure.requested_s, policy, chain.retries + 1)
    # Another key's cooldown stays; that of the current key is renewed.
    cooled = {route: max(end_s, state.releases_s.get(route, end_s)) for route in hit}
    return replace(state, releases_s={**state.releases_s, **cooled, state.route: end_s})


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
    """The next route of this round; None: the round is over."""
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
    """The next route for `round_robin`. After a refused key it is the target's next key, after any other failure the
    next target.
    """
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
