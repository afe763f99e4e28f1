"""The retry loop, whole, on one screen. Nothing below `send_message()` retries, nothing above it does either.

Each call of `send_with_retry` starts with a fresh budget. What is transient, how long to wait and whom to ask next
are pure decisions of `values/classify.py`, `retry/backoff.py` and `retry/targets.py`; all retries to one target send
identical bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.messages import make_message
from ralph.retry import backoff
from ralph.retry.backoff import GiveUp, RetryPolicy, Wait
from ralph.retry.chain import Chain
from ralph.retry.targets import after_failure, begin, failure_of
from ralph.values.errors import AgentError
from ralph.values.events import Notice
from ralph.values.limits import SHORTEST_ANSWER
from ralph.values.ports import BudgetSpent, Interrupted, RetryAborted, TimeIsUp
from ralph.values.usage import counted_or_estimated, tokens_of

if TYPE_CHECKING:
    from ralph.conversation.messages import Conversation, RequestBody
    from ralph.conversation.target import Target
    from ralph.retry.chain import TurnRequests
    from ralph.retry.ports import Client
    from ralph.retry.roster import Roster
    from ralph.retry.targets import Decision, Rules, TargetsState
    from ralph.values.answer import Answer
    from ralph.values.controls import RunControls
    from ralph.values.limits import Budget
    from ralph.values.ports import Clock, Events, Waiter
    from ralph.values.usage import TokenUsage


class CallSite(Struct, frozen=True):
    """What every request of a run goes through."""

    roster: Roster
    policy: RetryPolicy
    controls: RunControls
    budget: Budget
    client: Client
    waiter: Waiter
    clock: Clock
    events: Events


def send_with_retry(
    conversation: Conversation, site: CallSite, requests: TurnRequests, most_tokens: int | None = None
) -> Answer:
    """The next answer, of at most `most_tokens` (None: what the target is set to). `requests`: those of its turn.

    Raises the last `AgentError` when nobody can be asked again or the policy gives up, `BudgetSpent` where the budget
    does not buy another attempt.

    A chain opens with its first retry and is closed by exactly one RetryRecovered or RetryExhausted, also when a
    signal, an abort or the time limit ends it; the error before that is then the cause of what is raised.
    """
    started_s = site.clock.now_s()
    chain = Chain(requests, most_tokens)
    ending = []
    try:
        answer = _until_answered(conversation, site, chain)
        ending = list(chain.answered(site.roster))
    except Exception as error:
        ending = list(chain.failed(str(error)))
        raise
    except Interrupted as stop:
        stop.__cause__ = stop.__cause__ or chain.last_error
        why = str(stop) if isinstance(stop, RetryAborted) else f"{stop}, after: {stop.__cause__}"
        ending = list(chain.failed(why))
        raise
    finally:
        requests.took_s += site.clock.now_s() - started_s
        for event in ending:
            site.events.emit(event)
    return answer


def _until_answered(conversation: Conversation, site: CallSite, chain: Chain) -> Answer:
    roster, clock, emit = site.roster, site.clock, site.events.emit
    roster.state = begin(roster.state, roster.rules, clock.now_s())
    for change in chain.starts(roster):
        emit(change)
    body = _affordable_body(conversation, site, chain)
    while True:
        chain.requests.attempts += 1
        target, before, sent_s = roster.target, roster.state, clock.now_s()
        try:
            answer = site.client.send_message(target, before.route.key, body)
        except AgentError as error:
            chain.saw(before.route, error)
            now_s = clock.now_s()
            policy = site.policy if site.controls.auto_retry else backoff.off()
            decision, roster.state = decide(
                error, before, roster.rules, policy, now_s=now_s, time_left_s=site.waiter.time_left_s()
            )
            emit(chain.attempt_ended(target, now_s - sent_s, error.tokens, error, decision))
            if isinstance(decision, Wait):
                emit(chain.scheduled(decision, roster, policy.max_retries))
                chain.is_open = True
            for change in chain.changes(before, roster, error):
                emit(change)
            if isinstance(decision, GiveUp):
                if decision.is_early:
                    emit(Notice(f"giving up: {decision.reason}"))
                if decision.outlasts_run:
                    raise TimeIsUp(decision.reason) from error
                raise chain.telling_error(decision, roster) from None
            # Before the wait: a night's sleep buys nothing either.
            body = _affordable_body(conversation, site, chain)
            if isinstance(decision, Wait):
                site.waiter.sleep(
                    decision.seconds, waiting_for=f"retry {chain.retries + 1} of {policy.max_retries}"
                )
                chain.waited(decision)
        except Interrupted as stop:
            emit(chain.attempt_ended(target, clock.now_s() - sent_s, stop.tokens, stop))
            raise
        else:
            emit(chain.attempt_ended(target, clock.now_s() - sent_s, _tokens_of(answer, target, chain)))
            return answer


def _affordable_body(conversation: Conversation, site: CallSite, chain: Chain) -> RequestBody:
    """The answer may get as long as window and budget allow; who was asked before in this chain is asked the same."""
    roster, budget, target = site.roster, site.budget, site.roster.target
    prompt_tokens = roster.at_most(conversation)
    fixed = chain.answer_tokens.get(target.name)
    wish = fixed or roster.longest_answer(prompt_tokens, chain.most_tokens)
    granted = budget.longest_answer(target.facts, prompt_tokens, wish)
    if granted < (fixed or min(SHORTEST_ANSWER, wish)):
        raise BudgetSpent(
            f"what is left of the budget (${budget.spent_usd:.4f} of ${budget.max_usd:g} spent) does not buy another "
            f"request to {target.model}"
        ) from chain.last_error
    chain.answer_tokens[target.name] = granted
    chain.prompt_tokens = prompt_tokens
    return roster.body_for(conversation, granted)


def _tokens_of(answer: Answer, target: Target, chain: Chain) -> TokenUsage:
    """What has a price is never free: of a server that does not count, the most that it can have been."""
    usage = answer.message["usage"]
    if target.facts is None or target.facts.price is None:
        return tokens_of(usage)
    longest = min(chain.answer_tokens[target.name], make_message("assistant", answer.content).size)
    return counted_or_estimated(usage, chain.prompt_tokens, longest)


def decide(
    error: AgentError,
    state: TargetsState,
    rules: Rules,
    policy: RetryPolicy,
    *,
    now_s: float,
    time_left_s: float,
) -> tuple[Decision, TargetsState]:
    """What comes after this error: a wait, another target at once, or the end. Pure."""
    route = state.route
    decision, state = after_failure(state, failure_of(error), rules=rules, policy=policy, now_s=now_s)
    if isinstance(decision, Wait) and decision.seconds >= time_left_s:
        reason = f"the time limit (--max-time) leaves no time to wait {decision.seconds:g}s"
        # Nobody is asked any more: what is told of the end is about who failed last.
        return GiveUp(reason, is_early=True, outlasts_run=True), replace(state, route=route)
    return decision, state
