"""The pure step of the retry loop, from state and error to decision and events, and promises about several
steps.
"""

from __future__ import annotations

import pytest

from ralph.conversation.target import Target
from ralph.retry.backoff import GiveUp, Wait, custom, off, patient, standard
from ralph.retry.step import (
    RetryState,
    Situation,
    TurnRequests,
    answered,
    asked,
    begin_chain,
    raised_at_end,
    step,
    waited,
)
from ralph.retry.targets import CANNOT_HELP, REFUSED_BY_ALL, MoveOn, Route, Rules, TargetsState
from ralph.values.credentials import Credential, Secret
from ralph.values.errors import (
    AgentError,
    Api,
    HttpError,
    Json,
    NetworkCause,
    StreamTransient,
    classify_error,
)
from ralph.values.events import (
    AttemptEnded,
    ModelFallback,
    Notice,
    ResponseRestarted,
    RetryScheduled,
)
from tests.fakes import (
    answer,
    text,
)
from tests.fakes.played import Played
from tests.rows import every_row

DOWN = HttpError(529, None, "")
REFUSED = HttpError(401, None, "")
INVALID = HttpError(400, None, "bad")
FORCED = HttpError(400, None, "", should_retry=True)
BROKEN = StreamTransient("cut")
BROKEN_LIMITED = StreamTransient("limited", error_type="rate_limit_error")
HELLO = answer(text("hello"))


def target(name: str, keys: int = 1) -> Target:
    credentials = tuple(
        Credential("x-api-key", Secret(f"secret-{key}"), f"{name.upper()}_KEY_{key}") for key in range(keys)
    )
    return Target(name, f"model-{name}", "http://127.0.0.1:1", credentials=credentials)


def asking(*key_counts: int) -> RetryState:
    """The state while the first request of a chain is being sent."""
    targets = tuple(target(name, keys) for name, keys in zip("abc", key_counts, strict=False))
    state, events = begin_chain(
        TargetsState(), Rules(key_counts), targets, requests=TurnRequests(1), now_s=0.0
    )
    assert events == ()
    return asked(state, 1_000)


def after(state: RetryState, *errors: AgentError) -> RetryState:
    """The state while the request after these errors is being sent. Retries were waited for, and requests take no
    time.
    """
    for error in errors:
        situation = Situation(state.waited_s, standard())
        state, decision, _ = step(state, error, classify_error(error), situation)
        if isinstance(decision, Wait):
            state = waited(state, decision)
        state = asked(state, 1_000)
    return state


NO, OTHER = (HttpError(500, None, "", message=text) for text in ("no", "other"))


@every_row(
    ("errors", "may_be_too_large", "ends"),
    [
        ([NO, NO], True, True),
        ([OTHER, NO, NO], True, True),
        ([NO, NO], False, False),
        ([NO, OTHER], True, False),
        ([NO], True, False),
        ([NO, DOWN, NO], True, False),
    ],
)
def test_the_same_text_twice_ends_the_chain_of_a_request_that_may_be_too_large(
    errors, may_be_too_large, ends
) -> None:
    *before, error = errors
    state = after(asking(1), *before)
    situation = Situation(0.0, patient(), may_be_too_large=may_be_too_large)
    state, decision, events = step(state, error, classify_error(error), situation)
    assert isinstance(decision, GiveUp if ends else Wait)
    assert [type(event) for event in events] == [AttemptEnded, *([] if ends else [RetryScheduled])]
    if isinstance(decision, GiveUp):
        assert raised_at_end(state, decision) is error
        assert errors[-1].may_be_about_size


TOO_LONG = "the wait of 90s is over the maximum of 30s (retry.max_delay_s)"
NO_TIME = "the time limit (--max-time) leaves no time to wait 2s"
RETRY_IS_OFF = GiveUp("retry is off")
TO_B = ModelFallback("a", "b", "overloaded", turn=1, attempt=1)
TO_B_BROKEN = ModelFallback("a", "b", "stream", turn=1, attempt=1)
BROKEN_KEY = Notice("a: using the key of A_KEY_1 instead of A_KEY_0 (rate_limit)")
OTHER_KEY = Notice("a: using the key of A_KEY_1 instead of A_KEY_0 (auth)")


@every_row(
    ("keys", "error", "policy", "decision", "events"),
    [
        pytest.param([1], DOWN, standard(), Wait(2.0), [RetryScheduled], id="a retry"),
        pytest.param([1], HttpError(529, 7, ""), standard(), Wait(7, True), [RetryScheduled], id="its wait"),
        pytest.param([1], FORCED, standard(), Wait(2.0), [RetryScheduled], id="400 to be retried"),
        pytest.param([1], INVALID, standard(), REFUSED_BY_ALL, [], id="an invalid request"),
        pytest.param([1], REFUSED, standard(), CANNOT_HELP, [], id="nobody left"),
        pytest.param([1], Json("x"), standard(), CANNOT_HELP, [], id="damaged"),
        pytest.param([1], DOWN, off(), RETRY_IS_OFF, [], id="off"),
        pytest.param([1, 1], DOWN, off(), MoveOn(), [TO_B], id="the next target"),
        pytest.param([2, 1], REFUSED, off(), MoveOn(), [OTHER_KEY], id="the next key"),
        pytest.param([1], BROKEN, standard(), Wait(2.0), [RetryScheduled, ResponseRestarted], id="broken"),
        pytest.param([1, 1], BROKEN, off(), MoveOn(), [TO_B_BROKEN, ResponseRestarted], id="broken: target"),
        pytest.param([2], BROKEN_LIMITED, off(), MoveOn(), [BROKEN_KEY, ResponseRestarted], id="broken: key"),
        pytest.param([1], BROKEN, off(), RETRY_IS_OFF, [], id="broken, and no retry"),
        pytest.param(
            *([1], HttpError(529, 90, ""), custom(3, 1, 30)),
            *(GiveUp(TOO_LONG, is_early=True), [Notice(f"giving up: {TOO_LONG}")]),
            id="too long a wait",
        ),
    ],
)
def test_what_follows_a_first_error(keys, error, policy, decision, events) -> None:
    state = asking(*keys)
    following, decided, (ended, *told) = step(
        state, error, classify_error(error), Situation(0.5, policy, 0.5)
    )
    assert decided == decision
    assert isinstance(ended, AttemptEnded)
    assert (ended.attempt, ended.target, ended.latency_s, ended.error) == (1, "a", 0.5, str(error))
    assert [event if isinstance(expected, Notice | ModelFallback) else type(event) for event, expected in
            zip(told, events, strict=True)] == events  # fmt: skip
    assert following.last_error is error
    assert state.last_error is None, "the state before is a value"


@every_row(("time_left_s", "decision"), [(2.1, Wait(2.0)), (2, GiveUp(NO_TIME, True, outlasts_run=True))])
def test_a_wait_ends_before_the_time_limit_or_is_none(time_left_s, decision) -> None:
    situation = Situation(0.5, standard(), time_left_s=time_left_s)
    _, decided, events = step(asking(1), DOWN, classify_error(DOWN), situation)
    assert decided == decision
    assert (events[-1] == Notice(f"giving up: {NO_TIME}")) is isinstance(decision, GiveUp)


def test_the_chain_ends_with_the_error_of_whoever_may_be_asked_first_and_points_to_them() -> None:
    sooner, later = HttpError(529, 30_000, ""), HttpError(529, 40_000, "")
    state = asking(1, 1)
    for error in (sooner, later):
        state, decision, _ = step(state, error, classify_error(error), Situation(0.0, patient()))
    assert isinstance(decision, GiveUp)
    assert raised_at_end(state, decision) is sooner
    assert state.target.name == "a"


def test_a_damaged_answer_is_what_ends_a_chain_that_nobody_else_can_help() -> None:
    damaged = Json("x")
    state = asking(1, 1)
    for error in (damaged, REFUSED):
        state, decision, _ = step(state, error, classify_error(error), Situation(0.0, standard()))
    assert decision == CANNOT_HELP
    assert state.last_error is damaged


def test_x_should_retry_over_a_400_cools_its_target_down_and_asks_the_next() -> None:
    state = after(asking(1, 1), FORCED)
    assert (state.target.name, state.choice.releases_s) == ("b", {Route(0): 2})


def test_the_cooldown_of_a_target_is_renewed_by_each_failure_of_its_own() -> None:
    state = after(asking(1), HttpError(529, 5, ""), HttpError(529, 10, ""))
    assert state.choice.releases_s == {Route(0): 15}, "at 0 it asked for 5 s, at 5 for 10 s"
    state = after(state, HttpError(529, 1, ""))
    assert state.choice.releases_s == {Route(0): 16}


def test_an_answer_clears_the_cooldown_of_whoever_gave_it_and_of_nobody_else() -> None:
    state, _ = answered(after(asking(1, 1), HttpError(529, 50, ""), HttpError(529, 40, "")))
    assert state.target.name == "b", "free first"
    assert state.choice.releases_s == {Route(0): 50}


def test_a_cooldown_is_recorded_at_a_retry_before_its_wait() -> None:
    """The record is written before the retry is announced, so that it survives a kill during the wait."""
    # b is asked again: its cooldown alone is news
    played = Played(HttpError(529, 100, ""), DOWN, models=["a", "b"], interrupt_at_s=1.0)
    cooling = [record.cooling for record in played.journal.records if record.kind == "target"]
    assert {"a", "b"} in [set(ends) for ends in cooling]


RESET = Api(NetworkCause.RESET)
LOST_IDLE = Api(NetworkCause.RESET)
LOST_IDLE.was_idle = True


@every_row(
    ("policy", "errors", "waits"),
    [
        (standard(), [LOST_IDLE, RESET, RESET, RESET, RESET], [0, 4, 8, 16]),
        (standard(), [LOST_IDLE] * 5, [0, 4, 8, 16]),
        (standard(), [RESET, LOST_IDLE, LOST_IDLE, RESET, RESET], [2, 0, 8, 16]),
        (standard(), [RESET, RESET, RESET, RESET, LOST_IDLE], [2, 4, 8, 16]),
        (patient(), [LOST_IDLE, LOST_IDLE, RESET], [0, 10, 30]),
        (custom(2, 5, 0), [LOST_IDLE, RESET, RESET], [0, 10]),
        (off(), [LOST_IDLE], []),
    ],
)
def test_it_is_a_counted_retry_without_a_wait_once_in_a_chain(policy, errors, waits) -> None:
    state, told = asking(1), []
    for error in errors:
        state, decision, _ = step(state, error, classify_error(error), Situation(state.waited_s, policy))
        if isinstance(decision, Wait):
            told.append(decision.seconds)
            state = asked(waited(state, decision), 1_000)
    assert told == waits
    assert isinstance(decision, GiveUp) is (len(waits) < len(errors))
    assert state.retries == len(waits)
