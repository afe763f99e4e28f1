"""The retry loop: whom it asks, how long it waits, which events it emits in which order, and that it always closes its
chain.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ralph.conversation.messages import Conversation, user_message
from ralph.conversation.records import assistant_record, run_record, user_record
from ralph.conversation.target import Target
from ralph.retry.backoff import RetryPolicy, Wait, custom, off, patient, standard
from ralph.retry.loop import send_with_retry
from ralph.retry.step import CallSite, Chain, TurnRequests
from ralph.retry.targets import Roster
from ralph.values.controls import RunControls
from ralph.values.credentials import Credential, Secret
from ralph.values.errors import (
    AgentError,
    Api,
    ErrorClass,
    HttpError,
    Json,
    NetworkCause,
    StreamParse,
    StreamTransient,
    classify_error,
)
from ralph.values.events import (
    AttemptEnded,
    ModelFallback,
    ModelFallbackRecovered,
    ModelFallbackSucceeded,
    Notice,
    RequestSent,
    ResponseRestarted,
    RetryExhausted,
    RetryRecovered,
    RetryScheduled,
)
from ralph.values.limits import Budget
from ralph.values.outcome import Outcome
from ralph.values.ports import BudgetSpent, Interrupted, RetryAborted, SignalReceived
from ralph.values.servers import Price
from ralph.values.usage import TokenUsage
from tests.fakes import FakeWaiter, RecordingEvents, ScriptedClient, answer, call, new_log, roster_of, text
from tests.fakes.played import Played
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.values.answer import Answer
    from ralph.values.events import Event

HELLO = answer(text("hello"))
CONVERSATION = Conversation.start(roster_of().first_shape).plus(user_message("hi"))
DOWN = HttpError(529, None, "")
LIMITED = HttpError(429, None, "")
REFUSED = HttpError(401, None, "")
UNKNOWN = HttpError(404, None, "")
INVALID = HttpError(400, None, "")
BROKEN = StreamTransient("cut")


def requesting(seconds: float, status: int = 529) -> HttpError:
    return HttpError(status, seconds, "")


def with_keys(*key_counts: int, **options: Any) -> Roster:
    """Targets a, b and c with these numbers of keys. The variable A_KEY_0 contains secret-a-0."""
    targets = [
        Target(
            name,
            f"model-{name}",
            "http://127.0.0.1:1",
            credentials=tuple(
                Credential("x-api-key", Secret(f"secret-{name}-{key}"), f"{name.upper()}_KEY_{key}")
                for key in range(count)
            ),
        )
        for name, count in zip("abc", key_counts, strict=False)
    ]
    return Roster(targets, system="system", **options)


class Asking(RecordingEvents):
    """Turns of a run with scripted answers, and the events that they emit. Each is one use of the retry loop."""

    def __init__(
        self,
        roster: Roster,
        *script: Answer | BaseException,
        policy: RetryPolicy | None = None,
        waiter: FakeWaiter | None = None,
        budget: Budget | None = None,
    ) -> None:
        super().__init__()
        self.client = ScriptedClient(script)
        self.waiter = waiter or FakeWaiter()
        self.controls = RunControls()
        self.log = new_log()
        self.site = CallSite(
            roster,
            policy or standard(),
            self.controls,
            budget or Budget(),
            self.client,
            self.waiter,
            self.waiter.clock,
            self,
            self.log,
        )
        self.requests = TurnRequests(0)

    def emit(self, event: Event) -> None:
        self.site.budget.emit(event)
        super().emit(event)

    def turn(self) -> Answer:
        self.requests = TurnRequests(self.requests.turn + 1)
        return send_with_retry(CONVERSATION, self.site, self.requests)

    def fails(self, kind: type[BaseException] = AgentError) -> BaseException:
        with pytest.raises(kind) as caught:
            self.turn()
        return caught.value

    @property
    def names(self) -> str:
        return "".join(name for name, _ in self.client.asked)

    @property
    def told(self) -> list[Event]:
        """The events of the retries."""
        return [event for event in self.events if not isinstance(event, RequestSent | AttemptEnded)]

    @property
    def closings(self) -> list[RetryRecovered | RetryExhausted]:
        return [event for event in self.events if isinstance(event, RetryRecovered | RetryExhausted)]


def two() -> Roster:
    return with_keys(1, 1)


# --- Requests and waits


def test_five_calls_at_most_with_identical_bytes_and_the_waits_of_the_schedule() -> None:
    asking = Asking(with_keys(1), *[DOWN] * 5)
    asking.fails(HttpError)
    [body] = set(asking.client.bodies)
    assert body == b"".join(asking.site.roster.body_for(CONVERSATION, 32_000).pieces())
    assert (len(asking.client.bodies), asking.waiter.sleeps) == (5, [2, 4, 8, 16])
    assert [event.attempt for event in asking.of(RetryScheduled)] == [1, 2, 3, 4]
    assert asking.closings == [RetryExhausted(4, 30, str(DOWN), turn=1, attempt=5)]


ERRORS = st.one_of(
    st.builds(HttpError, st.integers(300, 599), st.one_of(st.none(), st.floats(0, 1e6)), st.just("")),
    st.builds(StreamTransient, st.just("cut")),
    st.builds(StreamParse, st.just("odd")),
    st.builds(Api, st.sampled_from(NetworkCause)),
)


@given(st.lists(ERRORS, max_size=8), st.sampled_from([standard(), off(), patient()]))
@example([], standard())
@example([DOWN, BROKEN, Api(NetworkCause.TIMEOUT)], standard())
@example([requesting(0)], standard())
@example([DOWN], off())
@example([DOWN] * 20, patient())
@example([INVALID], standard())
@example([StreamParse("odd")], standard())
@example([Api(NetworkCause.CERTIFICATE)], standard())
@example([DOWN, REFUSED], standard())
def test_requests_and_waits_are_exactly_what_the_pure_policy_says(errors, policy) -> None:
    asking = Asking(roster_of(), *errors, HELLO, policy=policy)
    expected: list[float] = []
    for error in errors:
        if classify_error(error) is ErrorClass.PERMANENT:
            break
        requested_s = error.retry_after if isinstance(error, HttpError) else None
        decision = policy.next_wait(len(expected) + 1, requested_s, sum(expected))
        if not isinstance(decision, Wait):
            break
        expected.append(decision.seconds)
    answers = len(expected) == len(errors)
    with suppress(AgentError):
        assert (asking.turn() is HELLO) is answers
    assert (asking.waiter.sleeps, len(asking.client.bodies)) == (expected, len(expected) + 1)
    closing = RetryRecovered if answers else RetryExhausted
    assert [type(event) for event in asking.closings] == ([closing] if expected else [])


@every_row(
    ("script", "policy"),
    [
        ([DOWN, HELLO], standard()),
        ([DOWN] * 5, standard()),
        ([DOWN, INVALID], standard()),
        ([DOWN, SignalReceived(2)], standard()),
        ([DOWN, RetryAborted()], standard()),
        ([DOWN, requesting(500)], custom(4, 2, 100)),
    ],
)
def test_each_chain_counts_from_one_however_the_one_before_it_ended(script, policy) -> None:
    asking = Asking(with_keys(1), *script, DOWN, DOWN, HELLO, policy=policy)
    with suppress(AgentError, Interrupted):
        asking.turn()
    asking.waiter.sleeps.clear()
    assert asking.turn() is HELLO
    assert asking.waiter.sleeps == [2, 4]
    assert [event.attempt for event in asking.of(RetryScheduled)][-2:] == [1, 2]
    assert asking.of(RetryRecovered)[-1].retries == 2


@every_row(("key_counts", "took_s"), [((1,), 3600), ((1, 1), 0), ((2, 1, 1), 0)])
def test_patient_gives_up_after_21_waits_of_27105_s_whatever_the_requests_take(key_counts, took_s) -> None:
    requests = 22 * len(key_counts)  # an overload is of the target, and not of its key
    asking = Asking(with_keys(*key_counts), *[DOWN] * requests, policy=patient())
    asking.client.takes(took_s, asking.waiter.clock)
    asking.fails(HttpError)
    assert (len(asking.waiter.sleeps), sum(asking.waiter.sleeps)) == (21, 27_105)
    assert len(asking.client.bodies) == requests
    assert asking.waiter.clock.seconds == requests * took_s + 27_105


@every_row("models", [["a"], ["a", "b"]])
def test_patient_ends_at_once_where_the_server_asks_for_more_than_is_left_and_names_the_moment(
    models,
) -> None:
    played = Played(*[requesting(40_000, 429)] * 2, models=models, policy=patient())
    assert (played.ended.outcome, played.ended.exit_code) == (Outcome.API_UNAVAILABLE, 75)
    assert (played.waiter.sleeps, played.calls_made) == ([], len(models))
    assert played.ended.retry_after_s == 40_000
    assert played.ended.hints == (
        "The server asks ralph to wait for 11 h 6 min 40 s: try again after 2026-11-21 23:06 UTC.",
    )
    assert (
        "the server asks for a wait of 11h6m40s, and --retry patient has 8h of its 8h left"
        in played.events.of(Notice)[-1].text
    )


def test_max_tokens_stay_fixed_within_a_chain_and_a_retry_that_cannot_be_paid_so_is_not_made() -> None:
    """At $1 a token, $6,000 allow an answer of 6,000 tokens. The answer breaks off after 1,500, and a retry with
    only 4,500 would be another request.
    """
    priced = Target("a", "model-a", "http://127.0.0.1:1", price=Price(0.0, 1_000_000.0, 0.0, 0.0, 0.0))
    cut = StreamTransient("cut")
    cut.tokens = TokenUsage(output=1_500)
    asking = Asking(Roster([priced], system="Be good."), cut, HELLO, budget=Budget(6_000))
    asking.fails(BudgetSpent)
    [body] = asking.client.bodies
    assert b'"max_tokens":6000' in body
    assert asking.waiter.sleeps == []


# --- Moving on


def test_a_change_of_targets_is_told_step_by_step_and_once() -> None:
    asking = Asking(two(), DOWN, HELLO, HELLO, HELLO)
    asking.turn()
    asking.turn()
    asking.waiter.clock.seconds = 100
    asking.turn()
    assert asking.names == "abba"
    assert asking.told == [
        ModelFallback("a", "b", "overloaded", turn=1, attempt=1),
        ModelFallbackSucceeded("b", turn=1, attempt=2),
        ModelFallbackRecovered("a", turn=3, attempt=1),
    ]


def test_a_chain_is_closed_before_the_change_of_targets_is_confirmed() -> None:
    asking = Asking(two(), DOWN, BROKEN, DOWN, HELLO)
    assert asking.turn() is HELLO
    assert asking.names == "abab"
    assert [type(event) for event in asking.told] == [
        *(ModelFallback, RetryScheduled, ModelFallback, ResponseRestarted),
        *(ModelFallback, RetryRecovered, ModelFallbackSucceeded),
    ]
    [scheduled] = asking.of(RetryScheduled)
    assert (scheduled.target, scheduled.attempt, scheduled.turn) == ("b", 1, 1)
    assert asking.closings == [RetryRecovered(1, 2, turn=1, attempt=4)]
    asked = asking.requests
    assert (asked.turn, asked.attempts, asked.took_s) == (1, 4, 2.0)


def test_every_attempt_is_told_with_whom_it_asked_and_what_came_of_it() -> None:
    asking = Asking(two(), DOWN, BROKEN, HELLO)
    asking.client.takes(3, asking.waiter.clock)
    asking.turn()
    attempts = asking.of(AttemptEnded)
    assert [(one.latency_s, one.error) for one in attempts] == [(3, str(DOWN)), (3, str(BROKEN)), (3, None)]
    assert [(one.target, one.model, one.attempt, one.status, one.kind, one.wait_s) for one in attempts] == [
        ("a", "model-a", 1, 529, "overloaded", 0),
        ("b", "model-b", 2, None, "stream", 2),
        ("a", "model-a", 3, None, None, 0),
    ]


def test_another_key_is_told_by_its_variable_and_that_a_target_is_left_out_is_told_once() -> None:
    asking = Asking(with_keys(2, 1), REFUSED, REFUSED, HELLO, HELLO)
    asking.turn()
    asking.turn()
    assert asking.client.asked == [("a", 0), ("a", 1), ("b", 0), ("b", 0)]
    assert [notice.text for notice in asking.of(Notice)] == [
        "a: using the key of A_KEY_1 instead of A_KEY_0 (auth)",
        "a is not used for the rest of this task (auth)",
    ]
    assert "secret" not in repr(asking.events)


@every_row("strategy", ["fallback", "round_robin"])
@every_row(
    ("models", "all_requested", "asked"),
    [
        (["a"], ["other"], ["other", "other"]),
        (["a"], ["other", "one more"], ["one more", "one more"]),
        (["a"], ["other", None], ["a", "a"]),
        (["a", "b"], ["other"], ["other", "b"]),
        (["a", "b"], ["other", "b"], ["b", "a"]),
    ],
)
def test_a_model_that_was_requested_takes_the_place_of_the_first(
    strategy, models, all_requested, asked
) -> None:
    """A driver that replaces a model has not asked for the old model as a fallback."""
    roster = roster_of(*models, strategy=strategy, can_grow=True)
    for requested in all_requested:
        roster.prefer(requested)
    asking = Asking(roster, DOWN, DOWN, policy=custom(1, 1, 0) if len(models) == 1 else off())
    asking.fails(HttpError)
    assert [name for name, _ in asking.client.asked] == asked


# --- Ends


def test_the_conversation_is_recovered_on_the_final_failure_alone() -> None:
    asking = Asking(with_keys(1), DOWN, HELLO, *[DOWN] * 5)
    log, roster = asking.log, asking.site.roster
    log.record(run_record(roster.first_shape, "now", 1, target=roster.first.name))
    log.record(user_record(user_message("hi"), task=1), assistant_record(answer(call("a"))))
    asking.turn()
    assert log.session.conversation.messages[-1].role == "assistant"
    asking.fails(HttpError)
    assert log.session.conversation.messages[-1].tool_result_ids == ("a",)


@every_row("at_s", [0.5, 3, 29.5])
def test_a_signal_in_a_wait_closes_the_chain(at_s) -> None:
    asking = Asking(two(), *[DOWN] * 10, waiter=FakeWaiter(interrupt_at_s=at_s))
    stop = asking.fails(SignalReceived)
    assert stop.__cause__ is DOWN
    assert [type(event) for event in asking.closings] == [RetryExhausted]
    assert asking.waiter.clock.seconds == at_s


def test_an_abort_in_a_wait_closes_the_chain() -> None:
    class Aborting(FakeWaiter):
        def sleep(self, seconds: float, *, waiting_for: str) -> None:
            raise RetryAborted

    asking = Asking(two(), DOWN, DOWN, waiter=Aborting())
    asking.fails(RetryAborted)
    assert asking.closings == [RetryExhausted(0, 0, "Retry cancelled", turn=1, attempt=2)]


def test_retry_that_is_switched_off_in_a_chain_ends_it_after_its_round() -> None:
    class SwitchingOff(FakeWaiter):
        def sleep(self, seconds: float, *, waiting_for: str) -> None:
            asking.controls.auto_retry = False
            super().sleep(seconds, waiting_for=waiting_for)

    asking = Asking(two(), *[DOWN] * 10, waiter=SwitchingOff())
    asking.fails(HttpError)
    assert (asking.names, [type(event) for event in asking.closings]) == ("abab", [RetryExhausted])


SCHEDULED = RetryScheduled(1, 4, 2.0, 529, "HttpError", "overloaded", "529 overloaded")
RECOVERED = RetryRecovered(1, 2.0)
SUCCEEDED = ModelFallbackSucceeded("spare", 1, 2)


@every_row(
    ("deaf_for", "closes"),
    [
        pytest.param(SCHEDULED, [], id="it was never told of"),
        pytest.param(RECOVERED, [RECOVERED], id="it is closed already"),
        pytest.param(SUCCEEDED, [RECOVERED], id="it was closed before"),
    ],
)
def test_a_chain_that_cannot_be_told_of_is_closed_no_second_time(deaf_for, closes) -> None:
    class Deaf(Asking):
        def emit(self, event: Event) -> None:
            super().emit(event)
            if event is deaf_for:
                raise OSError

    asking = Deaf(two())
    with pytest.raises(OSError), Chain(asking.site, TurnRequests(1)) as chain:  # noqa: PT011, PT012 - the fake's own
        state, _ = chain.begin()
        chain.publish(state, SCHEDULED)
        chain.publish(state, RECOVERED, SUCCEEDED)
    assert asking.closings == closes


FAILURES = st.sampled_from(
    [
        *(DOWN, LIMITED, REFUSED, UNKNOWN, BROKEN, requesting(50), requesting(0, 429), INVALID),
        *(StreamParse("odd"), Json("x"), Api(NetworkCause.REFUSED), Api(NetworkCause.CERTIFICATE)),
    ]
)


@given(
    st.lists(st.integers(1, 2), min_size=1, max_size=3),
    st.sampled_from(["fallback", "round_robin"]),
    st.booleans(),
    st.sampled_from([standard(), off(), patient(), custom(2, 1, 20)]),
    st.lists(st.lists(FAILURES, max_size=12), max_size=4),
)
@example([1, 1], "fallback", True, standard(), [[DOWN]])
@example([1, 1], "fallback", True, standard(), [[BROKEN]])
@example([1], "fallback", True, standard(), [[DOWN] * 5])
@example([1], "fallback", True, custom(2, 1, 20), [[DOWN, requesting(50)]])
def test_every_turn_closes_what_it_opened_whatever_fails(
    key_counts, strategy, returns, policy, turns
) -> None:
    roster = with_keys(*key_counts, strategy=strategy, returns=returns)
    for errors in turns:
        asking = Asking(roster, *errors, HELLO, policy=policy)
        with suppress(AgentError):
            asking.turn()
        asked = len(asking.client.asked)
        assert [one.attempt for one in asking.of(AttemptEnded)] == list(range(1, asked + 1))
        retries = len(asking.of(RetryScheduled))
        assert [one.retries for one in asking.closings] == ([retries] if retries else [])
        assert len(asking.waiter.sleeps) == retries, "to move on costs no wait"
        assert sum(asking.waiter.sleeps) == sum(one.total_wait_s for one in asking.closings)
        for change in asking.of(ModelFallback):
            assert change.from_target != change.to_target
            assert change.attempt < asked, "who is moved on to is asked"
