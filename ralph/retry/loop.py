"""The retry loop: send, classify, wait, or give up and recover the conversation.

The code below `send_message()` never retries. The code above this loop sends a request again in two cases: it has
changed the request, or the answer arrived in an unreadable form (`TurnRequests` says how often). Pure functions decide
which errors are transient (`values/errors.py`), how long to wait (`backoff.py`) and which target is next
(`targets.py`); `step.py` combines them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.retry.backoff import GiveUp, Wait
from ralph.retry.step import (
    Chain,
    WindowTooSmallError,
    affordable_request,
    answered,
    asked,
    attempt_ended,
    raised_at_end,
    step,
    tokens_to_pay,
    waited,
    with_prompt,
)
from ralph.retry.targets import MoveOn
from ralph.values.errors import AgentError, classify_error
from ralph.values.ports import Interrupted, JournalError

if TYPE_CHECKING:
    from ralph.conversation.messages import Conversation
    from ralph.retry.step import CallSite, TurnRequests
    from ralph.retry.targets import Decision
    from ralph.values.answer import Answer


def send_with_retry(
    conversation: Conversation,
    site: CallSite,
    requests: TurnRequests,
    most_tokens: int | None = None,
    *,
    can_shrink: bool = False,
) -> Answer:
    """Requests the next answer, and retries after transient errors.

    The answer has at most `most_tokens` tokens. If `most_tokens` is None, the target's own limit applies. `requests`
    counts the requests of the turn. Each call starts with all retries of the policy, or with those that are left after a
    damaged answer. If the policy gives up, or no target can be asked again, raises the `AgentError` of one of the failed
    requests, usually the last. If `can_shrink` is True, the caller can make the conversation smaller: a server that says
    the same twice to a request that may be too large is then not asked again, and `WindowTooSmallError` is raised instead of a
    request to another target whose window the conversation fills. Raises `BudgetSpent` if the budget does not
    cover another request, and `TimeIsUp` if the next wait would end after the time limit.
    """
    clock = site.clock
    with Chain(site, requests) as chain:
        # The conversation fits into its window, as far as the caller could see to that.
        checked = site.roster.target
        state, events = chain.begin()
        decision: Decision = MoveOn()
        while True:
            chain.publish(state, *events)
            if isinstance(decision, GiveUp):  # the final failure
                site.state.recover_conversation()
                raise raised_at_end(state, decision)
            if can_shrink and state.target != checked and site.is_crowded(conversation):
                raise WindowTooSmallError(state.target.name) from state.last_error
            # The request is made before the wait, because waiting is useless if the budget does not cover it.
            request = affordable_request(conversation, site, state, most_tokens)
            if isinstance(decision, Wait):
                retry = f"retry {state.choice.chain.retries} of {site.policy.max_retries}"
                site.waiter.sleep(decision.seconds, waiting_for=retry)
                state = waited(state, decision)
            state, sent_s = asked(state, request.answer_tokens), clock.now_s()
            chain.publish(state)
            try:
                key = state.choice.route.key
                answer = site.client.send_message(
                    state.target, key, request.body, site.events, is_whole=state.is_whole
                )
            except AgentError as error:
                error.tokens = with_prompt(error.tokens, state.target, request)
                situation = site.situation(sent_s, may_be_too_large=can_shrink and request.may_be_too_large)
                state, decision, events = step(state, error, classify_error(error), situation)
            except (Interrupted, JournalError) as stop:
                tokens = with_prompt(stop.tokens, state.target, request)
                chain.publish(state, attempt_ended(state, clock.now_s() - sent_s, tokens, stop))
                raise
            else:
                tokens = tokens_to_pay(answer, state.target, request)
                chain.publish(state, attempt_ended(state, clock.now_s() - sent_s, tokens))
                state, events = answered(state)
                chain.publish(state, *events)
                return answer
