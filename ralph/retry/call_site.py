"""The ports and the state that all requests of a run share. Makes the next request: the context window and the budget limit
the length of its answer. Counts the requests of a turn. `retry/loop.py` sends them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.messages import Conversation, RequestBody, make_message
from ralph.retry import backoff
from ralph.retry.step import RetryState, Situation, begin_chain, exhausted
from ralph.values.errors import is_damaged
from ralph.values.events import Event, RetryRecovered, RetryScheduled
from ralph.values.limits import SHORTEST_ANSWER, Budget
from ralph.values.ports import BudgetSpent, Clock, Events, Interrupted, Waiter
from ralph.values.screen_text import dollar_limit, dollars
from ralph.values.usage import TokenUsage, counted_or_estimated, is_over, tokens_of

if TYPE_CHECKING:
    from types import TracebackType

    from ralph.conversation.session import Session
    from ralph.conversation.target import ModelDescription, Target
    from ralph.retry.backoff import RetryPolicy
    from ralph.retry.targets import Roster
    from ralph.values.answer import Answer
    from ralph.values.controls import RunControls
    from ralph.values.errors import AgentError


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
