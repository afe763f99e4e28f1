"""Makes the next request. The context window and the budget limit the length of its answer. `retry/loop.py` sends the
request. This module also defines the ports and the state that all requests of a run share. `Chain`
publishes the state of the retries and the events while one answer is requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.context_size import is_over
from ralph.conversation.messages import make_message
from ralph.retry import backoff
from ralph.retry.step import Moment, begin_chain, exhausted
from ralph.retry.turn_requests import MOST_WHOLE_TOKENS, RECENT_ANSWERS
from ralph.values.events import RetryRecovered, RetryScheduled
from ralph.values.limits import SHORTEST_ANSWER
from ralph.values.ports import BudgetSpent, Interrupted
from ralph.values.screen_text import dollar_limit, dollars
from ralph.values.usage import counted_or_estimated, tokens_of

if TYPE_CHECKING:
    from types import TracebackType

    from ralph.conversation.messages import Conversation, RequestBody
    from ralph.conversation.target import Target
    from ralph.retry.backoff import RetryPolicy
    from ralph.retry.ports import Client, State
    from ralph.retry.roster import Roster
    from ralph.retry.step import RetryState
    from ralph.retry.turn_requests import TurnRequests
    from ralph.values.answer import Answer
    from ralph.values.controls import RunControls
    from ralph.values.events import Event
    from ralph.values.limits import Budget
    from ralph.values.ports import Clock, Events, Waiter
    from ralph.values.usage import TokenUsage


class WindowTooSmallError(Exception):
    """A chain has moved to a target whose context window the conversation fills. Nothing was sent to it."""

    def __init__(self, target: str) -> None:
        super().__init__(f"the conversation is too large for {target}, and is made smaller first")


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

    def moment(self, sent_s: float, *, may_be_too_large: bool) -> Moment:
        """The facts for a retry decision when a request has ended. `sent_s` is the time at which the request was
        sent. The other facts are the current time, the policy, the duration of the request, and the time left.
        """
        now_s = self.clock.now_s()
        policy = self.policy if self.controls.auto_retry else backoff.off()
        return Moment(now_s, policy, now_s - sent_s, self.waiter.time_left_s(), may_be_too_large)


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
    """The next request. Its `max_tokens` is as large as `most_tokens`, the model, the context window and the budget
    allow.

    If this call of `send_with_retry` has asked the target before, `max_tokens` stays the same. Raises `BudgetSpent`
    if the rest of the budget cannot pay for the request.
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
    """The tokens of an answer for which the server bills ralph. These are the server's own counts. If the model has a
    price and a count is missing, an upper bound replaces the missing count.
    """
    usage = answer.message["usage"]
    if target.facts is None or target.facts.price is None:
        return tokens_of(usage)
    longest = min(request.answer_tokens, make_message("assistant", answer.content).size)
    return counted_or_estimated(usage, request.prompt_tokens, longest)


def with_prompt(tokens: TokenUsage, target: Target, request: Request) -> TokenUsage:
    """The tokens of an answer that broke off. If the server had not counted the prompt by then, as many count it only at the
    end, and the model has a price, an upper bound replaces the count.
    """
    is_missing = tokens.output and not tokens.prompt
    has_price = target.facts is not None and target.facts.price is not None
    return replace(tokens, input=request.prompt_tokens) if is_missing and has_price else tokens


class Chain:
    """A context manager that publishes the events of a chain. A chain is one call of `send_with_retry`.

    If the chain has a RetryScheduled event, exactly one RetryRecovered or RetryExhausted event follows before the
    chain ends. This holds even if a signal, a driver or the time limit ends the chain. If an `Interrupted` ends the
    chain, the last API error becomes the `__cause__` of the `Interrupted`.
    """

    def __init__(self, site: CallSite, requests: TurnRequests) -> None:
        self._site = site
        self._requests = requests
        self._started_s = site.clock.now_s()
        self._state: RetryState | None = None
        self._is_open = False

    def begin(self) -> tuple[RetryState, tuple[Event, ...]]:
        """The first retry state of the `send_with_retry` call, and its first events."""
        roster, requests = self._site.roster, self._requests
        begun = begin_chain(
            roster.state,
            roster.rules,
            roster.targets,
            requests=requests,
            now_s=self._started_s,
        )
        requests.goes_on = False
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
