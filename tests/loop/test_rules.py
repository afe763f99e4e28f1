"""When a loop is done, and what its gate, its plan and its limits mean. Uses fakes; tests with real processes are in tests/recorded/loop_scenes.py and tests/program/loop/test_loop_gate.py."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from ralph.loop.rules import end_before, end_if_done, end_of_unusable, what_is_missing
from ralph.loop.state import LoopState
from ralph.loop.values import CheckResult, LoopLimits, LoopPlan
from ralph.values.outcome import Outcome
from tests.fakes.loop import DONE, LoopRig, ScriptedIteration, ended
from tests.loop.test_prompt import record
from tests.rows import every_row

GREEN, RED = CheckResult(0), CheckResult(1)
NOT_GIVEN = "not given"


@every_row(
    ("gate", "until", "tasks", "without_file", "with_file", "at_the_limit"),
    [
        (NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, None, "the stop file exists", (0, "")),
        # --until alone: the stop file has no meaning.
        (NOT_GIVEN, GREEN, NOT_GIVEN, "the check passes", "the check passes", (3, "")),
        (NOT_GIVEN, RED, NOT_GIVEN, None, None, (3, ", the check failed (exit 1)")),
        # --gate alone never ends the loop.
        (GREEN, NOT_GIVEN, NOT_GIVEN, None, "the gate passes and the stop file exists", (0, "")),
        (RED, NOT_GIVEN, NOT_GIVEN, None, None, (3, ", the gate failed (exit 1)")),
        (NOT_GIVEN, NOT_GIVEN, 0, "no task in PLAN.md is open", "no task in PLAN.md is open", (3, "")),
        (NOT_GIVEN, NOT_GIVEN, 1, None, None, (3, ", PLAN.md has 1 open task")),
        (NOT_GIVEN, NOT_GIVEN, None, None, None, (3, ", PLAN.md has no task at all")),
        (GREEN, NOT_GIVEN, 0, *["the gate passes and no task in PLAN.md is open"] * 2, (3, "")),
        (RED, NOT_GIVEN, 0, None, None, (3, ", the gate failed (exit 1)")),
        (GREEN, NOT_GIVEN, 2, None, None, (3, ", PLAN.md has 2 open tasks")),
        (GREEN, GREEN, NOT_GIVEN, *["the gate passes and the check passes"] * 2, (3, "")),
        (GREEN, RED, NOT_GIVEN, None, None, (3, ", the check failed (exit 1)")),
        # An earlier verdict of a check that did not run, because the gate is red.
        (RED, GREEN, NOT_GIVEN, None, None, (3, ", the gate failed (exit 1)")),
        (None, GREEN, 0, None, None, (3, ", the gate has not run")),
        (GREEN, GREEN, 0, *["the gate passes, the check passes and no task in PLAN.md is open"] * 2, (3, "")),
        (GREEN, GREEN, 1, None, None, (3, ", PLAN.md has 1 open task")),
        (NOT_GIVEN, RED, 0, None, None, (3, ", the check failed (exit 1)")),
    ],
)
def test_all_that_was_given_must_hold(gate, until, tasks, without_file, with_file, at_the_limit) -> None:
    def given(value: object, what: str) -> str | None:
        return None if value == NOT_GIVEN else what

    plan = LoopPlan(
        "/w",
        "/w",
        gate=given(gate, "make lint"),
        until=given(until, "make test"),
        plan=given(tasks, "PLAN.md"),
        limits=LoopLimits(max_iterations=1),
    )
    state = LoopState(
        plan,
        "",
        1,
        iterations=(record(Outcome.COMPLETED),),
        last_gate=None if gate == NOT_GIVEN else gate,
        last_check=None if until == NOT_GIVEN else until,
        open_tasks=None if tasks == NOT_GIVEN else tasks,
    )
    for has_stop_file, reason in ((False, without_file), (True, with_file)):
        end = end_if_done(state, has_stop_file=has_stop_file)
        assert (None if end is None else end.reason) == reason
        assert end is None or end.exit_code == 0
        assert end is None or what_is_missing(state) is None
    limit = end_before(state, 0.0)
    assert limit is not None
    assert (limit.exit_code, limit.reason) == (at_the_limit[0], f"1 iteration is done{at_the_limit[1]}")


def test_a_check_that_cannot_run_ends_only_a_new_loop() -> None:
    """In a resumed loop the agent's work may have broken it, and the next iteration can repair it."""
    new = LoopState(LoopPlan("/w", "/w", until="make test"), "", 1, last_check=CheckResult(127))
    end = end_of_unusable(new)
    assert end is not None
    assert (end.outcome, end.reason.partition(" (")[0]) == (Outcome.CONFIG, "the check cannot be run")
    assert end_of_unusable(replace(new, iterations=(record(Outcome.COMPLETED),))) is None


SAVES: dict[str, object] = {"commits": True, "pushes": True}


def limited(count: int) -> LoopLimits:
    return LoopLimits(max_iterations=count)


def test_the_gate_runs_before_the_commit_and_the_check_after_the_push() -> None:
    rig = LoopRig(gates=[0], verdicts=[1, 0], options=SAVES)
    assert rig.gate is not None
    assert rig.check is not None
    commits_at: dict[str, list[int]] = {"gate": [], "check": []}
    for name, check in (("gate", rig.gate), ("check", rig.check)):
        check.before = lambda name=name: commits_at[name].append(len(rig.checkout.messages))  # type: ignore[misc]  # bound now
    rig.play()
    assert commits_at == {"gate": [0, 0], "check": [0, 1]}


# --- a resumed loop


def test_a_continued_loop_looks_at_the_gate_before_it_pays_and_saves_nothing_red() -> None:
    rig = LoopRig(gates=[1], limits=limited(1), options=SAVES)
    assert rig.play().exit_code == 3
    failed = replace(rig.state, ended=None, push_problem="iteration 1: push failed: away")
    again = LoopRig(gates=[1], limits=limited(1), options=SAVES)
    again.checkout.to_push = 1
    assert again.play(failed).exit_code == 3
    assert (again.checkout.messages, again.checkout.to_push) == ([], 1)
    assert again.checkout.pushed_aside == ["ralph/red-1"], "that the branch is not pushed is no failed push"
    green = LoopRig(gates=[0], limits=limited(1), options=SAVES)
    assert green.play(replace(rig.state, ended=None)).exit_code == 0
    assert green.iterations.orders == []


# --- what is red at the end


@every_row(
    ("gates", "result", "options", "aside", "pushed", "code"),
    [
        ([0, 0], DONE, SAVES, 0, 0, 0),
        ([0, 1], DONE, SAVES, 1, 1, 3),
        ([0, 1], DONE, {"commits": True}, 1, 0, 3),
        ([0, 1], DONE, {"pushes": True}, 0, 0, 3),
        ([0, 1], DONE, {}, 0, 0, 3),
        # It is committed to the branch, which is not pushed.
        ([0, 1], DONE, {**SAVES, "commits_red": True}, 1, 1, 3),
        ([0, 1], DONE, {"commits": True, "commits_red": True}, 0, 0, 3),
        # Cut off: the gate has not seen it.
        ([0], ended(Outcome.AUTH), SAVES, 1, 1, 77),
        ([0], ended(Outcome.INTERRUPTED, stopped_by=15), SAVES, 1, 0, 143),
    ],
)
def test_what_is_red_or_unseen_at_the_end_goes_to_a_branch_of_its_own(
    gates: Any, result: Any, options: Any, aside: int, pushed: int, code: int
) -> None:
    rig = LoopRig([ScriptedIteration(result)], gates=[*gates], limits=limited(1), options=options)
    end = rig.play()
    assert end.exit_code == code
    assert (len(rig.checkout.aside), len(rig.checkout.pushed_aside)) == (aside, pushed)
    assert rig.state.red_branch == ("ralph/red-1" if aside else None)
    warned = "work that did not pass the gate is on branch ralph/red-1"
    assert (warned in rig.state.warnings) == bool(aside)
    limits_s = {3.0 if result.stopped_by else math.inf} if rig.checkout.aside_limits_s else set()
    assert set(rig.checkout.aside_limits_s) == limits_s
    is_on_the_branch = bool(options.get("commits")) and (gates == [0, 0] or "commits_red" in options)
    assert len(rig.checkout.messages) == is_on_the_branch


def test_after_a_signal_commits_of_the_agent_need_no_branch_because_nothing_is_pushed() -> None:
    stopped = ScriptedIteration(ended(Outcome.INTERRUPTED, stopped_by=15))
    rig = LoopRig([stopped], gates=[0], options={"pushes": True})
    rig.checkout.to_push = 1
    assert rig.play().exit_code == 143
    assert (rig.checkout.aside, rig.state.red_branch, rig.state.unpushed) == ([], None, 1)


def test_an_iteration_leaves_time_for_the_gate_and_the_check() -> None:
    rig = LoopRig(gates=[0], verdicts=[1, 0], limits=LoopLimits(max_time_s=1000))
    assert rig.gate is not None
    assert rig.check is not None
    rig.gate.takes_s, rig.check.takes_s = 30, 40
    rig.play()
    assert rig.iterations.orders[0].time_s == 1000 - 2 * (30 + 40)
    assert rig.state.iterations[0].check_s == 70
