"""Tests the outer loop with a gate, a plan and a stop file. Uses fakes; tests with real processes are in
tests/program/loop/test_loop_gate.py.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from ralph.loop.values import LoopLimits
from ralph.values.outcome import Outcome
from tests.fakes.loop import DONE, LoopRig, ScriptedIteration, ended
from tests.rows import every_row

SAVES: dict[str, object] = {"commits": True, "pushes": True}
CANNOT_READ = OSError(2, "No such file or directory", "PLAN.md")


def limited(count: int) -> LoopLimits:
    return LoopLimits(max_iterations=count)


def test_three_open_tasks_in_a_green_repository_are_three_iterations() -> None:
    rig = LoopRig(gates=[0], open_tasks=[3, 3, 2, 1, 0], options=SAVES)
    end = rig.play()
    assert (end.exit_code, len(rig.state.iterations)) == (0, 3)
    assert end.reason == "the gate passes and no task in PLAN.md is open"
    assert [one.open_tasks for one in rig.state.iterations] == [2, 1, 0]
    assert [one.gate for one in rig.state.iterations] == ["passed"] * 3
    assert (len(rig.checkout.messages), rig.checkout.to_push) == (3, 0)
    assert "It has 3 open tasks." in rig.prompts[0]
    assert "It has 1 open task." in rig.prompts[2]


def test_work_that_leaves_the_gate_red_is_held_back_and_its_output_opens_the_next_prompt() -> None:
    rig = LoopRig(gates=[0, 1, 1, 0], verdicts=[1, 0], limits=limited(9), options=SAVES)
    assert (rig.play().exit_code, len(rig.state.iterations)) == (0, 3)
    assert [(one.gate, one.check, one.has_loop_commit) for one in rig.state.iterations] == [
        ("failed (exit 1)", None, False),
        ("failed (exit 1)", None, False),
        ("passed", "passed", True),
    ]
    assert len(rig.checkout.messages) == 1
    first, second, _ = rig.prompts
    assert "exits 0, and ralph runs it after each: make lint" in first
    assert "each good iteration: make test\n\nIt was run before any work was done: it failed" in first
    assert "make lint\n\nIt was run after the last iteration: it failed (exit 1). The end of its" in second
    assert second.count("It was run") == 1, "what the check said before is old"
    assert rig.record.checks[1].startswith("output of check 2"), "for the report: of the gate, which failed"


@every_row(("options", "messages"), [({}, 0), ({"commits_red": True}, 2)])
def test_commit_red_commits_what_is_red_and_pushes_nothing(options: Any, messages: int) -> None:
    rig = LoopRig(gates=[1], limits=limited(2), options={**SAVES, **options})
    end = rig.play()
    assert (end.exit_code, end.reason) == (3, "2 iterations are done, the gate failed (exit 1)")
    assert len(rig.checkout.messages) == messages
    assert rig.checkout.to_push == messages


def test_the_gate_runs_before_the_commit_and_the_check_after_the_push() -> None:
    rig = LoopRig(gates=[0], verdicts=[1, 0], options=SAVES)
    assert rig.gate is not None
    assert rig.check is not None
    commits_at: dict[str, list[int]] = {"gate": [], "check": []}
    for name, check in (("gate", rig.gate), ("check", rig.check)):
        check.before = lambda name=name: commits_at[name].append(len(rig.checkout.messages))  # type: ignore[misc]  # bound now
    rig.play()
    assert commits_at == {"gate": [0, 0], "check": [0, 1]}


@every_row(
    ("rig", "reason"),
    [
        (LoopRig(gates=[127]), "the gate cannot be run (exit 127: no such command)"),
        (
            LoopRig(gates=[1], verdicts=[126]),
            "the check cannot be run (exit 126: no program that can be run)",
        ),
        (LoopRig(gates=[0], open_tasks=[None]), "the plan PLAN.md has no task: a task is a line such as"),
        (LoopRig(open_tasks=[CANNOT_READ]), "the plan PLAN.md cannot be read: No such file or directory"),
    ],
)
def test_what_can_never_say_that_all_is_done_ends_a_new_loop_before_anything_is_paid(
    rig: LoopRig, reason: str
) -> None:
    end = rig.play()
    assert (end.exit_code, rig.iterations.orders) == (78, [])
    assert end.reason.startswith(reason)


def test_a_red_gate_at_the_start_is_no_end_and_a_green_one_neither() -> None:
    for code in (0, 1):
        rig = LoopRig(gates=[code, 0], limits=limited(1))
        assert (rig.play().exit_code, len(rig.iterations.orders)) == (0, 1)


@every_row(
    ("gates", "verdicts", "tasks", "begun"),
    [
        (None, None, [0], 0),
        ([0], None, [0], 0),
        ([0], [0], [0], 0),
        ([0], [0], None, 0),
        ([1, 0], None, [0], 1),
        ([0], [1, 0], [0], 1),
        ([0], [0], [1, 1, 0], 1),
    ],
)
def test_a_loop_is_done_at_the_start_only_if_all_that_was_given_holds(
    gates: Any, verdicts: Any, tasks: Any, begun: int
) -> None:
    def rig(**options: object) -> LoopRig:
        lists = [None if one is None else [*one] for one in (gates, verdicts, tasks)]
        return LoopRig(gates=lists[0], verdicts=lists[1], open_tasks=lists[2], options=options)

    played = rig()
    end = played.play()
    assert (end.exit_code, len(played.iterations.orders)) == (0, begun)
    assert ("so nothing was begun" in end.reason) == (not begun)
    anyway = rig(at_least_once=True)
    assert (anyway.play().exit_code, len(anyway.iterations.orders)) == (0, 1)


@every_row("later", [[None], [CANNOT_READ]])
def test_a_plan_that_is_emptied_or_removed_later_is_not_done(later: list[Any]) -> None:
    rig = LoopRig(gates=[0], open_tasks=[2, 2, *later], limits=limited(2))
    end = rig.play()
    assert (end.exit_code, end.reason) == (3, "2 iterations are done, PLAN.md has no task at all")
    assert [one.open_tasks for one in rig.state.iterations] == [None, None]


# --- the stop file

STOPS = ScriptedIteration(stops=True)


@every_row(
    ("given", "why"),
    [
        ({"gates": [0, 1, 0]}, "the gate failed (exit 1)"),
        ({"gates": [0], "open_tasks": [2, 2, 1, 0]}, "PLAN.md has 1 open task"),
        ({"gates": [0], "verdicts": [1, 1, 0]}, "the check failed (exit 1)"),
    ],
)
def test_a_stop_file_before_all_is_done_is_removed_and_the_next_prompt_says_so(given: Any, why: str) -> None:
    rig = LoopRig([STOPS], limits=limited(2), **given)
    assert rig.play().exit_code == 0
    assert not rig.iterations.has_stop_file
    assert f"the stop file was removed: {why}" in rig.told
    assert f"The file .ralph/stop was removed, because {why}: the work goes on." in rig.prompts[1]
    assert ".ralph/stop was removed" not in rig.prompts[0]
    assert not rig.state.has_removed_stop_file, "the iteration after it has ended"


def test_a_stop_file_ends_a_loop_with_a_green_gate_and_the_prompt_says_on_what_terms() -> None:
    rig = LoopRig([ScriptedIteration(), STOPS], gates=[0], limits=limited(9))
    end = rig.play()
    assert (end.exit_code, end.reason) == (0, "the gate passes and the stop file is there")
    assert len(rig.prompts) == 2
    assert "It ends the loop only if the command above exits 0; create it for nothing else." in rig.prompts[0]
    assert rig.iterations.rooms_made == 2


# --- a resumed loop


def test_a_kill_while_the_gate_runs_neither_loses_nor_repeats_the_iteration() -> None:
    rig = LoopRig(gates=[0, 1, 0], open_tasks=[1, 1, 0], options=SAVES, limits=limited(3))
    state = rig.stopped_in_its_first_iteration()
    again = LoopRig(gates=[0], open_tasks=[0], options=SAVES)
    again.iterations.sessions = {state.current.session_id: rig.iterations.sessions[state.current.session_id]}  # type: ignore[union-attr]  # it is in its first iteration
    again.checkout.version, again.checkout.uncommitted = 1, 1
    assert again.play(state).exit_code == 0
    assert again.iterations.orders == []
    assert [(one.number, one.gate) for one in again.state.iterations] == [(1, "passed")]
    assert (len(again.checkout.messages), again.checkout.to_push) == (1, 0)


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
    warned = "what the gate did not let through is on branch ralph/red-1"
    assert (warned in rig.state.warnings) == bool(aside)
    limits_s = {3.0 if result.stopped_by else math.inf} if rig.checkout.aside_limits_s else set()
    assert set(rig.checkout.aside_limits_s) == limits_s
    is_on_the_branch = bool(options.get("commits")) and (gates == [0, 0] or "commits_red" in options)
    assert len(rig.checkout.messages) == is_on_the_branch


def test_red_work_that_cannot_be_committed_is_told_and_no_success() -> None:
    rig = LoopRig(gates=[1], limits=limited(1), options={"commits": True})
    rig.checkout.commit_problem = "the disk is full"
    end = rig.play()
    assert (end.exit_code, rig.state.red_branch) == (74, None)
    assert end.reason.endswith("the gate failed (exit 1), but not all work is committed")
    problem = "what the gate did not let through could not be committed, and stays as it is: the disk is full"
    assert problem in rig.told
    again = LoopRig(gates=[1], limits=limited(1), options={"commits": True})
    again.checkout.uncommitted = 1
    assert again.play(replace(rig.state, ended=None)).exit_code == 3
    assert (again.checkout.messages, again.state.red_branch) == ([], "ralph/red-1")


def test_a_branch_with_red_work_is_history_once_the_gate_is_green() -> None:
    rig = LoopRig(gates=[1], limits=limited(1), options={"commits": True})
    rig.play()
    again = LoopRig(gates=[1, 0], limits=limited(2), options={"commits": True})
    assert again.play(replace(rig.state, ended=None, plan=again.new_state().plan)).exit_code == 0
    assert (again.state.warnings, len(again.checkout.messages)) == ((), 1)


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
