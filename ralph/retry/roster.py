"""The targets that a run can ask, and the request head for each target. Also stores which target is asked next.

A target is a model at an endpoint. A request head is all of a request except its messages. `retry/targets.py` chooses
the target.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.context_size import ContextMeter, SizeCount, may_be_too_large
from ralph.conversation.reading import Reading
from ralph.conversation.records import Record, target_record
from ralph.retry.targets import Rules, TargetsState, cooling_ends_s, preferring, resumed
from ralph.values.limits import SHORTEST_ANSWER
from ralph.values.servers.models import ALIASES, NamedModel, named_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.conversation.messages import Conversation, RequestBody, RequestShape
    from ralph.conversation.target import ModelDescription, Target
    from ralph.values.answer import ToolDefinition


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
        """The ends of cooldowns on the run's clock, by target. Targets with a free key are left out."""
        ends_s = cooling_ends_s(self.state, self.rules)
        return {self.targets[index].name: end_s for index, end_s in ends_s.items()}

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
