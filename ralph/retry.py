"""The retry loop, whole, on one screen. Nothing below `send_message()` retries, nothing above it does either.

Each call of `send_with_retry` starts with a fresh budget. What is transient and how long to wait are pure
decisions of `core/classify.py` and `core/backoff.py`; every retry of one chain sends identical bytes.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

from ralph.core.backoff import GiveUp, RetryPolicy, Wait
from ralph.core.classify import ErrorClass, classify_error, failure_kind
from ralph.core.errors import AgentError, HttpError, StreamTransient
from ralph.core.events import AttemptFailed, Notice, RetryExhausted, RetryRecovered, RetryScheduled
from ralph.ports import Interrupted, TimeIsUp

if TYPE_CHECKING:
    from ralph.core.answer import Answer
    from ralph.core.conversation import RequestBody
    from ralph.ports import Client, Events, Waiter


def send_with_retry(
    body: RequestBody, *, client: Client, policy: RetryPolicy, waiter: Waiter, events: Events
) -> Answer:
    """The answer to `body`. Raises the last `AgentError` when it is permanent or the policy gives up.

    A chain opens with its first retry and is closed by exactly one RetryRecovered or RetryExhausted, also
    when a signal or the time limit ends it; the error before that is then the cause of what is raised.
    """
    waited_s = 0.0
    last_error: AgentError | None = None
    for attempt in count(1):
        retries = attempt - 1
        try:
            answer = client.send_message(body)
        except AgentError as error:
            events.emit(AttemptFailed(str(error)))
            decision = decide(error, attempt, waited_s, policy, waiter.time_left_s())
            if isinstance(decision, GiveUp):
                if decision.is_early:
                    events.emit(Notice(f"giving up: {decision.reason}"))
                if retries:
                    events.emit(RetryExhausted(retries, waited_s, str(error)))
                if decision.outlasts_run:
                    raise TimeIsUp(decision.reason) from error
                raise
            events.emit(_scheduled(error, attempt, decision, policy))
            try:
                waiter.sleep(decision.seconds, waiting_for=f"retry {attempt} of {policy.max_retries}")
            except Interrupted as stop:
                events.emit(RetryExhausted(retries, waited_s, f"{stop}, after: {error}"))
                raise stop from error
            waited_s += decision.seconds
            last_error = error
        except Interrupted as stop:
            stop.__cause__ = stop.__cause__ or last_error
            if retries:
                events.emit(RetryExhausted(retries, waited_s, f"{stop}, after: {stop.__cause__}"))
            raise
        else:
            if retries:
                events.emit(RetryRecovered(retries, waited_s))
            return answer
    raise AssertionError("count() does not end")


def decide(
    error: AgentError, attempt: int, slept_s: float, policy: RetryPolicy, time_left_s: float = math.inf
) -> Wait | GiveUp:
    """Retry number `attempt` after this error: how long to wait first, or why not at all. Pure."""
    if classify_error(error) is ErrorClass.PERMANENT:
        return GiveUp("asking again cannot help")
    wish_s = error.retry_after if isinstance(error, HttpError) else None
    decision = policy.next_wait(attempt, wish_s, slept_s)
    if isinstance(decision, Wait) and decision.seconds >= time_left_s:
        reason = f"the time limit (--max-time) leaves no time to wait {decision.seconds:g}s"
        return GiveUp(reason, is_early=True, outlasts_run=True)
    return decision


def _scheduled(error: AgentError, attempt: int, wait: Wait, policy: RetryPolicy) -> RetryScheduled:
    return RetryScheduled(
        attempt=attempt,
        max_retries=policy.max_retries,
        wait_s=wait.seconds,
        status=error.status if isinstance(error, HttpError) else None,
        error_class=type(error).__name__,
        kind=failure_kind(error).value,
        message=str(error),
        server_wish_s=wait.seconds if wait.from_server else None,
        restarts_response=isinstance(error, StreamTransient),
    )
