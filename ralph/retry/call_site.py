"""The ports and state that every request of a run uses, and the next request, limited by the window and the budget. It
sends nothing: `retry/loop.py` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.conversation.messages import make_message
from ralph.retry import backoff
from ralph.retry.step import Moment
from ralph.values.limits import SHORTEST_ANSWER
from ralph.values.ports import BudgetSpent
from ralph.values.usage import counted_or_estimated, tokens_of

if TYPE_CHECKING:
    from ralph.conversation.messages import Conversation, RequestBody
    from ralph.conversation.target import Target
    from ralph.retry.backoff import RetryPolicy
    from ralph.retry.ports import Client, State
    from ralph.retry.roster import Roster
    from ralph.retry.step import RetryState
    from ralph.values.answer import Answer
    from ralph.values.controls import RunControls
    from ralph.values.limits import Budget
    from ralph.values.ports import Clock, Events, Waiter
    from ralph.values.usage import TokenUsage


class TurnRequests:
    """Counts the requests of one turn, over all uses of the call site."""

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.attempts = 0
        self.took_s = 0.0
        """Seconds spent on requests and waits; the time of tools does not count."""


class CallSite(Struct, frozen=True):
    """The ports and state that every request of a run uses."""

    roster: Roster
    policy: RetryPolicy
    controls: RunControls
    budget: Budget
    client: Client
    waiter: Waiter
    clock: Clock
    events: Events
    state: State

    def moment(self, sent_s: float) -> Moment:
        """The facts for a retry decision: the time, the policy, the duration of the request sent at `sent_s`, and the
        time left.
        """
        now_s = self.clock.now_s()
        policy = self.policy if self.controls.auto_retry else backoff.off()
        return Moment(now_s, policy, now_s - sent_s, self.waiter.time_left_s())


class Request(Struct, frozen=True):
    body: RequestBody
    prompt_tokens: int
    """The highest number of tokens that the prompt may turn out to have."""
    answer_tokens: int
    """The request's `max_tokens`."""


def affordable_request(
    conversation: Conversation, site: CallSite, state: RetryState, most_tokens: int | None
) -> Request:
    """The next request. Its answer may be as long as the window and the budget allow.

    A target that this chain has asked before gets the same limit again. Raises `BudgetSpent` if the rest of the
    budget does not buy the request.
    """
    roster, budget, target = site.roster, site.budget, state.target
    prompt_tokens = roster.at_most(conversation, site.state.session.meter)
    fixed = state.answer_tokens.get(target.name)
    longest = fixed or roster.longest_answer(prompt_tokens, most_tokens)
    granted = budget.longest_answer(target.facts, prompt_tokens, longest)
    if granted < (fixed or min(SHORTEST_ANSWER, longest)):
        raise BudgetSpent(
            f"what is left of the budget (${budget.spent_usd:.4f} of ${budget.max_usd:g} spent) does not buy another "
            f"request to {target.model}"
        ) from state.last_error
    return Request(roster.body_for(conversation, granted), prompt_tokens, granted)


def tokens_to_pay(answer: Answer, target: Target, request: Request) -> TokenUsage:
    """The tokens of an answer.

    If the model has a price and the server does not count tokens, the result is the highest possible number.
    """
    usage = answer.message["usage"]
    if target.facts is None or target.facts.price is None:
        return tokens_of(usage)
    longest = min(request.answer_tokens, make_message("assistant", answer.content).size)
    return counted_or_estimated(usage, request.prompt_tokens, longest)
