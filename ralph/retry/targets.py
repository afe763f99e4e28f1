"""Chooses the target and the key of the next request, and decides whether to wait before it. Keeps the targets of a run and
the request head for each (`Roster`). No I/O happens here.

A target is a model at an endpoint. A request head is all of a request except its messages.

A route is a target with one of its keys. A chain is one call of `send_with_retry`. It consists of rounds. In a round,
ralph asks each usable route once, and does not wait between the requests. The policy's waits separate the rounds.
With a single route, this is the plain retry policy.

A failure has one of three effects on its route. After a transient failure, the route cools down: it is not asked for
a time (only with the strategy `fallback`). After a failure that another attempt cannot solve, the route is barred: it
is not asked again in this chain. After a failure of the account or the model, the route is skipped: it is not asked
again in this task. With `fallback`, a barred route cools down as well.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.conversation.records import Record, target_record
from ralph.conversation.session import Reading
from ralph.retry.backoff import GiveUp, RetryPolicy, Wait, cooldown_s, round_wait
from ralph.values.errors import ErrorClass, FailureKind, failure_kind, is_bad_key, is_shortage
from ralph.values.limits import SHORTEST_ANSWER
from ralph.values.servers import ALIASES, NamedModel, named_model
from ralph.values.usage import ContextMeter, SizeCount, may_be_too_large

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.conversation.messages import Conversation, RequestBody, RequestShape
    from ralph.conversation.target import ModelDescription, Target
    from ralph.values.answer import ToolDefinition
    from ralph.values.errors import AgentError

_OF_THE_REQUEST = frozenset({FailureKind.INVALID_REQUEST, FailureKind.CONTEXT_OVERFLOW})
"""Kinds of failure that the request itself causes. Ralph assumes that every other target would refuse the request
too."""
_OF_THE_KEY = frozenset({FailureKind.RATE_LIMIT, FailureKind.USAGE_LIMIT})
"""Kinds of failure that may concern only one key. The target may still accept another key."""
_FOR_THE_RUN = frozenset(
    {FailureKind.AUTH, FailureKind.BILLING, FailureKind.USAGE_LIMIT, FailureKind.NOT_FOUND}
)
"""Kinds of failure that concern the account or the model, and do not end while a run waits."""


class Route(Struct, frozen=True):
    target: int
    """The index of the target in the run's targets, counted from 0."""
    key: int = 0
    """The index of the key in the target's keys, counted from 0."""


class Failure(Struct, frozen=True):
    kind: FailureKind
    is_transient: bool
    requested_s: float | None = None
    """The wait that the server requests, in seconds, or None if the server requests no wait."""
    is_of_key: bool = False
    """True if a request to the same target with another key may succeed."""
    is_of_machine: bool = False
    """True if this machine caused the failure. A request to another target would then fail too."""


def failure_of(error: AgentError, error_class: ErrorClass) -> Failure:
    kind = failure_kind(error)
    return Failure(
        kind,
        error_class is ErrorClass.TRANSIENT,
        error.retry_after,
        kind in _OF_THE_KEY or is_bad_key(error),
        is_shortage(error),
    )


class Rules(Struct, frozen=True):
    """They change only if a driver requests another model during the run."""

    key_counts: tuple[int, ...]
    """The number of keys of each target. It is 1 for a target that needs no key."""
    strategy: str = "fallback"
    """`fallback` or `round_robin`."""
    returns: bool = True
    """True if ralph returns to the preferred target when the cooldown of the preferred target has ended. False if
    ralph stays with the current target. It matters only for `fallback`."""
    first: int = 0
    """The index of the preferred target. Ralph asks it first. The other targets follow in the order of the settings."""

    listed: int | None = None
    """The number of configured targets, or None if all targets are configured. Other targets were added during the
    run. If one of them is preferred, it replaces target 0."""

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
    """The state of one chain. If it asks again after a damaged answer, the retries and waits of the chain before it
    count on.
    """

    retries: int = 0
    """The number of rounds before the current round. A wait followed each of them."""
    slept_s: float = 0.0
    """The sum of the waits in this chain, in seconds."""
    barred: frozenset[Route] = frozenset()
    """The routes that cannot succeed in this chain."""
    tried: frozenset[Route] = frozenset()
    """The routes that were asked in the current round."""
    failures: tuple[Failure, ...] = ()
    """The failures in the current round."""
    is_forced: bool = False
    """True if every route was cooling down when the round began. Ralph asks the routes nevertheless. It begins with
    the route whose cooldown ends first."""


class TargetsState(Struct, frozen=True):
    route: Route = Route(0)
    """The route that is asked next. When an answer has arrived, it is the route that gave the answer."""
    skipped: frozenset[Route] = frozenset()
    """The routes that are not asked again in this task."""
    releases_s: Mapping[Route, float] = field(default_factory=dict)
    """The end of each route's cooldown, in seconds of the run's clock."""
    chain: ChainState = ChainState()
    is_away: bool = False
    """True if another target has replaced the preferred target, and the preferred target has not answered since."""
    announced: int | None = None
    """The index of the fallback target whose first answer was reported in an event. None if there is no such target."""


class MoveOn(Struct, frozen=True):
    """The decision to ask another target or key at once. Such a request is not a retry."""


Decision = Wait | MoveOn | GiveUp
"""The decision after a failure. `Wait` means that ralph waits and then asks the next route. Such a request is a
retry."""


CANNOT_HELP = GiveUp("asking again cannot help")
"""The decision if no route is left that could succeed in this chain."""
REFUSED_BY_ALL = GiveUp("no other target would accept the request either")
"""The decision after a failure that the request itself causes. Every other target would refuse the request too."""


def begin(state: TargetsState, rules: Rules, now_s: float, *, continues: bool = False) -> TargetsState:
    """The state at the beginning of a chain. If `continues` is True, it has only the retries that the one before it has
    left.
    """
    chain = ChainState(state.chain.retries, state.chain.slept_s) if continues else ChainState()
    state = replace(state, chain=chain)
    if rules.strategy == "round_robin":
        state = replace(state, route=Route(rules.first))
        return replace(state, route=_rotated(state, rules) or state.route)
    return _begin_round(state, rules, now_s)


def after_failure(
    state: TargetsState, failure: Failure, *, rules: Rules, policy: RetryPolicy, now_s: float
) -> tuple[Decision, TargetsState]:
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
    """The state after an answer, and the change of target to report: a fallback target's first answer ("succeeded"),
    or the preferred one answering again ("recovered").
    """
    serving = state.route.target
    releases_s = {route: end_s for route, end_s in state.releases_s.items() if route != state.route}
    state = replace(state, releases_s=releases_s)
    if serving == rules.first:
        change: Literal["recovered"] | None = "recovered" if state.is_away else None
        return replace(state, is_away=False, announced=None), change
    if state.announced == serving:
        return state, None
    return replace(state, is_away=True, announced=serving), "succeeded"


def preferring(state: TargetsState, rules: Rules, first: int) -> tuple[TargetsState, Rules]:
    """The state and the rules after `first` became the preferred target. If it was skipped, it can be asked again."""
    rules = replace(rules, first=first)
    skipped = state.skipped.difference(rules.keys_of(first))
    return replace(state, route=Route(first), skipped=skipped, is_away=False, announced=None), rules


def resumed(
    state: TargetsState, rules: Rules, ends_s: Mapping[int, float], serving: int | None
) -> TargetsState:
    """The state with the cooldowns (ends on the run's clock, by target) and the current target of an earlier run."""
    releases_s = {route: end_s for target, end_s in ends_s.items() for route in rules.keys_of(target)}
    route = state.route if serving is None else Route(serving)
    return replace(state, releases_s=releases_s, route=route, is_away=route.target != rules.first)


def usable_routes(state: TargetsState, rules: Rules) -> list[Route]:
    """The routes that this chain may still ask."""
    out = state.skipped | state.chain.barred
    return [route for target in rules.order for route in rules.keys_of(target) if route not in out]


def _with_damage(
    state: TargetsState, failure: Failure, rules: Rules, policy: RetryPolicy, now_s: float
) -> TargetsState:
    """The state after a failure, which affects only the key, or all keys of the target: they are not asked for some
    time, in this chain, or in this task.
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
    # The cooldown of the current key is renewed. A longer cooldown of another key remains.
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
    """The route to ask next. None if all that may be asked now were asked in this round."""
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
    """The next route for `round_robin`, or None if the round is over."""
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


# --- The targets of a run


class Roster:
    """The targets of a run, and the state from which the next target is chosen."""

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        system: str = "",
        tools: tuple[ToolDefinition, ...] = (),
        strategy: str = "fallback",
        returns: bool = True,
        recorded: Mapping[str, RequestShape] | None = None,
        can_grow: bool = False,
        aliases: Mapping[str, NamedModel] = ALIASES,
    ) -> None:
        """`recorded` holds the heads of the session's earlier requests, by target name: new requests repeat these
        byte for byte, unless settings have changed. If `can_grow` is True, `prefer` also accepts a model that is not
        a target, and adds it at the first target's endpoint.
        """
        self._system = system
        self._tools = tools
        self._recorded = recorded or {}
        self.can_grow = can_grow
        self.aliases = aliases
        """Maps short names, such as "opus", to the models that they stand for."""
        self.targets = tuple(targets)
        self._shapes = tuple(self.shape_of(target) for target in targets)
        self._readings = tuple(Reading(shape) for shape in self._shapes)
        key_counts = tuple(target.key_count for target in targets)
        self.rules = Rules(key_counts, strategy, returns, listed=len(targets))
        self.state = TargetsState()
        self._told: dict[str, tuple[SizeCount | None, SizeCount]] = {}
        """The sizes of requests that servers refused as too large, by model. The first value is the session's last
        token count at that time. The second value is the size of the request as the server stated it. The journal
        does not contain these sizes."""

    @property
    def target(self) -> Target:
        return self.targets[self.state.route.target]

    @property
    def shape(self) -> RequestShape:
        return self._shapes[self.state.route.target]

    @property
    def first(self) -> Target:
        """The preferred target."""
        return self.targets[self.rules.first]

    @property
    def first_shape(self) -> RequestShape:
        return self._shapes[self.rules.first]

    @property
    def changed(self) -> tuple[str, ...]:
        """The targets whose request head differs from the recorded one because settings have changed."""
        return tuple(
            target.name
            for target, shape in zip(self.targets, self._shapes, strict=True)
            if (old := self._recorded.get(target.name)) is not None and old.head() != shape.head()
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.targets[index].name for index in self.rules.order)

    def body_for(self, conversation: Conversation, max_tokens: int, *, is_whole: bool = False) -> RequestBody:
        return self.view(conversation).request_body(max_tokens, is_whole=is_whole)

    def view(self, conversation: Conversation) -> Conversation:
        """The part of the conversation that the current target is sent, with the target's own request head."""
        return self._readings[self.state.route.target].of(conversation)

    def at_most(self, conversation: Conversation, meter: ContextMeter) -> int:
        """An upper bound on the tokens of the next request. `meter` holds the session's token counts."""
        return self._known(meter).at_most(self.target.model, self.view(conversation).size)

    def estimate(self, conversation: Conversation, meter: ContextMeter) -> int:
        """The tokens of the next request, more likely too high than too low."""
        return self._known(meter).estimate(self.target.model, self.view(conversation).size)

    def estimate_afresh(self, conversation: Conversation, meter: ContextMeter) -> int:
        """The tokens of the first request of a new context. `meter` holds the counts of the old one."""
        return self._known(meter).afresh().estimate(self.target.model, self.view(conversation).size)

    def may_be_too_large(self, conversation: Conversation, meter: ContextMeter) -> bool:
        """Whether the size of the next request may be the reason if it is refused in words that ralph does not know."""
        view = self.view(conversation)
        estimate = self.estimate(conversation, meter)
        return may_be_too_large(view.size, view.answered_size, estimate, self.window)

    def longest_answer(self, prompt_tokens: int, most_tokens: int | None = None) -> int:
        """The maximum number of tokens of an answer: `most_tokens`, the target's own limit, or the space that the
        prompt leaves in the window, but at least `SHORTEST_ANSWER`.
        """
        facts, window = self.target.facts, self.window
        most = (most_tokens, facts.max_output if facts is not None else None)
        longest = min([self.shape.longest_answer, *(tokens for tokens in most if tokens is not None)])
        # Some servers refuse a prompt if the requested answer would not fit, even if the answer would turn out
        # short.
        return longest if window is None else min(longest, max(SHORTEST_ANSWER, window - prompt_tokens))

    @property
    def window(self) -> int | None:
        facts = self.target.facts
        return facts.context_window if facts is not None else None

    def _known(self, meter: ContextMeter) -> ContextMeter:
        """The counts in `meter`, corrected by the sizes that servers stated when they refused requests."""
        for model, (then, told) in self._told.items():
            if meter.counts.get(model) is then:
                meter = meter.counted(model, told.counted, told.size)
        return meter

    def begin_afresh(self) -> None:
        """Discards the sizes that servers stated for the old context."""
        self._told.clear()

    def learn_window(
        self, window: int, prompt_tokens: int, conversation: Conversation, meter: ContextMeter
    ) -> bool:
        """Stores what the current target stated when it refused a request as too large. Returns False if the window
        that ralph assumes is not larger.
        """
        if self.window is not None and self.window <= window:
            return False
        self._know(replace(self.target, context_window=window))
        model = self.target.model
        self._told[model] = meter.counts.get(model), SizeCount(prompt_tokens, self.view(conversation).size)
        return True

    def describe(self, description: ModelDescription | None) -> None:
        self._know(replace(self.target, description=description, is_described=True))

    def find(self, name: str | None) -> Target:
        """The target with this name, or the first configured one. If `can_grow` is True, `name` may also be a
        model or an alias, and the target a new one that is not yet in `targets`. Raises ValueError.
        """
        if name is None:
            return self.targets[0]
        for target in self.targets:
            if name == target.name:
                return target
        if not self.can_grow:
            raise ValueError(f"there is no target {name!r}; the targets are {', '.join(self.names)}")
        try:
            named = named_model(name, self.aliases)
        except ValueError as error:
            raise ValueError(f"the model {error}") from error
        for target in self.targets:
            if named.id == target.model:
                return target
        return replace(
            self.targets[0],
            name=name,
            model=named.id,
            context_window=named.context_window,
            description=None,
            is_described=False,
        )

    def prefer(self, name: str | None) -> Target:
        target = self.find(name)
        if target not in self.targets:
            shape = self.shape_of(target)
            self.targets = (*self.targets, target)
            self._shapes = (*self._shapes, shape)
            self._readings = (*self._readings, Reading(shape))
            self.rules = replace(self.rules, key_counts=(*self.rules.key_counts, target.key_count))
        self.state, self.rules = preferring(self.state, self.rules, self.targets.index(target))
        return target

    def shape_of(self, target: Target) -> RequestShape:
        """The settings for requests to a target, with the head that the session has recorded for its model."""
        # If targets can be added, a user may name one model in several ways. So the heads of all names are compared
        # by the id of the model.
        for name in (target.name, *(self._recorded if self.can_grow else ())):
            recorded = self._recorded.get(name)
            if recorded is not None and recorded.model == target.model:
                return recorded.with_requested(
                    endpoint=target.base_url,
                    max_tokens=target.max_tokens,
                    effort=target.effort,
                    thinking=target.thinking,
                )
        fresh = target.shape(self._system, self._tools)
        return replace(fresh, recorded_head=fresh.head())

    def cooling_s(self) -> dict[str, float]:
        """The ends of cooldowns on the run's clock by target: that of the first key to be free. Targets with a free key are
        left out.
        """
        found, releases_s = {}, self.state.releases_s
        for index, target in enumerate(self.targets):
            routes = self.rules.keys_of(index)
            ends_s = [releases_s[route] for route in routes if route in releases_s]
            if len(ends_s) == len(routes):
                found[target.name] = min(ends_s)
        return found

    def cool(self, ends_s: Mapping[str, float], serving: str | None = None) -> None:
        """Restores the cooldowns (ends on this run's clock) and the current target of an earlier run."""
        names = [target.name for target in self.targets]
        by_target = {index: ends_s[name] for index, name in enumerate(names) if name in ends_s}
        last = names.index(serving) if serving in names else None
        self.state = resumed(self.state, self.rules, by_target, last)

    def forgive(self) -> None:
        self.state = replace(self.state, skipped=frozenset())

    def _know(self, target: Target) -> None:
        index = self.state.route.target
        self.targets = (*self.targets[:index], target, *self.targets[index + 1 :])


class _Announcement(Struct, frozen=True):
    target: str
    first: str
    cooling: tuple[tuple[str, float], ...] = ()


class TargetLog:
    """Makes the journal's records about the current target, the preferred one and the ends of cooldowns, whenever
    something has changed since the last record.
    """

    def __init__(self, roster: Roster) -> None:
        self._told = _Announcement(roster.first.name, roster.first.name)
        self._named = {roster.first.name}
        """The names of the targets whose request head this run has already recorded."""

    @property
    def target(self) -> str:
        return self._told.target

    def records(self, roster: Roster, now_s: float, now: datetime) -> list[Record]:
        """The record of the current state, or an empty list if nothing has changed, or if there is one target with
        one key.
        """
        target = roster.target
        ends_s = {name: end_s for name, end_s in roster.cooling_s().items() if end_s > now_s}
        told = _Announcement(target.name, roster.first.name, tuple(sorted(ends_s.items())))
        if told == self._told or (not roster.rules.is_rotation and target is roster.first):
            return []
        shape = None if target.name in self._named else roster.shape
        self._told = told
        self._named.add(target.name)
        cooling = {
            name: (now + timedelta(seconds=end_s - now_s)).isoformat() for name, end_s in ends_s.items()
        }
        return [target_record(target.name, shape, cooling, roster.first.name)]
