"""The retry loop with several targets and keys: whom it asks, which events it emits in which order, and how a chain
ends.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from ralph.agent.task import AgentLoop
from ralph.conversation.messages import Conversation, user_message
from ralph.conversation.target import Target
from ralph.permissions.gate import CallGate
from ralph.retry.backoff import RetryPolicy, custom, off, patient, standard
from ralph.retry.call_site import CallSite, TurnRequests
from ralph.retry.loop import send_with_retry
from ralph.retry.roster import Roster
from ralph.values.classify import outcome_of
from ralph.values.controls import RunControls
from ralph.values.credentials import Credential, Secret
from ralph.values.errors import AgentError, Api, HttpError, Json, NetworkCause, StreamParse, StreamTransient
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
    RunEnded,
)
from ralph.values.limits import Budget
from ralph.values.outcome import Outcome
from ralph.values.ports import Interrupted, RetryAborted, SignalReceived
from tests.fakes import (
    FakeJournal,
    FakeToolbox,
    FakeWaiter,
    RecordingEvents,
    ScriptedClient,
    answer,
    new_log,
    roster_of,
    text,
)
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.conversation.messages import RequestBody
    from ralph.values.answer import Answer
    from ralph.values.events import Event
    from ralph.values.ports import Events

HELLO = answer(text("hello"))
CONVERSATION = Conversation.start(roster_of().first_shape).plus(user_message("hi"))
DOWN = HttpError(529, None, "")
LIMITED = HttpError(429, None, "")
REFUSED = HttpError(401, None, "")
UNKNOWN = HttpError(404, None, "")
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


class Asking:
    """Turns of a run with scripted answers. Each is one use of the retry loop."""

    def __init__(
        self,
        roster: Roster,
        *script: Answer | BaseException,
        policy: RetryPolicy | None = None,
        interrupt_at_s: float | None = None,
        run_ends_s: float = math.inf,
    ) -> None:
        self.roster = roster
        self.client = ScriptedClient(script)
        self.waiter = FakeWaiter(interrupt_at_s=interrupt_at_s, run_ends_s=run_ends_s)
        self.events = RecordingEvents()
        self.controls = RunControls()
        self.site = CallSite(
            roster,
            policy or standard(),
            self.controls,
            Budget(),
            self.client,
            self.waiter,
            self.waiter.clock,
            self.events,
            new_log(),
        )
        self.turns = 0
        self.requests = TurnRequests(0)

    def turn(self) -> Answer:
        self.turns += 1
        self.requests = TurnRequests(self.turns)
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
        return [event for event in self.events.events if not isinstance(event, RequestSent | AttemptEnded)]

    @property
    def notices(self) -> list[str]:
        return [notice.text for notice in self.events.of(Notice)]

    @property
    def closings(self) -> list[RetryRecovered | RetryExhausted]:
        events = self.events.events
        return [event for event in events if isinstance(event, RetryRecovered | RetryExhausted)]

    def assert_chain_closed_once(self) -> RetryRecovered | RetryExhausted:
        [closed] = self.closings
        return closed


def two() -> Roster:
    return with_keys(1, 1)


# --- Moving on


@every_row(
    "error",
    [DOWN, LIMITED, REFUSED, UNKNOWN, BROKEN, StreamParse("odd"), Json("x"), Api(NetworkCause.REFUSED)],
)
def test_moving_on_costs_no_wait_and_opens_no_chain(error) -> None:
    asking = Asking(two(), error, HELLO)
    assert asking.turn() is HELLO
    assert asking.names == "ab"
    assert asking.waiter.sleeps == []
    kinds = [type(event) for event in asking.told]
    assert {*kinds} <= {ModelFallback, ModelFallbackSucceeded, Notice, ResponseRestarted}
    assert kinds.count(ResponseRestarted) == (error is BROKEN), "its text comes again from another target"


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
    asking.turn()
    assert asking.names == "abab"
    assert [type(event) for event in asking.told] == [
        *(ModelFallback, RetryScheduled, ModelFallback, ResponseRestarted),
        *(ModelFallback, RetryRecovered, ModelFallbackSucceeded),
    ]
    [scheduled] = asking.events.of(RetryScheduled)
    assert (scheduled.target, scheduled.attempt, scheduled.turn) == ("b", 1, 1)
    assert asking.events.of(RetryRecovered) == [RetryRecovered(1, 2, turn=1, attempt=4)]
    asked = asking.requests
    assert (asked.turn, asked.attempts, asked.took_s) == (1, 4, 2.0)


def test_a_retry_is_announced_before_its_sleep() -> None:
    asking = Asking(two(), DOWN, DOWN, interrupt_at_s=1)
    asking.fails(Interrupted)
    assert len(asking.events.of(RetryScheduled)) == 1
    assert asking.waiter.sleeps == [2]


def test_every_attempt_is_told_with_whom_it_asked_and_what_came_of_it() -> None:
    asking = Asking(two(), DOWN, BROKEN, HELLO)
    asking.client.takes(3, asking.waiter.clock)
    asking.turn()
    attempts = asking.events.of(AttemptEnded)
    assert [(one.latency_s, one.error) for one in attempts] == [(3, str(DOWN)), (3, str(BROKEN)), (3, None)]
    assert [(one.target, one.model, one.attempt, one.status, one.kind, one.wait_s) for one in attempts] == [
        ("a", "model-a", 1, 529, "overloaded", 0),
        ("b", "model-b", 2, None, "stream", 2),
        ("a", "model-a", 3, None, None, 0),
    ]


def test_another_key_is_told_by_its_variable_and_never_by_its_value() -> None:
    asking = Asking(with_keys(2, 1), REFUSED, HELLO)
    asking.turn()
    assert asking.client.asked == [("a", 0), ("a", 1)]
    assert asking.notices == ["a: using the key of A_KEY_1 instead of A_KEY_0 (auth)"]
    assert "secret" not in repr(asking.events.events)


def test_at_a_spend_limit_the_next_key_is_asked_at_once_whatever_the_server_advises() -> None:
    spent = HttpError(429, 60, "", error_code="enforced_spend_limit_reached", should_retry=True)
    asking = Asking(with_keys(2, 1), spent, HELLO)
    asking.turn()
    assert asking.client.asked == [("a", 0), ("a", 1)]
    assert asking.waiter.sleeps == []
    assert asking.closings == []
    alone = Asking(with_keys(1), spent)
    assert outcome_of(alone.fails(HttpError)) is Outcome.AUTH  # type: ignore[arg-type]
    assert alone.waiter.sleeps == []


def test_that_a_target_is_left_out_is_told_once() -> None:
    asking = Asking(with_keys(2, 1), REFUSED, REFUSED, HELLO, HELLO)
    asking.turn()
    asking.turn()
    assert asking.client.asked == [("a", 0), ("a", 1), ("b", 0), ("b", 0)]
    assert [text for text in asking.notices if "left out" in text] == [
        "a is left out for the rest of this task (auth)"
    ]


def test_a_model_that_does_not_exist_is_asked_once_in_many_turns() -> None:
    asking = Asking(two(), UNKNOWN, *[HELLO] * 3)
    for _ in range(3):
        asking.turn()
        asking.waiter.clock.seconds += 1_000  # longer than any cooldown
    assert asking.names == "abbb"


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


# --- A chain is closed exactly once


def test_exhaustion_closes_the_chain_with_all_its_rounds() -> None:
    asking = Asking(two(), *[DOWN] * 10)
    asking.fails(HttpError)
    assert asking.names == "ab" * 5
    closed = asking.assert_chain_closed_once()
    assert closed == RetryExhausted(4, 30, str(DOWN), turn=1, attempt=10)


@every_row("at_s", [0.5, 3, 29.5])
def test_a_signal_in_a_wait_closes_the_chain(at_s) -> None:
    asking = Asking(two(), *[DOWN] * 10, interrupt_at_s=at_s)
    stop = asking.fails(SignalReceived)
    assert stop.__cause__ is DOWN
    assert isinstance(asking.assert_chain_closed_once(), RetryExhausted)
    assert asking.waiter.clock.seconds == at_s


def test_an_abort_in_a_wait_closes_the_chain() -> None:
    asking = Asking(two(), DOWN, DOWN)

    class Aborting(FakeWaiter):
        def sleep(self, seconds: float, *, waiting_for: str) -> None:
            raise RetryAborted

    asking.site = replace(asking.site, waiter=Aborting())
    asking.fails(RetryAborted)
    closed = asking.assert_chain_closed_once()
    assert closed == RetryExhausted(0, 0, "Retry cancelled", turn=1, attempt=2)


def test_retry_that_is_switched_off_in_a_chain_ends_it_after_its_round() -> None:
    asking = Asking(two(), *[DOWN] * 10)

    class SwitchingOff(FakeWaiter):
        def sleep(self, seconds: float, *, waiting_for: str) -> None:
            asking.controls.auto_retry = False
            super().sleep(seconds, waiting_for=waiting_for)

    asking.site = replace(asking.site, waiter=SwitchingOff(asking.waiter.clock))
    asking.fails(HttpError)
    assert asking.names == "abab"
    assert isinstance(asking.assert_chain_closed_once(), RetryExhausted)


FAILURES = st.sampled_from(
    [
        *(
            DOWN,
            LIMITED,
            REFUSED,
            UNKNOWN,
            BROKEN,
            requesting(50),
            requesting(0, 429),
            HttpError(400, None, ""),
        ),
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
@example([1], "fallback", True, standard(), [[DOWN] * 5])
@example([1], "fallback", True, custom(2, 1, 20), [[DOWN, requesting(50)]])
def test_every_turn_closes_what_it_opened_whatever_fails(
    key_counts: list[int], strategy: str, returns: bool, policy: RetryPolicy, turns: list[list[AgentError]]
) -> None:
    roster = with_keys(*key_counts, strategy=strategy, returns=returns)
    for errors in turns:
        asking = Asking(roster, *errors, HELLO, policy=policy)
        with suppress(AgentError):
            asking.turn()
        asked = len(asking.client.asked)
        assert [one.attempt for one in asking.events.of(AttemptEnded)] == list(range(1, asked + 1))
        retries = len(asking.events.of(RetryScheduled))
        closed = asking.closings
        assert [one.retries for one in closed] == ([retries] if retries else [])
        assert sum(asking.waiter.sleeps) == sum(one.total_wait_s for one in closed)
        for change in asking.events.of(ModelFallback):
            assert change.from_target != change.to_target
            assert change.attempt < asked, "who is moved on to is asked"


# --- How it ends


def test_over_max_delay_it_moves_on_and_with_nobody_left_it_ends_at_once_and_says_so() -> None:
    asking = Asking(two(), requesting(101), requesting(500), policy=custom(4, 1, 100))
    asking.fails(HttpError)
    assert asking.names == "ab"
    assert asking.waiter.sleeps == []
    assert asking.notices == ["giving up: the wait of 101s is over the maximum of 100s (retry.max_delay_s)"]
    alone = Asking(with_keys(1), requesting(101), policy=custom(4, 1, 100))
    alone.fails(HttpError)
    assert alone.names == "a"
    assert alone.notices == asking.notices


# --- Patient, whole, on a clock that is told the time


class Recovering:
    """A client whose targets all fail until a moment on the run's clock."""

    def __init__(self, waiter: FakeWaiter, until_s: float, error: AgentError) -> None:
        self._waiter = waiter
        self._until_s = until_s
        self._error = error
        self.calls = 0

    def describe_model(self, _target: Target, _key: int) -> None:
        """There is no description of any model."""

    def send_message(self, target: Target, key: int, body: RequestBody, events: Events, **how: Any) -> Answer:
        self.calls += 1
        if self._waiter.clock.seconds < self._until_s:
            raise self._error
        return HELLO


class Night:
    """A whole run with the `patient` policy."""

    def __init__(self, roster: Roster, until_s: float, error: AgentError) -> None:
        self.waiter = FakeWaiter()
        self.client = Recovering(self.waiter, until_s, error)
        self.events = RecordingEvents()
        run = AgentLoop(
            roster,
            patient(),
            client=self.client,
            toolbox=FakeToolbox(),
            waiter=self.waiter,
            clock=self.waiter.clock,
            journal=FakeJournal.of_run(roster.first_shape),
            events=self.events,
            gate=CallGate(RunControls(), self.events),
        )
        self.ended: RunEnded = run.run("the task")


ROSTERS: list[Sequence[int]] = [(1,), (1, 1), (2, 1, 1)]


@every_row("key_counts", ROSTERS)
def test_patient_sleeps_21_times_and_27105_s_and_gives_up_then(key_counts) -> None:
    night = Night(with_keys(*key_counts), math.inf, DOWN)
    assert night.ended.outcome is Outcome.API_UNAVAILABLE
    assert (len(night.waiter.sleeps), sum(night.waiter.sleeps)) == (21, 27_105)
    assert (night.ended.retries, night.ended.waited_s) == (21, 27_105)
    overload_is_of_the_target = len(key_counts)
    assert night.client.calls == 22 * overload_is_of_the_target


@every_row("key_counts", [(1,), (1, 1)])
def test_patient_ends_at_once_where_the_server_asks_for_more_than_is_left_and_names_the_moment(
    key_counts,
) -> None:
    night = Night(with_keys(*key_counts), math.inf, requesting(40_000, 429))
    assert (night.ended.outcome, night.ended.exit_code) == (Outcome.API_UNAVAILABLE, 75)
    assert night.waiter.sleeps == []
    assert night.client.calls == len(key_counts)
    assert night.ended.retry_after_s == 40_000
    assert night.ended.hints == (
        "The server asks to be left alone for 11 h 6 min 40 s: come back after 2026-11-21 23:06 UTC.",
    )
    assert (
        "the server asks for a wait of 11h6m40s, and --retry patient has 8h of its 8h left"
        in night.events.of(Notice)[-1].text
    )
