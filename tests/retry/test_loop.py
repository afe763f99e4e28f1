"""The retry loop: how often it asks, how long it waits, which events it emits, and that it always closes its
chain.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ralph.conversation.messages import Conversation, user_message
from ralph.conversation.records import assistant_record, run_record, user_record
from ralph.retry.backoff import RetryPolicy, Wait, custom, off, patient, standard
from ralph.retry.call_site import CallSite, TurnRequests
from ralph.retry.loop import send_with_retry
from ralph.values.classify import ErrorClass, classify_error
from ralph.values.controls import RunControls
from ralph.values.errors import AgentError, Api, HttpError, Json, NetworkCause, StreamParse, StreamTransient
from ralph.values.events import (
    AttemptEnded,
    RequestSent,
    ResponseRestarted,
    RetryExhausted,
    RetryRecovered,
    RetryScheduled,
)
from ralph.values.limits import Budget
from ralph.values.ports import Interrupted, RetryAborted, SignalReceived
from tests.fakes import FakeWaiter, RecordingEvents, ScriptedClient, answer, call, new_log, roster_of, text
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.retry.roster import Roster
    from ralph.values.answer import Answer
    from ralph.values.events import Event

HELLO = answer(text("hello"))
CONVERSATION = Conversation.start(roster_of().first_shape).plus(user_message("hi"))


class Try:
    """One use of the retry loop with scripted answers."""

    def __init__(
        self,
        *script: Answer | BaseException,
        policy: RetryPolicy | None = None,
        interrupt_at_s: float | None = None,
        run_ends_s: float = math.inf,
        roster: Roster | None = None,
    ) -> None:
        self.client = ScriptedClient(script)
        self.waiter = FakeWaiter(interrupt_at_s=interrupt_at_s, run_ends_s=run_ends_s)
        self.events = RecordingEvents()
        self.log = new_log()
        self.controls = RunControls()
        self.roster = roster or roster_of()
        self.policy = policy or standard()
        self.site = CallSite(
            self.roster,
            self.policy,
            self.controls,
            Budget(),
            self.client,
            self.waiter,
            self.waiter.clock,
            self.events,
            self.log,
        )

    def send(self, turn: int = 1) -> Answer:
        return send_with_retry(CONVERSATION, self.site, TurnRequests(turn))

    def told(self) -> list[Event]:
        """The events of the retries."""
        return [event for event in self.events.events if not isinstance(event, RequestSent | AttemptEnded)]

    def errors(self) -> list[str]:
        return [event.error for event in self.events.of(AttemptEnded) if event.error is not None]


def overloaded(retry_after: float | None = None) -> HttpError:
    return HttpError(529, retry_after, "")


def test_a_first_answer_that_is_good_opens_no_chain() -> None:
    attempt = Try(HELLO)
    assert attempt.send() is HELLO
    assert attempt.told() == []
    assert attempt.waiter.sleeps == []


def test_five_calls_at_most_with_identical_bytes_and_the_waits_of_the_schedule() -> None:
    attempt = Try(*[overloaded()] * 5)
    with pytest.raises(HttpError):
        attempt.send()
    [body] = set(attempt.client.bodies)
    assert body == b"".join(attempt.roster.body_for(CONVERSATION, 32_000).pieces())
    assert len(attempt.client.bodies) == 5
    assert attempt.waiter.sleeps == [2, 4, 8, 16]
    assert [e.attempt for e in attempt.events.of(RetryScheduled)] == [1, 2, 3, 4]
    assert len(attempt.errors()) == 5
    (end,) = attempt.events.of(RetryExhausted)
    assert (end.retries, end.total_wait_s) == (4, 30)


def test_recovery_closes_the_chain_once_with_what_it_took() -> None:
    attempt = Try(overloaded(), StreamTransient("cut"), HELLO)
    assert attempt.send() is HELLO
    assert attempt.events.of(RetryRecovered) == [RetryRecovered(2, 6, turn=1, attempt=3)]
    assert attempt.events.of(RetryExhausted) == []
    about_retries = [*attempt.events.of(RetryScheduled), *attempt.events.of(ResponseRestarted)]
    assert [e for e in attempt.events.events if e in about_retries] == about_retries, (
        "after the second failure"
    )
    assert [type(e) for e in about_retries] == [RetryScheduled, RetryScheduled, ResponseRestarted]


@every_row(
    ("script", "policy"),
    [
        ([overloaded(), HELLO], standard()),
        ([overloaded()] * 5, standard()),
        ([overloaded(), HttpError(400, None, "")], standard()),
        ([overloaded(), SignalReceived(2)], standard()),
        ([overloaded(), RetryAborted()], standard()),
        ([overloaded(), overloaded(500)], custom(4, 2, 100)),
    ],
)
def test_each_chain_counts_from_one_however_the_one_before_it_ended(script, policy) -> None:
    attempt = Try(*script, overloaded(), overloaded(), HELLO, policy=policy)
    with suppress(AgentError, Interrupted):
        attempt.send()
    attempt.waiter.sleeps.clear()
    assert attempt.send() is HELLO
    assert attempt.waiter.sleeps == [2, 4]
    assert [event.attempt for event in attempt.events.of(RetryScheduled)][-2:] == [1, 2]
    assert attempt.events.of(RetryRecovered)[-1].retries == 2


def test_the_budget_of_patient_is_spent_by_its_waits_and_not_by_the_time_of_requests() -> None:
    attempt = Try(*[overloaded()] * 22, policy=patient())
    attempt.client.takes(3600, attempt.waiter.clock)
    with pytest.raises(HttpError):
        attempt.send()
    assert (len(attempt.waiter.sleeps), sum(attempt.waiter.sleeps)) == (21, 27_105)
    assert attempt.waiter.clock.seconds == 22 * 3600 + 27_105


def test_retry_after_zero_is_announced_and_asks_at_once() -> None:
    attempt = Try(overloaded(0), HELLO)
    attempt.send()
    assert attempt.waiter.sleeps == [0]
    assert attempt.events.of(RetryScheduled)[0].requested_wait_s == 0


PERMANENT: list[AgentError] = [
    HttpError(400, None, ""),
    HttpError(401, 5, ""),
    HttpError(413, None, ""),
    StreamParse("x"),
    Json("x"),
    Api(NetworkCause.CERTIFICATE),
]


def test_the_conversation_is_recovered_on_the_final_failure_alone() -> None:
    attempt = Try(overloaded(), HELLO, *[overloaded()] * 5)
    log = attempt.log
    log.record(run_record(attempt.roster.first_shape, "now", 1, target=attempt.roster.first.name))
    log.record(user_record(user_message("hi"), task=1), assistant_record(answer(call("a"))))
    attempt.send()
    assert log.session.conversation.messages[-1].role == "assistant"
    with pytest.raises(HttpError):
        attempt.send()
    assert log.session.conversation.messages[-1].tool_result_ids == ("a",)


@every_row("error", PERMANENT)
def test_a_permanent_error_is_asked_once_and_opens_no_chain(error: AgentError) -> None:
    attempt = Try(error)
    with pytest.raises(AgentError):
        attempt.send()
    assert len(attempt.client.bodies) == 1
    assert attempt.errors() == [str(error)]
    assert attempt.told() == []


def test_a_permanent_error_after_retries_closes_the_chain_as_exhausted() -> None:
    attempt = Try(overloaded(), HttpError(401, None, ""))
    with pytest.raises(HttpError):
        attempt.send()
    assert [e.retries for e in attempt.events.of(RetryExhausted)] == [1]


@every_row("interrupt_at_s", [0.5, 1.9, 3, 29])
def test_a_signal_during_a_wait_closes_the_chain_once(interrupt_at_s: float) -> None:
    attempt = Try(*[overloaded()] * 5, interrupt_at_s=interrupt_at_s)
    with pytest.raises(Interrupted):
        attempt.send()
    assert len(attempt.events.of(RetryExhausted)) == 1
    assert attempt.waiter.clock.seconds == interrupt_at_s


def test_off_asks_once() -> None:
    attempt = Try(overloaded(), policy=off())
    with pytest.raises(HttpError):
        attempt.send()
    assert len(attempt.client.bodies) == 1


def test_patient_outlasts_seven_hours_of_outage() -> None:
    attempt = Try(*[overloaded()] * 20, HELLO, policy=patient())
    assert attempt.send() is HELLO
    assert attempt.waiter.clock.seconds > 7 * 3600


ERRORS = st.one_of(
    st.builds(HttpError, st.integers(300, 599), st.one_of(st.none(), st.floats(0, 1e6)), st.just("")),
    st.builds(StreamTransient, st.just("cut")),
    st.builds(StreamParse, st.just("odd")),
    st.builds(Api, st.sampled_from(NetworkCause)),
)


@given(st.lists(ERRORS, max_size=8), st.sampled_from([standard(), off(), patient()]))
@example([overloaded(), StreamTransient("cut"), Api(NetworkCause.TIMEOUT)], standard())
def test_requests_and_waits_are_exactly_what_the_pure_policy_says(
    errors: list[AgentError], policy: RetryPolicy
) -> None:
    attempt = Try(*errors, HELLO, policy=policy)
    expected: list[float] = []
    for error in errors:
        if classify_error(error) is ErrorClass.PERMANENT:
            break
        requested_s = error.retry_after if isinstance(error, HttpError) else None
        decision = policy.next_wait(len(expected) + 1, requested_s, sum(expected))
        if not isinstance(decision, Wait):
            break
        expected.append(decision.seconds)
    try:
        attempt.send()
    except AgentError:
        assert len(expected) < len(errors)
    assert attempt.waiter.sleeps == expected
    assert len(attempt.client.bodies) == len(expected) + 1
    closed = len(attempt.events.of(RetryRecovered)) + len(attempt.events.of(RetryExhausted))
    assert closed == (1 if expected else 0)
