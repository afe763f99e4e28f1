"""Tests what the outer loop does with everything that it meets. Uses fakes; tests with real processes are in
tests/program/.
"""

from __future__ import annotations

import errno
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ralph.git.answer import CheckoutError
from ralph.loop.values import IterationOrder, IterationResult, IterationSession, LoopLimits, Setback
from ralph.settings.tables import LoopSettings
from ralph.values.limits import LimitSettings
from ralph.values.outcome import Outcome
from tests.fakes import EPOCH
from tests.fakes.loop import AWAY, DONE, LoopRig, ScriptedIteration, ended
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.loop.state import LoopState

IDLE = ScriptedIteration(changes=False)


def iterations(count: int | None) -> LoopLimits:
    return LoopLimits(max_iterations=count)


# --- what an iteration's end means


@every_row(
    ("outcome", "continues"),
    [
        (Outcome.COMPLETED, True),
        (Outcome.TASK_FAILED, True),
        (Outcome.USAGE, False),
        (Outcome.LIMIT_REACHED, True),
        (Outcome.NO_PROGRESS, True),
        (Outcome.API_REJECTED, False),
        (Outcome.INTERNAL_ERROR, False),
        (Outcome.IO_ERROR, False),
        (Outcome.AUTH, False),
        (Outcome.CONFIG, False),
        (Outcome.TIMED_OUT, True),
        (Outcome.INTERRUPTED, False),
    ],
)
def test_each_outcome_stops_the_loop_with_its_code_or_counts(outcome: Outcome, continues: bool) -> None:
    rig = LoopRig([ScriptedIteration(ended(outcome, reason="because"))], limits=iterations(2))
    end = rig.play()
    if continues:
        assert (end.exit_code, len(rig.state.iterations)) == (0, 2)
    else:
        assert (end.outcome, end.exit_code) == (outcome, outcome.exit_code())
        assert end.reason.endswith(": because")
        assert rig.state.iterations == ()


# --- progress


@every_row(
    ("script", "code", "count"),
    [
        ([IDLE] * 4, 4, 4),
        ([IDLE, IDLE, ScriptedIteration(), IDLE, IDLE, IDLE, IDLE], 4, 7),
        ([IDLE, IDLE, IDLE, ScriptedIteration(), IDLE], 0, 9),
        ([ScriptedIteration(ended(Outcome.NO_PROGRESS))] * 4, 4, 4),
        (
            [
                ScriptedIteration(ended(Outcome.NO_PROGRESS)),
                IDLE,
                IDLE,
                ScriptedIteration(),
                ScriptedIteration(),
            ],
            0,
            9,
        ),
    ],
)
def test_after_three_iterations_without_progress_one_more_and_then_no_more(
    script: list[ScriptedIteration], code: int, count: int
) -> None:
    rig = LoopRig(script, limits=iterations(9))
    assert (rig.play().exit_code, len(rig.state.iterations)) == (code, count)


# --- outages


def test_the_patient_schedule_is_slept_to_its_end_and_then_the_loop_ends_with_75() -> None:
    rig = LoopRig([ScriptedIteration(AWAY, changes=False, seconds=0)] * 30)
    end = rig.play()
    assert end.exit_code == 75
    assert (len(rig.waiter.sleeps), sum(rig.waiter.sleeps)) == (21, 27_105)
    assert rig.state.current is not None


def test_the_schedule_starts_afresh_after_any_other_end() -> None:
    rig = LoopRig(
        [ScriptedIteration(AWAY), ScriptedIteration(AWAY), ScriptedIteration(), ScriptedIteration(AWAY)],
        limits=iterations(2),
    )
    rig.play()
    assert rig.waiter.sleeps == [5, 10, 5]


@every_row(
    ("all_requested", "slept"),
    [
        ([2], [2]),
        ([90], [90]),
        ([0], [1]),  # one second is the shortest wait
        ([2, 2, 2], [2, 10, 30]),  # only the first request for a shorter wait is followed
        ([60, 60, 60], [60, 60, 60]),
        ([None, 2], [5, 10]),
    ],
)
def test_a_time_that_the_server_named_is_waited(
    all_requested: list[float | None], slept: list[float]
) -> None:
    away = [
        ScriptedIteration(ended(Outcome.API_UNAVAILABLE, retry_after_s=requested))
        for requested in all_requested
    ]
    rig = LoopRig(away, limits=iterations(1))
    assert rig.play().exit_code == 0
    assert rig.waiter.sleeps == slept


def test_a_wait_that_would_outlast_the_loop_ends_it_at_once_with_75() -> None:
    away = ended(Outcome.API_UNAVAILABLE, retry_after_s=3600)
    rig = LoopRig([ScriptedIteration(away)], limits=LoopLimits(max_time_s=1800))
    end = rig.play()
    assert (end.exit_code, rig.waiter.sleeps) == (75, [])
    assert "tried again in 1h, and --max-time leaves 29m00s" in end.reason


# --- kills and shortages

KILLED = ended(
    Outcome.INTERRUPTED, exit_code=137, reason="was killed by SIGKILL", setback=Setback.KILL, cost_usd=0.2
)
SHORT = ended(Outcome.API_UNAVAILABLE, setback=Setback.SHORTAGE, turns=0, cost_usd=0.0)


def test_an_end_by_itself_between_two_kills_ends_their_row() -> None:
    rig = LoopRig(
        [ScriptedIteration(one) for one in (KILLED, KILLED, AWAY, KILLED, KILLED, DONE)], limits=iterations(1)
    )
    assert rig.play().exit_code == 0
    assert [number for _, number in rig.setbacks] == [1, 2, 1, 1, 2]


def test_kills_and_outages_in_turn_come_to_an_end() -> None:
    rig = LoopRig(
        [ScriptedIteration(KILLED), ScriptedIteration(AWAY)] * 40,
        limits=iterations(1),
        schedule=LoopSettings((1.0,), 5.0),
    )
    assert rig.play().exit_code == 75
    assert len(rig.iterations.orders) < 20
    assert [number for setback, number in rig.setbacks if setback is Setback.OUTAGE] == [1, 2]


def test_a_killed_iteration_that_had_come_to_its_end_is_counted_and_not_run_again() -> None:
    rig = LoopRig([ScriptedIteration(KILLED, ended_as=DONE), ScriptedIteration(DONE)], limits=iterations(1))
    assert rig.play().exit_code == 0
    assert (len(rig.iterations.orders), rig.waiter.sleeps) == (1, [])
    assert rig.state.iterations[0].outcome is Outcome.COMPLETED


@every_row("first", [KILLED, SHORT, AWAY])
def test_without_a_session_it_begins_afresh_under_another_id_and_stays_one(first: IterationResult) -> None:
    rig = LoopRig(
        [ScriptedIteration(first, has_session=False), ScriptedIteration(DONE)], limits=iterations(1)
    )
    assert rig.play().exit_code == 0
    one, other = rig.iterations.orders
    assert one.prompt == other.prompt is not None
    assert one.session_id != other.session_id
    [record] = rig.state.iterations
    assert (record.number, record.session_id) == (1, other.session_id)
    assert record.cost_usd == pytest.approx(0.5 + (first.cost_usd or 0.0))


def test_a_kill_that_leaves_no_time_for_another_try_ends_it() -> None:
    rig = LoopRig([ScriptedIteration(KILLED, seconds=58)], limits=LoopLimits(max_time_s=60))
    end = rig.play()
    assert (end.exit_code, rig.waiter.sleeps) == (75, [])
    assert end.reason == "iteration 1 was killed by SIGKILL, and --max-time leaves no time for another try"


def test_a_signal_to_the_loop_is_no_kill() -> None:
    stopped = ended(Outcome.INTERRUPTED, exit_code=137, stopped_by=15, setback=Setback.KILL)
    rig = LoopRig([ScriptedIteration(stopped)])
    assert (rig.play().exit_code, len(rig.iterations.orders)) == (143, 1)


@every_row("step", ["snapshot", "changes", "commit", "push", "check"])
def test_a_step_without_a_process_for_it_is_tried_again_and_spends_no_iteration(step: str) -> None:
    rig = LoopRig(verdicts=[1, 0], limits=iterations(3), options={"commits": True, "pushes": True})
    rig.shortages.left[step] = 2
    assert rig.play().exit_code == 0
    assert rig.waiter.sleeps == [5, 10]
    assert rig.setbacks == [(Setback.SHORTAGE, 1), (Setback.SHORTAGE, 2)]
    assert (len(rig.state.iterations), len(rig.iterations.orders)) == (1, 1)


def test_the_end_of_a_loop_waits_no_more_for_what_the_machine_lacks() -> None:
    rig = LoopRig(limits=iterations(1), schedule=LoopSettings((1.0,), 3.0), options={"commits": True})
    rig.shortages.left["commit"] = 99
    end = rig.play()
    assert (end.exit_code, rig.waiter.sleeps) == (75, [1.0, 1.0, 1.0])
    assert end.reason.startswith("what this machine lacks (a process, a thread, ")
    assert rig.state.ended == end


# --- budgets


def after(*costs_usd: float) -> list[ScriptedIteration]:
    """An iteration whose session cost this after each of its processes. All but the last met an outage."""
    ends = [*[Outcome.API_UNAVAILABLE] * (len(costs_usd) - 1), Outcome.COMPLETED]
    return [ScriptedIteration(ended(end, cost_usd=usd)) for end, usd in zip(ends, costs_usd, strict=True)]


@every_row(
    ("limits", "own", "script", "budgets_usd", "times_s"),
    [
        (LoopLimits(3, 2.0, 1000), LimitSettings(), [], [2.0, 1.5, 1.0], [1000, 940, 880]),
        # Its own limits are kept where they are lower.
        (
            *(LoopLimits(4, 2.0, 1000), LimitSettings(None, 0.6, 900), []),
            *([0.6, 0.6, 0.6, 0.5], [900, 900, 880, 820]),
        ),
        # What an outage cost counts once, and is gone from the iteration's own budget.
        (LoopLimits(1, 10.0), LimitSettings(), after(0.2, 0.7), [10.0, 9.8], None),
        (LoopLimits(1), LimitSettings(None, 1.0, None), after(0.25, 0.5), [1.0, 0.75], None),
    ],
)
def test_what_is_left_of_money_and_time_is_passed_down(
    limits: LoopLimits, own: LimitSettings, script: Any, budgets_usd: list[float], times_s: Any
) -> None:
    rig = LoopRig(script, limits=limits, own_limits=own)
    rig.play()
    assert [order.budget_usd for order in rig.iterations.orders] == budgets_usd
    assert times_s is None or [order.time_s for order in rig.iterations.orders] == times_s
    spent_usd = (script[-1].result.cost_usd or 0.0) if script else 0.5 * len(budgets_usd)
    assert rig.state.spent_usd == spent_usd


@every_row(
    ("limits", "result", "code"),
    [
        (LoopLimits(None, 1.0), ended(Outcome.LIMIT_REACHED, limit="max_budget_usd", cost_usd=0.9), 3),
        (LoopLimits(None, 1.0), ended(Outcome.COMPLETED, cost_usd=1.0), 3),
        (LoopLimits(None, None, 60), DONE, 124),
        (LoopLimits(None, None, 90), ended(Outcome.TIMED_OUT), 124),
    ],
)
def test_the_loop_ends_when_its_budget_or_its_time_is_over(limits: Any, result: Any, code: int) -> None:
    rig = LoopRig([ScriptedIteration(result)], limits=limits)
    assert (rig.play().exit_code, len(rig.state.iterations)) == (code, 1)


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from([Outcome.COMPLETED, Outcome.API_UNAVAILABLE])), max_size=12
    ),
    st.floats(0.01, 5),
    st.none() | st.floats(0.01, 2),
)
def test_the_budget_of_the_loop_is_never_overshot(
    fates: list[tuple[float, Outcome]], budget_usd: float, own_usd: float | None
) -> None:
    """Each process spends some part of what it is allowed and never more, as `ralph run` promises."""
    rig = LoopRig(limits=LoopLimits(12, budget_usd), own_limits=LimitSettings(None, own_usd))
    spent: dict[str, float] = {}

    def process(order: IterationOrder) -> IterationResult:
        part, outcome = fates.pop(0) if fates else (1.0, Outcome.COMPLETED)
        assert order.budget_usd is not None
        spent[order.session_id] = spent.get(order.session_id, 0.0) + part * max(order.budget_usd, 0.0)
        return ended(outcome, cost_usd=spent[order.session_id])

    rig.iterations.play = process
    rig.play()
    assert sum(spent.values()) <= budget_usd + 12 * 1e-9, "what is left is rounded before each iteration"


def test_an_iteration_that_met_its_own_limit_does_not_end_the_loop() -> None:
    met = ended(Outcome.LIMIT_REACHED, limit="max_budget_usd")
    rig = LoopRig([ScriptedIteration(met)], limits=LoopLimits(2, 10.0), own_limits=LimitSettings(None, 0.5))
    assert (rig.play().exit_code, len(rig.state.iterations)) == (0, 2)


def test_a_check_gets_no_more_time_than_the_loop_has_left() -> None:
    rig = LoopRig(verdicts=[1], limits=LoopLimits(None, None, 100), options={"check_timeout_s": 70.0})
    end = rig.play()
    assert rig.check is not None
    assert rig.check.limits_s == [70, 40, 10]  # the last check runs although the time is over
    assert (end.exit_code, len(rig.state.iterations)) == (124, 2)


def test_an_iteration_leaves_the_check_as_much_time_as_it_took_last() -> None:
    rig = LoopRig(verdicts=[1], limits=LoopLimits(None, None, 200))
    assert rig.check is not None
    rig.check.takes_s = 50
    end = rig.play()
    assert [order.time_s for order in rig.iterations.orders] == [100, 20]  # never more than half of the rest
    assert (end.exit_code, rig.check.limits_s) == (124, [200, 90, 60])


@every_row(
    ("limits", "reason"),
    [
        (LoopLimits(max_budget_usd=0.001), "the budget of $0.001 is spent"),
        (LoopLimits(max_time_s=1), "the time limit of 1s (--max-time) is used up"),
    ],
)
def test_a_tiny_limit_is_named_with_all_its_digits(limits: LoopLimits, reason: str) -> None:
    assert LoopRig(limits=limits).play().reason == reason


def test_a_check_that_passes_when_the_time_is_over_is_done() -> None:
    rig = LoopRig(
        [ScriptedIteration(ended(Outcome.TIMED_OUT), seconds=100)],
        verdicts=[1, 0],
        limits=LoopLimits(None, None, 100),
    )
    assert rig.play().exit_code == 0


# --- git


def test_a_commit_is_named_by_the_report_or_else_by_the_answer() -> None:
    words = {"last_words": "Hours are read. More."}
    played = [
        ended(Outcome.COMPLETED, **words, summary="Minutes are read."),
        ended(Outcome.COMPLETED, **words),
    ]
    rig = LoopRig([ScriptedIteration(one) for one in played], limits=iterations(2), options={"commits": True})
    rig.play()
    assert [message.split("\n")[0] for message in rig.checkout.messages] == [
        "Minutes are read",
        "Hours are read",
    ]


def test_commits_that_stayed_here_are_named_in_the_end() -> None:
    rig = LoopRig(limits=iterations(2), options={"commits": True, "pushes": True})
    rig.checkout.push_problems = ["gone", "gone"]
    end = rig.play()
    assert (end.exit_code, end.reason) == (74, "2 iterations are done, but not all work is pushed")
    assert rig.state.warnings[0] == "iteration 2: push failed: gone"
    assert rig.state.warnings[1] == "commits that were not pushed: 2"


@every_row(("problem", "code"), [(None, 0), ("still gone", 74)])
def test_a_continued_loop_pushes_first_what_the_loop_could_not_push(problem: str | None, code: int) -> None:
    failed = LoopRig(limits=iterations(1), options={"commits": True, "pushes": True})
    failed.checkout.push_problems = ["gone"]
    failed.play()
    again = LoopRig()
    again.checkout.to_push, again.checkout.push_problems = 1, [problem]
    assert (again.play(failed.state).exit_code, again.checkout.to_push) == (code, 1 if problem else 0)
    assert again.iterations.orders == []


def test_a_push_that_fails_after_a_late_commit_is_told_and_no_bug() -> None:
    failed = failing_commit(pushes=True, limits=iterations(1))
    failed.play()
    again = LoopRig()
    again.checkout.uncommitted, again.checkout.push_problems = 1, ["gone"]
    assert (again.play(failed.state).exit_code, len(again.checkout.messages)) == (74, 1)
    assert "iteration 1: push failed, the next iteration tries again: gone" in again.told


@every_row(
    ("played", "pushed"),
    [
        (ScriptedIteration(ended(Outcome.AUTH)), True),
        (
            ScriptedIteration(ended(Outcome.COMPLETED, stopped_by=2)),
            False,
        ),  # who stops a loop does not wait for a remote
    ],
)
def test_what_an_iteration_that_was_cut_off_has_done_is_committed(
    played: ScriptedIteration, pushed: bool
) -> None:
    rig = LoopRig([played], options={"commits": True, "pushes": True})
    rig.play()
    [message] = rig.checkout.messages
    assert message.startswith("ralph loop: iteration 1\n")
    assert rig.checkout.to_push == (0 if pushed else 1)


def test_what_was_uncommitted_before_is_not_committed_by_an_iteration_that_did_nothing() -> None:
    rig = LoopRig([ScriptedIteration(ended(Outcome.CONFIG), changes=False)], options={"commits": True})
    rig.checkout.uncommitted = 3
    rig.play()
    assert rig.checkout.messages == []


def failing_commit(*, pushes: bool = False, **fields: Any) -> LoopRig:
    rig = LoopRig(options={"commits": True, "pushes": pushes}, **fields)
    rig.checkout.commit_problem = "index.lock is there"
    return rig


@every_row(
    ("fields", "code"),
    [
        ({"limits": iterations(2)}, 74),
        ({"limits": iterations(2), "verdicts": [1]}, 74),
        ({"limits": LoopLimits(max_time_s=100), "verdicts": [1]}, 74),
        ({"script": [ScriptedIteration(), ScriptedIteration(ended(Outcome.AUTH))]}, 77),
    ],
)
def test_work_that_cannot_be_committed_stays_and_a_later_end_is_no_success(
    fields: dict[str, Any], code: int
) -> None:
    rig = failing_commit(**fields)
    assert (rig.play().exit_code, rig.checkout.uncommitted) == (code, 2)
    assert rig.state.ended is not None
    assert rig.state.ended.exit_code == code
    [warning] = rig.state.warnings
    assert (
        warning == "iteration 2: its work could not be committed, and stays uncommitted: index.lock is there"
    )
    assert rig.told.count(warning) == 1


def test_a_full_disk_is_told_once_at_the_end_of_the_loop() -> None:
    rig = LoopRig(options={"commits": True})

    def is_full(_order: IterationOrder) -> IterationResult:
        def fail(state: LoopState) -> NoReturn:
            raise OSError(errno.ENOSPC, "No space left on device", f"/state/{state.pid}/loop.json")

        rig.record.save = fail  # type: ignore[method-assign]  # as from now on every write
        return DONE

    rig.iterations.play = is_full
    end = rig.play()
    assert (end.exit_code, end.reason.count("No space left on device")) == (74, 1)
    assert rig.told[-2:] == ["the work of the last iteration stays as it is", "the end could not be recorded"]


@every_row(("second", "code"), [(DONE, 0), (ended(Outcome.AUTH), 77)])
def test_a_commit_that_failed_is_no_news_once_one_succeeded(second: IterationResult, code: int) -> None:
    rig = failing_commit(script=[ScriptedIteration(), IDLE], limits=iterations(2))

    def repair(_order: IterationOrder) -> IterationResult:
        if len(rig.iterations.orders) == 1:
            return DONE
        rig.checkout.commit_problem = None
        return second

    rig.iterations.play = repair
    assert (rig.play().exit_code, rig.checkout.uncommitted, rig.state.warnings) == (code, 0, ())


def test_a_cut_off_iteration_whose_work_cannot_be_looked_at_is_no_saved_work() -> None:
    killed = LoopRig(limits=iterations(1), options={"commits": True}).stopped_in_its_first_iteration()
    again = LoopRig()

    def broken() -> NoReturn:
        raise CheckoutError("git status: index file corrupt")

    again.checkout.snapshot = broken  # type: ignore[method-assign]  # no other call of this test fails
    late = replace(killed, elapsed_s=10.0, plan=replace(killed.plan, limits=LoopLimits(max_time_s=5)))
    assert (again.play(late).exit_code, again.checkout.messages) == (74, [])


def test_what_a_person_commits_between_two_iterations_is_looked_through_too() -> None:
    rig = LoopRig(verdicts=[1, 1, 0])
    assert rig.check is not None
    limits_s = rig.check.limits_s

    def commit_beside() -> None:
        rig.checkout.head = "of a person" if limits_s else "head"

    rig.check.before = commit_beside
    assert rig.play().exit_code == 0
    assert rig.checkout.looked_since == ["head"]


# --- its end by force, and going on


def test_the_time_of_an_iteration_that_was_killed_counts_though_nobody_recorded_it() -> None:
    killed = LoopRig(
        [ScriptedIteration(seconds=10)], limits=LoopLimits(max_time_s=1000)
    ).stopped_in_its_first_iteration()
    again = LoopRig()
    session = killed.current.session_id if killed.current else ""
    again.iterations.sessions[session] = IterationSession(3, 0.4, None, EPOCH + timedelta(seconds=600))
    again.clock.seconds = 5000  # the time until it was taken up does not
    again.play(killed)
    assert again.iterations.orders[0].time_s == 400


def test_a_wait_is_never_longer_than_it_was_whatever_the_wall_clock_says() -> None:
    killed = LoopRig([ScriptedIteration(AWAY)] * 2, interrupt_at_s=62).stopped_in_its_first_iteration(
        waiting=True
    )
    again = LoopRig(limits=iterations(1))
    assert killed.current is not None
    again.iterations.sessions[killed.current.session_id] = IterationSession(1, 0.1)
    again.clock.seconds = -1e6
    state = replace(killed, plan=replace(killed.plan, limits=iterations(1)))
    again.play(state)
    assert again.waiter.sleeps[0] == 5


@every_row(("verdicts", "stops"), [([0], False), (None, True)])
def test_a_loop_that_continues_looks_first_whether_it_is_done(verdicts: Any, stops: bool) -> None:
    """The loop was killed between its last iteration and its end, or a person has done the rest of the work."""
    first = LoopRig(verdicts=[1] if verdicts else None, limits=iterations(1))
    first.play()
    again = LoopRig(verdicts=verdicts, limits=iterations(5))
    again.iterations.has_stop_file = stops
    state = replace(first.state, ended=None, plan=replace(first.state.plan, limits=iterations(5)))
    assert again.play(state).exit_code == 0
    assert again.iterations.orders == []


@every_row(
    ("result", "seen", "turns", "spent_usd"),
    [
        # Refused for good by the API, and damaged by a power cut: each resumed run would end in the same way.
        (ended(Outcome.API_REJECTED), None, 2 + 2, 0.5 + 0.5),
        (AWAY, IterationSession(3, 0.4, is_damaged=True), 3 + 2, 0.4 + 0.5),
    ],
)
def test_a_session_that_cannot_be_resumed_is_begun_anew_and_what_it_cost_counts(
    result: IterationResult, seen: IterationSession | None, turns: int, spent_usd: float
) -> None:
    rig = LoopRig([ScriptedIteration(result)], limits=LoopLimits(max_time_s=1000))
    left = rig.stopped_in_its_first_iteration() if seen else replace(rig.played(), ended=None)
    again = LoopRig()
    old = rig.iterations.orders[0].session_id
    again.iterations.sessions = {old: seen or rig.iterations.sessions[old]}
    end = again.play(replace(left, plan=replace(left.plan, limits=iterations(1))))
    [order] = again.iterations.orders
    assert order.prompt is not None
    assert order.session_id != old
    assert (end.outcome, again.state.iterations[0].turns) == (Outcome.COMPLETED, turns)
    assert again.state.spent_usd == pytest.approx(spent_usd)


def test_a_check_that_passes_meanwhile_ends_a_loop_whose_iteration_was_cut_off() -> None:
    rig = LoopRig([ScriptedIteration(ended(Outcome.AUTH))], verdicts=[1])
    rig.play()
    again = LoopRig(verdicts=[0])
    again.iterations.sessions = rig.iterations.sessions
    assert again.play(replace(rig.state, ended=None)).exit_code == 0
    assert again.iterations.orders == []


def test_a_prompt_that_cannot_be_read_any_more_ends_it_with_74() -> None:
    def gone() -> str:
        raise FileNotFoundError(2, "No such file", "PROMPT.md")

    assert LoopRig(prompt=gone).play().exit_code == 74


FATES = st.sampled_from(
    [
        ScriptedIteration(),
        IDLE,
        ScriptedIteration(AWAY),
        ScriptedIteration(ended(Outcome.LIMIT_REACHED)),
        ScriptedIteration(ended(Outcome.TASK_FAILED), changes=False),
    ]
)


@given(st.lists(FATES, max_size=8), st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(0, 200))
def test_killed_after_any_record_it_continues_to_an_end_and_no_iteration_is_lost_or_counts_twice(
    script: list[ScriptedIteration], verdicts: list[int], kill_at: int
) -> None:
    """The end may be another one, because the check's verdicts come once more from the first one on."""
    verdicts = [1, *verdicts]
    whole = LoopRig(list(script), verdicts, limits=iterations(5))
    end = whole.play()
    unfinished = [state for state in whole.record.states if state.ended is None]
    killed = unfinished[kill_at % len(unfinished)]
    done = len(killed.iterations)
    again = LoopRig(limits=iterations(5), verdicts=verdicts)
    ids = [order.session_id for order in whole.iterations.orders]
    # The world at the moment of the kill: the processes that had been started before it have ended.
    started = [index for index, one in enumerate(ids) if one in {r.session_id for r in killed.iterations}]
    again.iterations.script = script[len(started) :]
    again.checkout.version = (
        int(killed.current.digest) if killed.current else sum(p.changes for p in script[:done])
    )
    again_end = again.play(killed)
    assert [record.number for record in again.state.iterations] == list(
        range(1, len(again.state.iterations) + 1)
    )
    assert again.state.iterations[:done] == killed.iterations
    assert again_end.outcome in {end.outcome, Outcome.COMPLETED, Outcome.LIMIT_REACHED, Outcome.NO_PROGRESS}
    sessions = [record.session_id for record in again.state.iterations]
    assert len(set(sessions)) == len(sessions)


class FailingPage:
    def __init__(self, states: list[LoopState]) -> None:
        self._states = states
        self.recorded: list[tuple[int, bool]] = []
        """At each write: the number of recorded iterations, and whether the loop's end is recorded."""

    def write(self) -> str:
        state = self._states[-1]
        self.recorded.append((len(state.iterations), state.ended is not None))
        return "no room"


def test_the_page_is_rewritten_after_each_iteration_and_the_end_and_its_failure_is_told_once() -> None:
    rig = LoopRig([ScriptedIteration(), ScriptedIteration()], limits=LoopLimits(max_iterations=2))
    page = rig.page = FailingPage(rig.record.states)
    assert rig.play().outcome is Outcome.COMPLETED
    assert page.recorded == [(1, False), (2, False), (2, True)]
    told = [line for line in rig.told if "--report" in line]
    assert told == ["cannot write the report page (--report): no room"]


def test_the_turn_lock_is_held_for_commits_and_checks_and_not_for_waits_or_iterations() -> None:
    rig = LoopRig([ScriptedIteration()], verdicts=[1, 0], options={"commits": True})
    held: list[str] = []

    class Lock:
        def take(self) -> None:
            held.append("take")

        def release(self) -> None:
            held.append("release")

    rig.turn_lock = Lock()
    rig.shortages.left["commit"] = 1
    rig.iterations.play = lambda _order: held.append("iteration") or DONE  # type: ignore[func-returns-value]
    assert rig.play().exit_code == 0
    pair = ["take", "release"]
    assert held == [*pair, "iteration", *pair, *pair, *pair], "the first commit met a shortage"
