"""The timeline of a page: which stretch of time was used for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.pages.content import Stretch, StretchKind
from ralph.pages.transcript import RunTimeline, stretches_of, with_known

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import Enum

MODEL, TOOL, WAITING, IDLE = StretchKind.MODEL, StretchKind.TOOL, StretchKind.WAITING, StretchKind.IDLE


def attempt(at_s: float, took_s: float, wait_s: float = 0.0) -> tuple[float, Callable[[RunTimeline], object]]:
    return at_s, lambda run: run.attempt("turn", took_s=took_s, wait_s=wait_s)


def intent(at_s: float) -> tuple[float, Callable[[RunTimeline], object]]:
    return at_s, lambda run: run.call("a", "a", None)


def result(at_s: float) -> tuple[float, Callable[[RunTimeline], object]]:
    return at_s, lambda run: run.result("a")


def run_of(*records: tuple[float, Callable[[RunTimeline], object]], began_s: float = 100.0) -> RunTimeline:
    run = RunTimeline(began_s)
    for run.now_s, tell in records:
        tell(run)
    return run


def drawn(*runs: RunTimeline, until_s: float | None = None) -> list[tuple[Enum, float, float]]:
    return [(one.kind, one.began_s, one.ended_s) for one in stretches_of(runs, until_s)]


def test_an_attempt_began_before_its_record_and_a_call_lasts_from_intent_to_result() -> None:
    assert drawn(run_of(attempt(103.0, 2.5), intent(103.5), result(110.0))) == [
        (MODEL, 100.5, 103.0),
        (TOOL, 103.5, 110.0),
    ]


def test_the_wait_after_a_failed_attempt_ends_when_the_next_one_begins() -> None:
    failed = attempt(101.0, 1.0, wait_s=10.0)
    assert drawn(run_of(failed, attempt(112.0, 1.0))) == [
        (MODEL, 100.0, 101.0),
        (WAITING, 101.0, 111.0),
        (MODEL, 111.0, 112.0),
    ]
    assert drawn(run_of(failed, attempt(105.0, 1.0)))[1] == (WAITING, 101.0, 104.0)


def test_a_gap_until_a_killed_session_is_resumed_is_idle_and_a_short_gap_is_not() -> None:
    killed, later = run_of(attempt(101.0, 1.0), intent(102.0)), run_of(attempt(502.0, 1.0), began_s=500.0)
    assert drawn(killed, later) == [
        (MODEL, 100.0, 101.0),
        (IDLE, 101.0, 500.0),
        (MODEL, 501.0, 502.0),
    ]


def test_a_call_without_a_result_lasts_to_the_present_only_while_its_session_runs() -> None:
    assert drawn(run_of(intent(101.0)), until_s=160.0) == [(TOOL, 101.0, 160.0)]
    assert drawn(run_of(intent(101.0))) == []


def test_a_known_wait_takes_the_place_of_idle_time_and_gaps_but_not_of_work() -> None:
    busy = [Stretch(MODEL, 0.0, 10.0, ""), Stretch(IDLE, 10.0, 50.0, ""), Stretch(TOOL, 60.0, 70.0, "")]
    outage = Stretch(StretchKind.OUTAGE, 5.0, 65.0, "away")
    made = [(one.kind, one.began_s, one.ended_s) for one in with_known(busy, [outage])]
    assert made == [(MODEL, 0.0, 10.0), (StretchKind.OUTAGE, 10.0, 60.0), (TOOL, 60.0, 70.0)]
    part = replace(outage, began_s=20.0, ended_s=30.0)
    made = [(one.kind, one.began_s, one.ended_s) for one in with_known(busy, [part])]
    assert made[1:4] == [(IDLE, 10.0, 20.0), (StretchKind.OUTAGE, 20.0, 30.0), (IDLE, 30.0, 50.0)]
