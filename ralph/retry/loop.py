"""The retry loop, whole, on one screen. Nothing below `send_message()` retries, nothing above it does either.

What is transient, how long to wait and whom to ask next are pure decisions: `values/classify.py`, `retry/backoff.py`,
`retry/targets.py`; `retry/step.py` puts them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.retry.backoff import GiveUp, Wait
from ralph.retry.call_site import affordable_request, tokens_to_pay
from ralph.retry.step import (
    answered,
    asked,
    attempt_ended,
    begin_chain,
    exhausted,
    raised_at_end,
    step,
    waited,
)
from ralph.retry.targets import MoveOn
from ralph.values.classify import classify_error
from ralph.values.errors import AgentError
from ralph.values.events import RetryScheduled
from ralph.values.ports import Interrupted

if TYPE_CHECKING:
    from ralph.conversation.messages import Conversation
    from ralph.retry.call_site import CallSite, TurnRequests
    from ralph.retry.targets import Decision
    from ralph.values.answer import Answer


def send_with_retry(
    conversation: Conversation, site: CallSite, requests: TurnRequests, most_tokens: int | None = None
) -> Answer:
    """The next answer, of at most `most_tokens` (None: what the target is set to). `requests`: those of its turn.

    Each call starts with a fresh budget of retries. Raises the last `AgentError` when nobody can be asked again or the
    policy gives up, `BudgetSpent` where the money does not buy another attempt.

    A chain opens with its first retry and is closed by exactly one RetryRecovered or RetryExhausted, also when a
    signal, an abort or the time limit ends it; the error before that is then the cause of what is raised.
    """
    roster, clock, emit = site.roster, site.clock, site.events.emit
    started_s = clock.now_s()
    state, events = begin_chain(
        roster.state,
        roster.rules,
        roster.targets,
        turn=requests.turn,
        attempts=requests.attempts,
        now_s=started_s,
    )
    decision: Decision = MoveOn()
    is_open = False
    try:
        while True:
            roster.state = state.choice  # where the journal and a driver look
            for event in events:
                emit(event)
                is_open = is_open or isinstance(event, RetryScheduled)
            if isinstance(decision, GiveUp):
                raise raised_at_end(state, decision)  # noqa: TRY301 - below, the chain is closed for it too
            # Before the wait: a night's sleep buys nothing either.
            request = affordable_request(conversation, site, state, most_tokens)
            if isinstance(decision, Wait):
                retry = f"retry {state.retries + 1} of {site.policy.max_retries}"
                site.waiter.sleep(decision.seconds, waiting_for=retry)
                state = waited(state, decision)
            state, sent_s = asked(state, request.answer_tokens), clock.now_s()
            requests.attempts = state.attempt
            try:
                key = state.choice.route.key
                answer = site.client.send_message(state.target, key, request.body, site.events)
            except AgentError as error:
                state, decision, events = step(state, error, classify_error(error), site.moment(sent_s))
            except Interrupted as stop:
                emit(attempt_ended(state, clock.now_s() - sent_s, stop.tokens, stop))
                raise
            else:
                tokens = tokens_to_pay(answer, state.target, request)
                emit(attempt_ended(state, clock.now_s() - sent_s, tokens))
                break
    except (Exception, Interrupted) as end:
        if isinstance(end, Interrupted):
            end.__cause__ = end.__cause__ or state.last_error
        if is_open:
            emit(exhausted(state, end))
        raise
    finally:
        requests.took_s += clock.now_s() - started_s
    state, events = answered(state)
    roster.state = state.choice
    for event in events:
        emit(event)
    return answer
