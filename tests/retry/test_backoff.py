"""The retry schedules, wait by wait, and how the wait that a server asks for changes them."""

from __future__ import annotations

from ralph.retry.backoff import GiveUp, RetryPolicy, Wait, cooldown_s, custom, off, patient, sped_up, standard
from tests.rows import every_row


def waits(policy: RetryPolicy, requested_s: float | None = None) -> list[float]:
    found: list[float] = []
    while isinstance(decision := policy.next_wait(len(found) + 1, requested_s, sum(found)), Wait):
        found.append(decision.seconds)
    return found


def test_standard_waits_2_4_8_16_and_gives_up() -> None:
    assert waits(standard()) == [2, 4, 8, 16]


@every_row(("requested_s", "wait_s"), [(0, 0), (0.5, 0.5), (59, 59), (60, 60), (61, 60), (240, 60)])
def test_standard_replaces_the_wait_by_the_requested_wait_up_to_60_s(requested_s, wait_s) -> None:
    assert standard().next_wait(1, requested_s, 0) == Wait(wait_s, from_server=True)


@every_row(("retry", "left_s"), [(1, 240), (2, 180), (3, 120), (4, 60)])
def test_standard_gives_up_at_once_when_a_requested_wait_is_longer_than_all_that_are_left(
    retry, left_s
) -> None:
    assert isinstance(standard().next_wait(retry, left_s, 0), Wait)
    too_long = standard().next_wait(retry, left_s + 0.1, 0)
    assert isinstance(too_long, GiveUp)
    assert too_long.is_early


def test_a_requested_wait_of_nothing_counts_once_in_a_chain() -> None:
    assert (waits(standard(), 0), waits(standard(), 0.1)) == ([0, 4, 8, 16], [0.1] * 4)


def test_a_requested_wait_does_not_buy_a_fifth_retry() -> None:
    assert isinstance(standard().next_wait(5, 1, 4), GiveUp)


def test_patient_sleeps_21_times_27105_seconds_in_all() -> None:
    found = waits(patient())
    assert found[:9] == [5, 10, 30, 60, 300, 600, 900, 1800, 1800]
    assert (len(found), sum(found)) == (21, 27_105)


def test_patient_takes_the_longer_of_schedule_and_request() -> None:
    assert patient().next_wait(1, 3, 0) == Wait(5)
    assert patient().next_wait(1, 6, 0) == Wait(6, from_server=True)


@every_row(("slept_s", "fits"), [(28_700, True), (28_701, False)])
def test_patient_gives_up_at_once_when_a_requested_wait_does_not_fit_the_budget(slept_s, fits) -> None:
    assert isinstance(patient().next_wait(3, 100, slept_s), Wait) is fits


def test_off_never_waits() -> None:
    assert waits(off()) == []


def test_custom_doubles_and_is_extended_by_the_requested_wait() -> None:
    policy = custom(3, 1.5, 100)
    assert (waits(policy), policy.next_wait(1, 50, 0)) == ([1.5, 3, 6], Wait(50, from_server=True))
    assert policy.next_wait(1, 1, 0) == Wait(1.5)


@every_row(("max_delay_s", "gives_up"), [(99, True), (100, False), (0, False), (-1, False)])
def test_custom_gives_up_at_once_over_its_maximum(max_delay_s, gives_up) -> None:
    assert isinstance(custom(3, 1, max_delay_s).next_wait(1, 100, 0), GiveUp) is gives_up


def test_custom_survives_absurd_attempt_numbers() -> None:
    decision = custom(10_000, 2, 0).next_wait(5000, None, 0)
    assert isinstance(decision, Wait)


def test_sped_up_divides_every_wait_and_keeps_the_number_of_retries() -> None:
    assert (waits(sped_up(standard(), 4)), len(waits(sped_up(patient(), 1000)))) == ([0.5, 1, 2, 4], 21)


@every_row(
    ("requested_s", "policy", "next_retry", "seconds"),
    [(7, standard(), 1, 7), (None, standard(), 1, 2), (None, standard(), 5, 16), (None, off(), 1, 2)],
)
def test_a_cooldown_is_what_was_requested_or_the_wait_before_the_next_retry_or_before_the_last(
    requested_s, policy, next_retry, seconds
) -> None:
    assert cooldown_s(requested_s, policy, next_retry) == seconds
