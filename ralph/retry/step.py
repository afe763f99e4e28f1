"""Decides what ralph does after an answer or an error, and makes the next request: the context window and the budget limit the
length of its answer. No I/O happens here: `CallSite` has the ports.

The functions are pure. They take the state of the retries, and return a new state and events; `step` also returns a
decision. `retry/targets.py` chooses the next target. `retry/loop.py` sends and waits; its `Chain` emits the events.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, Self

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.conversation.messages import Conversation, RequestBody, make_message
from ralph.retry import backoff
from ralph.retry.backoff import LASTED_TOO_LONG, GiveUp, RetryPolicy, ShortTime, Wait, met_again
from ralph.retry.targets import CANNOT_HELP, REFUSED_BY_ALL, after_answer, after_failure, begin, failure_of
from ralph.values.errors import (
    AgentError,
    Api,
    ErrorClass,
    HttpError,
    StreamTransient,
    failure_kind,
    is_bad_key,
    is_damaged,
    is_said_again,
    is_shortage,
    outcome_of,
)
from ralph.values.events import (
    AttemptEnded,
    Event,
    ModelFallback,
    ModelFallbackRecovered,
    ModelFallbackSucceeded,
    Notice,
    ResponseRestarted,
    RetryExhausted,
    RetryRecovered,
    RetryScheduled,
)
from ralph.values.limits import SHORTEST_ANSWER, Budget
from ralph.values.outcome import Outcome
from ralph.values.ports import BudgetSpent, Clock, Events, Interrupted, RetryAborted, TimeIsUp, Waiter
from ralph.values.screen_text import dollar_limit, dollars, time_limit
from ralph.values.usage import TokenUsage, counted_or_estimated, is_over, plain, tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from ralph.conversation.session import Session
    from ralph.conversation.target import ModelDescription, Target
    from ralph.retry.backoff import RetryPolicy
    from ralph.retry.targets import Decision, Failure, Roster, Route, Rules, TargetsState
    from ralph.values.answer import Answer
    from ralph.values.controls import RunControls


SAID_TWICE = GiveUp(
    "the server says the same again, and the request may be too large for it", is_about_size=True
)
COOLDOWN = "cooldown"
"""The reason for a change of target if no error in this turn caused the change."""


class FailedAttempt(Struct, frozen=True):
    route: Route
    error: AgentError
    failure: Failure


class RetryState(Struct, frozen=True):
    """The state of one chain, which is one call of `send_with_retry`."""

    choice: TargetsState
    """The state from which the next target is chosen. `choice.route` (a target with one of its keys) gets the next
    request. When an answer has arrived, `choice.route` is the route that gave the answer."""
    rules: Rules
    targets: tuple[Target, ...]
    turn: int = 1
    is_whole: bool = False
    """True if the answers of this chain are asked for as one JSON object and not as a stream."""
    recent: tuple[bool, ...] = ()
    """For each of the last answers of the run, whether it arrived damaged. The newest is the last."""
    attempt: int = 0
    """The number of the last request within the turn, counted from 1. 0 before the first request."""
    retries: int = 0
    """The number of completed waits in this chain. A retry follows each wait."""
    waited_s: float = 0.0
    answer_tokens: Mapping[str, int] = field(default_factory=dict)
    """The `max_tokens` of requests to each target, by target name. The first request to a target fixes the number,
    because a retry sends identical bytes."""
    round_failures: tuple[FailedAttempt, ...] = ()
    """The failures of the current round, in order."""
    renewed: frozenset[Route] = frozenset()
    """The routes whose key a program has printed again in this chain, because the server had refused it."""
    has_lost_idle: bool = False
    """True if an idle connection was lost in this chain, and its target was asked again at once."""
    damaged: FailedAttempt | None = None
    """The last attempt whose answer arrived in an unreadable form, or None. If no target can succeed any more, the
    chain ends with the error of this attempt. `agent/task.py` asks again after such an error."""
    short_time: ShortTime | None = None
    """For how long every error was the same shortage of this machine. None if the last error was another one."""
    last_error: AgentError | None = None
    """The last error, or None if there was none. If ralph gives up, it is the error that ends the chain."""

    @property
    def target(self) -> Target:
        return self.targets[self.choice.route.target]


class Situation(Struct, frozen=True):
    """The facts on which a retry decision depends."""

    now_s: float
    """The time on the run's clock, in seconds."""
    policy: RetryPolicy
    latency_s: float = 0.0
    """The duration of the request, in seconds."""
    time_left_s: float = math.inf
    """The seconds until the run's time limit."""
    may_be_too_large: bool = False
    """Whether the server may refuse the request because of its size, and the caller can make it smaller."""


def begin_chain(
    choice: TargetsState, rules: Rules, targets: tuple[Target, ...], *, requests: TurnRequests, now_s: float
) -> tuple[RetryState, tuple[Event, ...]]:
    """The first state of a `send_with_retry` call, and its events: a ModelFallback if the first target to ask is not
    the preferred one, and has not answered since it replaced it.
    """
    choice = begin(choice, rules, now_s, continues=requests.continues)
    state = RetryState(
        choice, rules, targets, requests.turn, requests.is_whole, requests.recent, requests.attempts
    )
    if choice.route.target in {rules.first, choice.announced}:
        return state, ()
    state = replace(state, choice=replace(choice, is_away=True))
    name = state.target.name
    return state, (ModelFallback(targets[rules.first].name, name, COOLDOWN, state.turn, attempt=0),)


def step(
    state: RetryState, error: AgentError, error_class: ErrorClass, situation: Situation
) -> tuple[RetryState, Decision, tuple[Event, ...]]:
    """Decides what to do after an error: wait and ask again, ask another target or key at once, or give up. Returns
    the next state, the decision, and the events in order.
    """
    short_time = met_again(state.short_time, str(error), situation.now_s) if is_shortage(error) else None
    if short_time is not None and short_time.left_s(situation.now_s) <= 0 and isinstance(error, Api):
        error = _lasting(error)
    failed = FailedAttempt(state.choice.route, error, failure_of(error, error_class))
    is_said_twice = situation.may_be_too_large and is_said_again(state.last_error, error)
    state = replace(
        state,
        short_time=short_time,
        last_error=error,
        round_failures=(*state.round_failures, failed),
        damaged=failed if is_damaged(error) else state.damaged,
        recent=(*state.recent, True) if is_damaged(error) else state.recent,
    )
    noted = None if is_said_twice else _retried_at_once(state, error, situation)
    decision: Decision = Wait(0.0)
    if is_said_twice:
        decision, choice = SAID_TWICE, state.choice
    elif noted is None:
        decision, choice = _decide(state, failed.failure, situation)
    else:
        state, chain = noted, noted.choice.chain
        choice = replace(state.choice, chain=replace(chain, retries=chain.retries + 1))
    events: list[Event] = [attempt_ended(state, situation.latency_s, error.tokens, error, decision)]
    if isinstance(decision, Wait):
        events.append(_scheduled(state, decision, situation.policy.max_retries))
    events += _changes(state, choice, error)
    if isinstance(error, StreamTransient) and not isinstance(decision, GiveUp):
        events.append(ResponseRestarted())
    if isinstance(decision, GiveUp) and decision.is_early:
        events.append(Notice(f"giving up: {decision.reason}"))
    return _next_state(state, decision, choice), decision, tuple(events)


def _retried_at_once(state: RetryState, error: AgentError, situation: Situation) -> RetryState | None:
    """The state after a failure for which the same target is asked again at once, counted and once in a chain: an
    idle connection was lost, or the server refused a key that a program prints. None after any other failure.
    """
    route, chain = state.choice.route, state.choice.chain
    keys = state.target.credentials
    if not isinstance(situation.policy.next_wait(chain.retries + 1, 0.0, chain.slept_s), Wait):
        return None
    if error.was_idle and not state.has_lost_idle:
        return replace(state, has_lost_idle=True)
    if is_bad_key(error) and route not in state.renewed and keys and keys[route.key].program is not None:
        return replace(state, renewed=state.renewed | {route})
    return None


def _decide(state: RetryState, failure: Failure, situation: Situation) -> tuple[Decision, TargetsState]:
    decision, choice = after_failure(
        state.choice, failure, rules=state.rules, policy=situation.policy, now_s=situation.now_s
    )
    if isinstance(decision, Wait) and state.short_time is not None:
        left_s = state.short_time.left_s(situation.now_s)
        if left_s <= 0:
            return GiveUp(LASTED_TOO_LONG, is_early=True), choice
        decision = replace(decision, seconds=min(decision.seconds, left_s))
    if isinstance(decision, Wait) and decision.seconds >= situation.time_left_s:
        reason = f"the time limit (--max-time) leaves no time to wait {time_limit(decision.seconds)}"
        # No other target is asked. The route stays, so that the message names the target that failed last.
        choice = replace(choice, route=state.choice.route)
        return GiveUp(reason, is_early=True, outlasts_run=True), choice
    return decision, choice


def _lasting(error: Api) -> Api:
    lasted = Api(error.cause, error.detail, error.host)
    lasted.has_lasted = True
    return lasted


def _next_state(state: RetryState, decision: Decision, choice: TargetsState) -> RetryState:
    if isinstance(decision, Wait):
        return replace(state, choice=choice, round_failures=())
    if isinstance(decision, GiveUp) and not decision.outlasts_run:
        telling = _telling_of_end(state, decision)
        # The hints for the user refer to the target that the error came from.
        return replace(state, choice=replace(choice, route=telling.route), last_error=telling.error)
    return replace(state, choice=choice)


def waited(state: RetryState, wait: Wait) -> RetryState:
    return replace(state, retries=state.retries + 1, waited_s=plain(state.waited_s + wait.seconds))


def asked(state: RetryState, answer_tokens: int) -> RetryState:
    fixed = {**state.answer_tokens, state.target.name: answer_tokens}
    return replace(state, attempt=state.attempt + 1, answer_tokens=fixed)


def answered(state: RetryState) -> tuple[RetryState, tuple[Event, ...]]:
    events: list[Event] = []
    if state.retries:
        events.append(RetryRecovered(state.retries, state.waited_s, state.turn, state.attempt))
    choice, change = after_answer(state.choice, state.rules)
    if change == "succeeded":
        events.append(ModelFallbackSucceeded(state.target.name, state.turn, state.attempt))
    elif change == "recovered":
        events.append(ModelFallbackRecovered(state.target.name, state.turn, state.attempt))
    return replace(state, choice=choice, recent=(*state.recent, False)), tuple(events)


def exhausted(state: RetryState, end: BaseException) -> RetryExhausted:
    is_stop = isinstance(end, Interrupted) and not isinstance(end, RetryAborted)
    why = f"{end}, after: {end.__cause__}" if is_stop else str(end)
    return RetryExhausted(state.retries, state.waited_s, why, state.turn, state.attempt)


def raised_at_end(state: RetryState, decision: GiveUp) -> AgentError | TimeIsUp:
    if not decision.outlasts_run and state.last_error is not None:
        state.last_error.may_be_about_size = decision.is_about_size
        return state.last_error
    stop = TimeIsUp(decision.reason)
    stop.__cause__ = state.last_error
    return stop


def attempt_ended(
    state: RetryState,
    latency_s: float,
    tokens: TokenUsage,
    error: BaseException | None = None,
    decision: Decision | None = None,
) -> AttemptEnded:
    kind = None if error is None else "interrupted"
    if isinstance(error, AgentError):
        kind = failure_kind(error).value
    return AttemptEnded(
        turn=state.turn,
        attempt=state.attempt,
        target=state.target.name,
        model=state.target.model,
        latency_s=latency_s,
        tokens=tokens,
        facts=state.target.facts,
        status=error.status if isinstance(error, HttpError) else None,
        kind=kind,
        error=None if error is None else str(error),
        wait_s=decision.seconds if isinstance(decision, Wait) else 0.0,
        api=state.target.api,
    )


def _scheduled(state: RetryState, wait: Wait, max_retries: int) -> RetryScheduled:
    """Contains the error of the target that may answer first."""
    telling = _telling(state.round_failures)
    error = telling.error
    return RetryScheduled(
        attempt=state.choice.chain.retries + 1,
        max_retries=max_retries,
        wait_s=wait.seconds,
        status=error.status if isinstance(error, HttpError) else None,
        error_class=type(error).__name__,
        kind=telling.failure.kind.value,
        message=str(error),
        requested_wait_s=wait.seconds if wait.from_server else None,
        turn=state.turn,
        target=state.targets[telling.route.target].name,
    )


def _changes(state: RetryState, choice: TargetsState, error: AgentError) -> list[Event]:
    before, rules = state.choice, state.rules
    old, reason = state.target, failure_kind(error).value
    events: list[Event] = []
    keys = set(rules.keys_of(before.route.target))
    if rules.is_rotation and keys <= choice.skipped and not keys <= before.skipped:
        events.append(Notice(f"{old.name} is not used for the rest of this task ({reason})"))
    if choice.route.target != before.route.target:
        new = state.targets[choice.route.target]
        events.append(ModelFallback(old.name, new.name, reason, state.turn, state.attempt))
    elif choice.route.key != before.route.key:
        now, was = (old.credentials[route.key].source for route in (choice.route, before.route))
        events.append(Notice(f"{old.name}: using the key of {now} instead of {was} ({reason})"))
    return events


def _telling_of_end(state: RetryState, decision: GiveUp) -> FailedAttempt:
    """The failed attempt whose error ends the call: the one at the target that may answer first."""
    if decision in (CANNOT_HELP, REFUSED_BY_ALL) and state.damaged is not None:
        return state.damaged
    failures = state.round_failures
    return _telling(failures[-1:] if decision is REFUSED_BY_ALL else failures)


def _telling(failures: Sequence[FailedAttempt]) -> FailedAttempt:
    """The failed attempt after which another request is most likely to succeed: transient ones first, then those
    after which a later run may succeed; of these the shortest requested wait, and the last of equals.
    """
    passing = [one for one in failures if one.failure.is_transient]
    later = [one for one in failures if outcome_of(one.error) is Outcome.API_UNAVAILABLE]
    hopeful = passing or later or failures[-1:]
    return min(reversed(hopeful), key=lambda one: one.failure.requested_s or 0.0)


# --- Requests

MOST_ASKS = 3
"""The maximum number of times that a turn or a summary asks if answers arrive damaged, including the first time. The
last time it asks for a whole answer, which a server with broken streams may still be able to send."""
RECENT_ANSWERS = 10
MOST_RECENT_DAMAGE = 8
"""If this many of the last `RECENT_ANSWERS` answers of a run arrived damaged, the run ends."""
MOST_WHOLE_TOKENS = 16_000
"""The longest answer, in tokens, that ralph requests without a stream. Servers refuse longer ones, or cut them after
some minutes."""


class State(Protocol):
    """The session of the run, and its only writer."""

    @property
    def session(self) -> Session: ...

    def recover_conversation(self) -> None:
        """Gives each tool call that has no result one, so that the conversation can be resumed. Raises JournalError."""
        ...


class Client(Protocol):
    def send_message(
        self, target: Target, key: int, body: RequestBody, events: Events, *, is_whole: bool = False
    ) -> Answer:
        """Sends one request and returns the answer. It never retries. `key` is the index of the target's key, counted
        from 0. `is_whole` is True if the body asks for one JSON object and not for a stream: such an answer may stay away
        until its time limit. `events` receives a RequestSent when the request is on its way, and the answer's events while it
        arrives. Raises only `AgentError`, `Interrupted` and the errors of `events`.
        """
        ...

    def describe_model(self, target: Target, key: int) -> ModelDescription | None:
        """Asks the server once for its description of the target's model, and waits at most a few seconds.

        `key` is the index of the target's key, counted from 0. Returns None if the server gave no description. Raises
        only `Interrupted`. The client does not store the description.
        """
        ...


class TurnRequests:
    """Counts the requests of one turn, which may call `send_with_retry` several times."""

    def __init__(self, turn: int, recent: tuple[bool, ...] = ()) -> None:
        self.turn = turn
        self.recent = recent
        self.attempts = 0
        self.took_s = 0.0
        """The seconds spent on requests and on waits between them. The time of tools is not included."""
        self.damaged_asks = 0
        """The number of answers of this turn, or of the current summary, that arrived damaged."""
        self.continues = False
        """True if the next call of `send_with_retry` asks again because an answer arrived damaged."""

    @property
    def is_whole(self) -> bool:
        return self.damaged_asks >= MOST_ASKS - 1

    def ask_again_after(self, error: AgentError) -> bool:
        """Whether the turn may ask again because an answer arrived damaged. Counts the request."""
        if not is_damaged(error):
            return False
        self.damaged_asks += 1
        self.continues = self.damaged_asks < MOST_ASKS and sum(self.recent) < MOST_RECENT_DAMAGE
        return self.continues


class WindowTooSmallError(Exception):
    """A chain has moved to a target whose context window the conversation fills. Nothing was sent to it."""

    def __init__(self, target: str) -> None:
        super().__init__(f"the conversation is too large for {target}: ralph makes it smaller first")


class CallSite(Struct, frozen=True):
    """The ports and the state that all requests of a run share."""

    roster: Roster
    policy: RetryPolicy
    controls: RunControls
    budget: Budget
    client: Client
    waiter: Waiter
    clock: Clock
    events: Events
    state: State

    def is_crowded(self, conversation: Conversation) -> bool:
        """Whether the conversation must be compacted for the current target."""
        return is_over(self.roster.estimate(conversation, self.state.session.meter), self.roster.window)

    def situation(self, sent_s: float, *, may_be_too_large: bool) -> Situation:
        now_s = self.clock.now_s()
        policy = self.policy if self.controls.auto_retry else backoff.off()
        return Situation(now_s, policy, now_s - sent_s, self.waiter.time_left_s(), may_be_too_large)


class Request(Struct, frozen=True):
    body: RequestBody
    prompt_tokens: int
    """An upper bound on the tokens of the request's prompt. The answer is not included."""
    answer_tokens: int
    """The `max_tokens` of the request."""
    may_be_too_large: bool
    """Whether the request is so much larger than the last one that was answered that the server may refuse it for that
    reason."""


def affordable_request(
    conversation: Conversation, site: CallSite, state: RetryState, most_tokens: int | None
) -> Request:
    """The next request. Its `max_tokens` is as large as `most_tokens`, the model, the window and the budget allow,
    and stays the same if this call of `send_with_retry` has asked the target before. Raises `BudgetSpent`.
    """
    roster, budget, target = site.roster, site.budget, state.target
    prompt_tokens = roster.at_most(conversation, site.state.session.meter)
    fixed = state.answer_tokens.get(target.name)
    if state.is_whole:
        most_tokens = min(most_tokens or MOST_WHOLE_TOKENS, MOST_WHOLE_TOKENS)
    longest = fixed or roster.longest_answer(prompt_tokens, most_tokens)
    granted = budget.longest_answer(target.facts, prompt_tokens, longest)
    if granted < (fixed or min(SHORTEST_ANSWER, longest)):
        raise BudgetSpent(
            f"the rest of the budget ({dollars(budget.spent_usd)} of {dollar_limit(budget.max_usd or 0.0)} is spent) "
            f"does not pay for the next request to {target.model}"
        ) from state.last_error
    may_be_too_large = roster.may_be_too_large(conversation, site.state.session.meter)
    body = roster.body_for(conversation, granted, is_whole=state.is_whole)
    return Request(body, prompt_tokens, granted, may_be_too_large)


def tokens_to_pay(answer: Answer, target: Target, request: Request) -> TokenUsage:
    """The tokens of an answer for which the server bills ralph. If the model has a price, an upper bound replaces a
    missing count.
    """
    usage = answer.message["usage"]
    if target.facts is None or target.facts.price is None:
        return tokens_of(usage)
    longest = min(request.answer_tokens, make_message("assistant", answer.content).size)
    return counted_or_estimated(usage, request.prompt_tokens, longest)


def with_prompt(tokens: TokenUsage, target: Target, request: Request) -> TokenUsage:
    """The tokens of an answer that broke off. Many servers count the prompt only at the end: an upper bound replaces
    the missing count if the model has a price.
    """
    is_missing = tokens.output and not tokens.prompt
    has_price = target.facts is not None and target.facts.price is not None
    return replace(tokens, input=request.prompt_tokens) if is_missing and has_price else tokens


class Chain:
    """Publishes the events of one call of `send_with_retry`. If there was a RetryScheduled, exactly one
    RetryRecovered or RetryExhausted follows, whatever ends the chain. If an `Interrupted` does, the last API error
    becomes its `__cause__`.
    """

    def __init__(self, site: CallSite, requests: TurnRequests) -> None:
        self._site = site
        self._requests = requests
        self._started_s = site.clock.now_s()
        self._state: RetryState | None = None
        self._is_open = False

    def begin(self) -> tuple[RetryState, tuple[Event, ...]]:
        roster, requests = self._site.roster, self._requests
        begun = begin_chain(
            roster.state, roster.rules, roster.targets, requests=requests, now_s=self._started_s
        )
        requests.continues = False
        return begun

    def publish(self, state: RetryState, *events: Event) -> None:
        """Stores the state for the rest of the run, and emits the events."""
        self._state = state
        self._site.roster.state = state.choice
        self._requests.attempts = state.attempt
        self._requests.recent = state.recent[-RECENT_ANSWERS:]
        for event in events:
            if isinstance(event, RetryRecovered):
                self._is_open = False
            is_open = self._is_open or isinstance(event, RetryScheduled)
            try:
                self._site.events.emit(event)
            except Interrupted:  # by a signal, while a program was told of it
                self._is_open = is_open
                raise
            self._is_open = is_open

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, end: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._requests.took_s += self._site.clock.now_s() - self._started_s
        if self._state is None or not isinstance(end, Exception | Interrupted):
            return
        if isinstance(end, Interrupted):
            end.__cause__ = end.__cause__ or self._state.last_error
        if self._is_open:
            self._site.events.emit(exhausted(self._state, end))
