"""The targets that a run can ask, the requests of each, and the state of the choice among them.

It chooses no target itself: that is `retry/targets.py`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ralph.conversation.context_size import SizeCount
from ralph.conversation.reading import Reading
from ralph.conversation.records import target_record
from ralph.retry.targets import Rules, TargetsState, cooling_ends_s, forgiven, preferring, resumed
from ralph.values.limits import SHORTEST_ANSWER
from ralph.values.models import ALIASES, named_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from ralph.conversation.context_size import ContextMeter
    from ralph.conversation.messages import Conversation, RequestBody, RequestShape
    from ralph.conversation.model_description import ModelDescription
    from ralph.conversation.records import Record
    from ralph.conversation.target import Target
    from ralph.values.models import NamedModel
    from ralph.values.tool_calls import ToolDefinition


class Roster:
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
        """`recorded`: the heads of the session's earlier requests, by target name; new requests repeat them byte for
        byte.

        `can_grow`: `prefer` accepts a model that is no target yet, and adds a target for it at the endpoint of target
        0.
        """
        self._system = system
        self._tools = tools
        self._recorded = recorded or {}
        self._can_grow = can_grow
        self.aliases = aliases
        """Short names of models at the first target's endpoint."""
        self.targets = tuple(targets)
        self._shapes = tuple(self.shape_of(target) for target in targets)
        self._readings = tuple(Reading(shape) for shape in self._shapes)
        key_counts = tuple(target.key_count for target in targets)
        self.rules = Rules(key_counts, strategy, returns, listed=len(targets))
        self.state = TargetsState()
        self._told: dict[str, tuple[SizeCount | None, SizeCount]] = {}
        """Request sizes that servers named when they refused a request, by model. Each comes with the session's count
        at that moment.

        The journal does not record these sizes.
        """

    @property
    def target(self) -> Target:
        """The target of the next request; after an answer, the target that gave it."""
        return self.targets[self.state.route.target]

    @property
    def shape(self) -> RequestShape:
        return self._shapes[self.state.route.target]

    @property
    def first(self) -> Target:
        return self.targets[self.rules.first]

    @property
    def first_shape(self) -> RequestShape:
        return self._shapes[self.rules.first]

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of targets whose request head differs from the recorded one, because the settings have changed."""
        return tuple(
            target.name
            for target, shape in zip(self.targets, self._shapes, strict=True)
            if (old := self._recorded.get(target.name)) is not None and old.head() != shape.head()
        )

    @property
    def takes_any_model(self) -> bool:
        """Whether `prefer` accepts a model that is no target yet."""
        return self._can_grow

    @property
    def names(self) -> tuple[str, ...]:
        """The targets' names in the order of preference."""
        return tuple(self.targets[index].name for index in self.rules.order)

    def body_for(self, conversation: Conversation, max_tokens: int) -> RequestBody:
        """The body of the next request to `target`."""
        return self._view(conversation).request_body(max_tokens)

    def _view(self, conversation: Conversation) -> Conversation:
        return self._readings[self.state.route.target].of(conversation)

    def at_most(self, conversation: Conversation, meter: ContextMeter) -> int:
        """An upper bound for the tokens of the next request to `target`.

        `meter`: the session's counts. Counts by other models are not used.
        """
        return self._known(meter).at_most(self.target.model, self._view(conversation).size)

    def estimate(self, conversation: Conversation, meter: ContextMeter) -> int:
        """The tokens of the next request to `target`, estimated from above."""
        return self._known(meter).estimate(self.target.model, self._view(conversation).size)

    def estimate_afresh(self, conversation: Conversation, meter: ContextMeter) -> int:
        """The tokens of the next request to `target` in a fresh context, estimated from above."""
        return self._known(meter).afresh().estimate(self.target.model, self._view(conversation).size)

    def longest_answer(self, prompt_tokens: int, most_tokens: int | None = None) -> int:
        """The most tokens that the answer of `target` may have.

        This is the smallest of `most_tokens`, the target's own limits, and the room that the prompt leaves in the
        window.
        """
        facts, window = self.target.facts, self.window
        most = (most_tokens, facts.max_output if facts is not None else None)
        longest = min([self.shape.longest_answer, *(tokens for tokens in most if tokens is not None)])
        # Some servers refuse a prompt whose answer would not fit, however short it becomes.
        return longest if window is None else min(longest, max(SHORTEST_ANSWER, window - prompt_tokens))

    @property
    def window(self) -> int | None:
        """The size of the context window of `target` in tokens; None: unknown."""
        facts = self.target.facts
        return facts.context_window if facts is not None else None

    def _known(self, meter: ContextMeter) -> ContextMeter:
        """The counts in `meter`, together with the sizes that servers have named since."""
        for model, (then, told) in self._told.items():
            if meter.counts.get(model) is then:
                meter = meter.counted(model, told.counted, told.size)
        return meter

    def begin_afresh(self) -> None:
        """Forgets what servers reported about the old context, because a new one replaces it."""
        self._told.clear()

    def learn_window(
        self, window: int, prompt_tokens: int, conversation: Conversation, meter: ContextMeter
    ) -> bool:
        """Stores the window and request size that `target` named when it refused a request.

        Returns False, and stores nothing, if a window of that size or a smaller one is known.
        """
        if self.window is not None and self.window <= window:
            return False
        self._know(replace(self.target, context_window=window))
        model = self.target.model
        self._told[model] = meter.counts.get(model), SizeCount(prompt_tokens, self._view(conversation).size)
        return True

    def describe(self, description: ModelDescription | None) -> None:
        """Stores the server's description of `target`, which is requested once."""
        self._know(replace(self.target, description=description, is_described=True))

    def find(self, name: str | None) -> Target:
        """The target of that name; `name` None: the first configured target.

        If the roster can grow, the result may be a target for a model that is not in `targets` yet. Raises ValueError
        for an unavailable target.
        """
        if name is None:
            return self.targets[0]
        for target in self.targets:
            if name == target.name:
                return target
        if not self._can_grow:
            raise ValueError(f"there is no target {name!r}; the targets are {', '.join(self.names)}")
        try:
            model, window = named_model(name, self.aliases)
        except ValueError as error:
            raise ValueError(f"the model {error}") from error
        for target in self.targets:
            if model == target.model:
                return target
        return replace(
            self.targets[0],
            name=name,
            model=model,
            context_window=window,
            description=None,
            is_described=False,
        )

    def prefer(self, name: str | None) -> Target:
        """Puts the target of that name first from now on. Raises ValueError like `find`."""
        target = self.find(name)
        if target not in self.targets:
            self._add(target)
        self.state, self.rules = preferring(self.state, self.rules, self.targets.index(target))
        return target

    def shape_of(self, target: Target) -> RequestShape:
        # Models behind one endpoint are compared by their ids, however they were spelled.
        for name in (target.name, *(self._recorded if self._can_grow else ())):
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
        """The end of the cooldown, on the run's clock, of each target whose keys all cool down."""
        ends_s = cooling_ends_s(self.state, self.rules)
        return {self.targets[index].name: end_s for index, end_s in ends_s.items()}

    def cool(self, ends_s: Mapping[str, float], serving: str | None = None) -> None:
        """Takes over the state that an earlier run left.

        `ends_s`: the ends of cooldowns on this run's clock, by target name. `serving`: the target that answered last.
        """
        names = [target.name for target in self.targets]
        by_target = {index: ends_s[name] for index, name in enumerate(names) if name in ends_s}
        last = names.index(serving) if serving in names else None
        self.state = resumed(self.state, self.rules, by_target, last)

    def forgive(self) -> None:
        """Allows the skipped targets again, because a new task begins."""
        self.state = forgiven(self.state)

    def _add(self, target: Target) -> None:
        shape = self.shape_of(target)
        self.targets = (*self.targets, target)
        self._shapes = (*self._shapes, shape)
        self._readings = (*self._readings, Reading(shape))
        self.rules = replace(self.rules, key_counts=(*self.rules.key_counts, target.key_count))

    def _know(self, target: Target) -> None:
        """Replaces the current target by a more complete description of it."""
        index = self.state.route.target
        self.targets = (*self.targets[:index], target, *self.targets[index + 1 :])


class _Told(NamedTuple):
    target: str
    first: str
    cooling: tuple[tuple[str, float], ...] = ()


class TargetLog:
    """Records about targets for the journal: the current target, the first one, the ends of cooldowns.

    It remembers the last record and makes a new one only after a change.
    """

    def __init__(self, roster: Roster) -> None:
        """Starts from the state of a `run` record: the first target is current, and no target cools down."""
        self._told = _Told(roster.first.name, roster.first.name)
        self._named = {roster.first.name}
        """Targets whose request head is already in this run's records."""

    @property
    def target(self) -> str:
        """The current target according to the records."""
        return self._told.target

    def records(self, roster: Roster, now_s: float, now: datetime) -> list[Record]:
        """The record of a changed state, as a list; empty: nothing has changed since the last record.

        `now_s` and `now` are the same moment, on the run's clock and on the wall clock.
        """
        target = roster.target
        ends_s = {name: end_s for name, end_s in roster.cooling_s().items() if end_s > now_s}
        told = _Told(target.name, roster.first.name, tuple(sorted(ends_s.items())))
        if told == self._told or (not roster.rules.is_rotation and target is roster.first):
            return []
        shape = None if target.name in self._named else roster.shape
        self._told = told
        self._named.add(target.name)
        cooling = {
            name: (now + timedelta(seconds=end_s - now_s)).isoformat() for name, end_s in ends_s.items()
        }
        return [target_record(target.name, shape, cooling, roster.first.name)]
