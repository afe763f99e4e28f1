"""The choice among targets and keys: every kind of failure, both strategies, and rules that always hold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ralph.retry.backoff import GiveUp, RetryPolicy, Wait, custom, off, patient, standard
from ralph.retry.targets import (
    CANNOT_HELP,
    Decision,
    Failure,
    MoveOn,
    Route,
    Rules,
    TargetsState,
    after_answer,
    after_failure,
    begin,
    failure_of,
)
from ralph.values.errors import (
    Api,
    FailureKind,
    HttpError,
    NetworkCause,
    StreamParse,
    StreamTransient,
    classify_error,
)
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE_LIMIT = Failure(FailureKind.RATE_LIMIT, is_transient=True, is_of_key=True)
OVERLOADED = Failure(FailureKind.OVERLOADED, is_transient=True)
BAD_KEY = Failure(FailureKind.AUTH, is_transient=False, is_of_key=True)
FORBIDDEN = Failure(FailureKind.AUTH, is_transient=False)
BROKE = Failure(FailureKind.BILLING, is_transient=False)
SPENT = Failure(FailureKind.USAGE_LIMIT, is_transient=False, is_of_key=True)
UNKNOWN_MODEL = Failure(FailureKind.NOT_FOUND, is_transient=False)
GARBLED = Failure(FailureKind.PROTOCOL, is_transient=False)
INVALID = Failure(FailureKind.INVALID_REQUEST, is_transient=False)
OVERFLOW = Failure(FailureKind.CONTEXT_OVERFLOW, is_transient=False)


def limited(requested_s: float) -> Failure:
    return replace(RATE_LIMIT, requested_s=requested_s)


class Choosing:
    """The choices of a run, one after the other. Every call takes a tenth of a second."""

    def __init__(self, *key_counts: int, policy: RetryPolicy | None = None, **rules: object) -> None:
        self.rules = Rules(key_counts, **rules)  # type: ignore[arg-type]
        self.policy = policy or standard()
        self.now_s = 0.0
        self.state = TargetsState()
        self.asked: list[Route] = []
        self.waits: list[float] = []

    def turn(self) -> Choosing:
        self.state = begin(self.state, self.rules, self.now_s)
        return self

    def fails(self, *failures: Failure) -> Decision:
        for failure in failures:
            self.asked.append(self.state.route)
            self.now_s += 0.1
            decision, self.state = after_failure(
                self.state, failure, rules=self.rules, policy=self.policy, now_s=self.now_s
            )
            if isinstance(decision, Wait):
                self.waits.append(decision.seconds)
                self.now_s += decision.seconds
        return decision

    def answers(self) -> str | None:
        self.asked.append(self.state.route)
        self.now_s += 0.1
        self.state, told = after_answer(self.state, self.rules)
        return told

    def fails_for_ever(self, failure: Failure) -> GiveUp:
        for _ in range(1000):
            decision = self.fails(failure)
            if isinstance(decision, GiveUp):
                return decision
        raise AssertionError("it never gives up")

    @property
    def targets(self) -> list[int]:
        return [route.target for route in self.asked]


# --- One table: what follows the first failure of the first key of the first target

STAYS, NEXT_KEY, NEXT_TARGET, ENDS = "same after a wait", "next key", "next target", "ends"

# A failure, and what follows it with one key, with one target of two keys, with two targets of one key each, and with
# two targets of two keys each (fallback, then round_robin).
TABLE = [
    (RATE_LIMIT, STAYS, NEXT_KEY, NEXT_TARGET, NEXT_KEY, NEXT_TARGET),
    (OVERLOADED, STAYS, STAYS, NEXT_TARGET, NEXT_TARGET, NEXT_TARGET),
    *(
        (Failure(kind, is_transient=True), STAYS, STAYS, NEXT_TARGET, NEXT_TARGET, NEXT_TARGET)
        for kind in (FailureKind.SERVER, FailureKind.TIMEOUT, FailureKind.NETWORK, FailureKind.STREAM)
    ),
    (SPENT, ENDS, NEXT_KEY, NEXT_TARGET, NEXT_KEY, NEXT_KEY),
    (BAD_KEY, ENDS, NEXT_KEY, NEXT_TARGET, NEXT_KEY, NEXT_KEY),
    (FORBIDDEN, ENDS, ENDS, NEXT_TARGET, NEXT_TARGET, NEXT_TARGET),
    (BROKE, ENDS, ENDS, NEXT_TARGET, NEXT_TARGET, NEXT_TARGET),
    (UNKNOWN_MODEL, ENDS, ENDS, NEXT_TARGET, NEXT_TARGET, NEXT_TARGET),
    (GARBLED, ENDS, ENDS, NEXT_TARGET, NEXT_TARGET, NEXT_TARGET),
    (INVALID, ENDS, ENDS, ENDS, ENDS, ENDS),
    (OVERFLOW, ENDS, ENDS, ENDS, ENDS, ENDS),
]


def outcome(choosing: Choosing, failure: Failure) -> str:
    decision = choosing.turn().fails(failure)
    if isinstance(decision, GiveUp):
        return ENDS
    before, after = choosing.asked[0], choosing.state.route
    if isinstance(decision, Wait):
        assert before == after
        return STAYS
    return NEXT_KEY if after == Route(before.target, before.key + 1) else NEXT_TARGET


def test_the_table_has_every_kind_of_failure() -> None:
    assert {failure.kind for failure, *_ in TABLE} == set(FailureKind)


@every_row(
    ("failure", "alone", "two_keys", "two_targets", "two_of_two", "in_rotation"),
    TABLE,
)
def test_what_follows_a_failure(failure, alone, two_keys, two_targets, two_of_two, in_rotation) -> None:
    for strategy in ("fallback", "round_robin"):
        assert outcome(Choosing(1, strategy=strategy), failure) == alone
        assert outcome(Choosing(1, 1, strategy=strategy), failure) == two_targets
        assert outcome(Choosing(1, 1, 1, strategy=strategy), failure) == two_targets
    assert (outcome(Choosing(2), failure), outcome(Choosing(2, 2), failure)) == (two_keys, two_of_two)
    assert outcome(Choosing(2, 2, strategy="round_robin"), failure) == in_rotation


@every_row(
    ("error", "failure"),
    [
        (HttpError(429, 7, ""), limited(7)),
        (HttpError(429, 7, "", should_retry=False), Failure(FailureKind.RATE_LIMIT, False, 7, True)),
        (HttpError(401, None, ""), BAD_KEY),
        (HttpError(403, None, ""), FORBIDDEN),
        (HttpError(407, None, ""), FORBIDDEN),
        (HttpError(402, None, ""), BROKE),
        (HttpError(400, None, "", error_code="enforced_spend_limit_reached"), SPENT),
        (
            HttpError(429, 60, "", error_code="enforced_spend_limit_reached", should_retry=True),
            replace(SPENT, requested_s=60),
        ),
        (StreamParse("no", "authentication_error"), BAD_KEY),
        (StreamTransient("cut"), Failure(FailureKind.STREAM, is_transient=True)),
        (Api(NetworkCause.CERTIFICATE), Failure(FailureKind.NETWORK, is_transient=False)),
        (HttpError(302, None, ""), GARBLED),
    ],
)
def test_what_an_error_means_for_choosing(error, failure) -> None:
    assert failure_of(error, classify_error(error)) == failure


# --- Rounds and their waits


SHORT = Failure(FailureKind.NETWORK, is_transient=True, is_of_machine=True)


@every_row(("strategy", "targets"), [("fallback", {0}), ("round_robin", {0, 1})])
def test_what_the_machine_lacks_is_waited_for_and_no_target_is_blamed(strategy, targets) -> None:
    choosing = Choosing(2, 1, strategy=strategy).turn()
    assert choosing.fails(SHORT) == Wait(2.0), "nobody else would fare better"
    assert choosing.state.releases_s == {}
    assert choosing.fails_for_ever(SHORT).reason != CANNOT_HELP.reason
    assert choosing.waits == [2, 4, 8, 16]
    assert set(choosing.targets) == targets, "a rotation continues, as ever"


def test_a_round_asks_each_key_once() -> None:
    run = Choosing(2, 1)
    run.turn().fails_for_ever(RATE_LIMIT)
    assert run.asked == [Route(0, 0), Route(0, 1), Route(1, 0)] * 5


ROTATION = {"strategy": "round_robin"}


@every_row(
    ("keys", "rules", "failure", "waits"),
    [
        ([1], {}, RATE_LIMIT, [2, 4, 8, 16]),
        ([1], {}, OVERLOADED, [2, 4, 8, 16]),
        ([1, 1], {}, OVERLOADED, [2, 4, 8, 16]),
        # That is how long each cools down, as nobody named a time.
        ([2, 1], {}, RATE_LIMIT, [2, 4, 8, 16]),
        # The number of the retry, in seconds.
        ([2, 1], ROTATION, RATE_LIMIT, [1, 2, 3, 4]),
    ],
)
def test_rounds_that_all_fail_in_one_way_sleep_so_long(keys, rules, failure, waits) -> None:
    run = Choosing(*keys, **rules)
    run.turn().fails_for_ever(failure)
    assert run.waits == waits


def named(seconds: float) -> Wait:
    return Wait(seconds, from_server=True)


def over(most: str, wait: str) -> GiveUp:
    return GiveUp(f"the wait of {wait} is over the maximum of {most} (retry.max_delay_s)", is_early=True)


AWAY_500_S = replace(OVERLOADED, requested_s=500)
PATIENT = {"policy": patient()}
AT_MOST_100_S, AT_MOST_300_S = {"policy": custom(4, 1, 100)}, {"policy": custom(4, 0.5, 300)}
BOUNDLESS, SLOW = {"policy": custom(4, 0.5, 0)}, {"policy": custom(9, 200, 300), **ROTATION}


@every_row(
    ("keys", "rules", "failures", "decision"),
    [
        # All are rate-limited: the first that is free is waited for, between 1 and 60 s.
        ([1, 1], {}, [limited(5), limited(30)], named(5)),
        ([1, 1], {}, [limited(0), limited(30)], Wait(1)),
        ([1, 1], {}, [limited(0.2), limited(0.7)], Wait(1)),
        ([1, 1], {}, [limited(61), limited(70)], named(60)),
        ([1, 1], {}, [limited(30), RATE_LIMIT], Wait(2)),
        # With a rotation, the longest that was requested, or the number of the retry.
        ([1, 1], ROTATION, [limited(5), limited(30)], named(30)),
        ([1, 1], ROTATION, [limited(0), limited(0)], Wait(1)),
        ([1, 1], ROTATION, [limited(61), limited(5)], named(60)),
        ([1, 1], ROTATION, [RATE_LIMIT, RATE_LIMIT], Wait(1)),
        ([1, 1], ROTATION, [RATE_LIMIT, limited(7)], named(7)),
        ([1, 1, 1], ROTATION, [limited(10)] * 3, named(10)),
        ([1, 1, 1], ROTATION, [limited(10)] * 3 + [limited(20)] * 3, named(20)),
        ([1, 1, 1], ROTATION, [limited(10)] * 3 + [limited(20)] * 3 + [RATE_LIMIT] * 3, Wait(3)),
        # Not all of them are: the wait of the policy.
        ([1, 1], {}, [limited(50), OVERLOADED], Wait(2)),
        ([1, 1], ROTATION, [limited(50), OVERLOADED], Wait(2)),
        # One key: as the policy says, without a bound below.
        ([1], {}, [limited(90)], named(60)),
        ([1], {}, [limited(0)], named(0)),
        # `patient`: the longer of both.
        ([1, 1], PATIENT, [RATE_LIMIT] * 2, Wait(5)),
        ([1, 1], PATIENT, [RATE_LIMIT] * 2 + [limited(45), limited(50)], named(45)),
        ([1, 1], PATIENT | ROTATION, [limited(45), limited(50)], named(50)),
        ([1, 1], PATIENT, [limited(1), limited(2)], Wait(5)),
        ([1, 1], PATIENT, [limited(7200), limited(9000)], named(7200)),
        # `custom`: its maximum judges the time until somebody is free.
        ([1, 1], AT_MOST_100_S, [AWAY_500_S], MoveOn()),
        ([1, 1], AT_MOST_100_S, [AWAY_500_S, replace(OVERLOADED, requested_s=101)], over("100s", "101s")),
        ([1], AT_MOST_100_S, [limited(101)], over("100s", "101s")),
        ([2], AT_MOST_300_S, [limited(600), limited(2)], named(2)),
        ([2], AT_MOST_300_S | ROTATION, [limited(600), limited(2)], named(2)),
        ([2], AT_MOST_300_S, [limited(600), limited(301)], over("5m", "5m1s")),
        ([2], AT_MOST_300_S | ROTATION, [limited(600), limited(301)], over("5m", "5m1s")),
        # It has no other bound, and its schedule, which says 400 s in the second round, ends no wait of rate limits.
        ([1, 1], BOUNDLESS, [limited(700), limited(900)], named(700)),
        ([1, 1], SLOW, [limited(5)] * 2, named(5)),
        ([1, 1], SLOW, [limited(5)] * 4, named(5)),
    ],
)
def test_what_follows_the_last_failure_of_a_round(keys, rules, failures, decision) -> None:
    assert Choosing(*keys, **rules).turn().fails(*failures) == decision


@every_row("policy", [patient(), custom(4, 1, 300)])
def test_a_long_requested_wait_ends_nothing_while_another_target_is_about_to_be_free(policy) -> None:
    run = Choosing(1, 1, policy=policy)
    run.turn().fails(replace(OVERLOADED, requested_s=6))
    run.answers()
    decision = run.turn().fails(replace(OVERLOADED, requested_s=40_000))
    assert run.asked[-1] == Route(1)
    assert isinstance(decision, Wait)
    assert decision.seconds <= 6
    assert run.state.route == Route(0)


def test_off_asks_everybody_once() -> None:
    run = Choosing(1, 2, policy=off())
    assert isinstance(run.turn().fails_for_ever(RATE_LIMIT), GiveUp)
    assert run.asked == [Route(0), Route(1, 0), Route(1, 1)]


# --- Cooldown


def test_the_first_is_asked_again_when_its_cooldown_ends() -> None:
    run = Choosing(1, 1)
    run.turn().fails(replace(OVERLOADED, requested_s=30))
    assert run.answers() == "succeeded"
    run.now_s = 30.0
    assert run.turn().state.route == Route(1)
    assert run.answers() is None, "told once"
    run.now_s = 30.1
    assert (run.turn().state.route, run.answers()) == (Route(0), "recovered")
    assert run.turn().answers() is None


def test_with_revert_never_it_stays_until_that_one_fails() -> None:
    run = Choosing(1, 1, 1, returns=False)
    run.turn().fails(OVERLOADED)
    run.answers()
    run.now_s = 1000.0
    assert run.turn().state.route == Route(1)
    run.fails(OVERLOADED)
    assert run.state.route == Route(0), "then the first that is free"


def test_without_a_requested_wait_the_cooldown_is_the_wait_of_the_policy() -> None:
    run = Choosing(1, 1)
    run.turn().fails(OVERLOADED)
    run.answers()
    assert run.state.releases_s == {Route(0): pytest.approx(2.1)}


def test_a_target_that_is_partly_available_serves_with_its_other_key() -> None:
    run = Choosing(2, 1)
    run.turn().fails(limited(100))
    run.answers()
    assert (run.asked, run.turn().state.route) == ([Route(0, 0), Route(0, 1)], Route(0, 1))
    run.now_s = 101.0
    assert run.turn().state.route == Route(0, 0)


def test_an_overload_does_not_shorten_what_another_key_was_told() -> None:
    run = Choosing(2, 1)
    run.turn().fails(limited(100), OVERLOADED)
    run.answers()
    assert run.state.releases_s == {Route(0, 0): pytest.approx(100.1), Route(0, 1): pytest.approx(2.2)}
    run.now_s = 10.0
    assert run.turn().state.route == Route(0, 1), "the first key still has to be left alone"
    assert run.fails(limited(5)) == MoveOn()
    run.now_s = 200.0
    run.turn().fails(limited(1))
    run.now_s = 202.0
    assert run.turn().state.route == Route(0, 0), "of itself the newest request counts"


# --- What outlives a chain


def test_a_refused_key_a_target_without_credit_and_an_unknown_model_are_out_for_the_run() -> None:
    run = Choosing(2, 1, 1)
    run.turn().fails(BAD_KEY)
    run.answers()
    run.turn().fails(BROKE)
    run.answers()
    assert run.asked == [Route(0, 0), Route(0, 1), Route(0, 1), Route(1)]
    run.now_s = 1e6
    assert run.turn().state.route == Route(1)
    assert isinstance(run.fails(UNKNOWN_MODEL), MoveOn)
    assert run.state.route == Route(2)
    run.answers()
    run.now_s = 2e6
    assert run.turn().state.route == Route(2)
    assert isinstance(run.fails(FORBIDDEN), GiveUp), "with none left"


def test_a_broken_protocol_is_not_asked_again_in_this_chain_but_in_the_next() -> None:
    run = Choosing(1, 1, strategy="round_robin")
    run.turn().fails(GARBLED, OVERLOADED, OVERLOADED)
    assert (run.targets, run.waits) == ([0, 1, 1], [2, 4])
    run.answers()
    assert run.turn().state.route == Route(0)


def test_success_starts_the_counters_afresh() -> None:
    run = Choosing(1, 1)
    for _ in range(10):
        run.turn().fails(*[OVERLOADED] * 8)
        run.answers()
        run.now_s += 1000
    assert run.waits == [2, 4, 8, 16] * 10


def test_a_chain_that_continues_has_the_retries_and_the_waits_of_the_one_before_it() -> None:
    run = Choosing(1)
    run.turn().fails(OVERLOADED, OVERLOADED)
    for continues, counts in ((True, (2, 6)), (False, (0, 0))):
        chain = begin(run.state, run.rules, run.now_s, continues=continues).chain
        assert (chain.retries, chain.slept_s) == counts


def test_round_robin_takes_the_next_at_each_call_and_begins_each_turn_at_the_first() -> None:
    run = Choosing(1, 1, 1, strategy="round_robin")
    run.turn().fails(*[OVERLOADED] * 5)
    assert run.targets == [0, 1, 2, 0, 1]
    run.answers()
    assert run.targets[-1] == 2
    run.turn().answers()
    assert run.targets[-1] == 0


# --- Whatever happens


FAILURES = st.builds(
    Failure,
    st.sampled_from(list(FailureKind)),
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 1e5)),
    st.booleans(),
)
POLICIES = st.sampled_from([standard(), off(), patient(), custom(3, 0.5, 50), custom(2, 0, 0)])


class Watched(Choosing):
    """Checks the rules that always hold, only from the requests and their results."""

    def turn(self) -> Watched:
        super().turn()
        self.calls = 0
        self.in_round: list[Route] = []
        self.check_choice()
        return self

    def check_choice(self) -> None:
        route = self.state.route
        assert route not in self.in_round, "each key once a round"
        self.in_round.append(route)
        out = self.state.skipped | self.state.chain.barred
        usable = [one for one in every_route(self.rules) if one not in out]
        assert route in usable or not usable
        if self.rules.strategy != "fallback" or not usable:
            return
        release_s = {one: self.state.releases_s.get(one, -math.inf) for one in usable}
        if release_s[route] > self.now_s:
            assert all(end_s > self.now_s for end_s in release_s.values()), "unless all do"
            untried = [one for one in usable if one not in self.in_round[:-1]]
            assert release_s[route] == min(release_s[one] for one in untried), "the one that is free first"
        elif self.rules.returns and len(self.in_round) == 1:
            free = [one for one in usable if release_s[one] <= self.now_s]
            assert route == free[0], "the first one again"

    def check_wait_of_limits(self, wait_s: float, failures: Sequence[Failure], retry: int) -> None:
        named = [one.requested_s for one in failures if one.requested_s is not None and one.is_transient]
        most_s = self.policy.longest_round_wait_s
        longest_s = min(max(max(named, default=retry), 1), most_s)
        if self.rules.strategy == "round_robin" and wait_s < longest_s:
            assert isinstance(self.policy.objection(retry, longest_s, 0), GiveUp), (
                "that would have ended the run"
            )
        if self.rules.strategy == "fallback" and not self.policy.outlasts_outages:
            assert wait_s <= min(max(min(named, default=math.inf), 1), most_s), "somebody is free by then"
        assert wait_s >= 1
        assert wait_s <= most_s or self.policy.outlasts_outages

    def fail(self, failure: Failure) -> Decision:
        self.calls += 1
        failures = (*self.state.chain.failures, failure)
        retry = self.state.chain.retries + 1
        skipped = self.state.skipped
        decision = self.fails(failure)
        if isinstance(decision, Wait):
            keys = sum(self.rules.key_counts)
            if keys > 1 and all(one.kind is FailureKind.RATE_LIMIT for one in failures):
                self.check_wait_of_limits(decision.seconds, failures, retry)
            self.in_round = []
        if not isinstance(decision, GiveUp):
            self.check_choice()
            assert self.state.route not in skipped
        return decision


def every_route(rules: Rules) -> list[Route]:
    return [route for target in rules.order for route in rules.keys_of(target)]


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sampled_from(["fallback", "round_robin"]),
    st.booleans(),
    POLICIES,
    st.lists(st.lists(st.tuples(FAILURES, st.floats(0, 500)), max_size=40), min_size=1, max_size=4),
)
def test_the_rules_hold_whatever_fails(key_counts, strategy, returns, policy, turns) -> None:
    run = Watched(*key_counts, policy=policy, strategy=strategy, returns=returns)
    for failures in turns:
        run.turn()
        for failure, took_s in failures:
            run.now_s += took_s
            decision = run.fail(failure)
            if isinstance(decision, GiveUp):
                break
        else:
            run.answers()
            continue
        assert run.calls <= (policy.max_retries + 1) * sum(key_counts)
        if failure.kind in (FailureKind.INVALID_REQUEST, FailureKind.CONTEXT_OVERFLOW):
            assert failure.is_transient or isinstance(decision, GiveUp)
        return
    assert run.turn().state.chain.retries == 0


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.sampled_from(["fallback", "round_robin"]),
    POLICIES,
    st.data(),
)
def test_it_always_gives_up_after_so_many_calls(key_counts, strategy, policy, data) -> None:
    run = Watched(*key_counts, policy=policy, strategy=strategy).turn()
    most = (policy.max_retries + 1) * sum(key_counts)
    for call in range(1, most + 1):
        if isinstance(run.fail(data.draw(FAILURES)), GiveUp):
            assert call <= most
            return
    raise AssertionError("more calls than (retries + 1) x keys")
