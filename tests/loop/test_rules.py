"""When a loop is done, and what its limit on iterations means: a table of what the user may have given."""

from __future__ import annotations

from msgspec.structs import replace

from ralph.loop.rules import end_before, end_if_done, end_of_unusable, what_is_missing
from ralph.loop.state import LoopState
from ralph.loop.values import CheckResult, LoopLimits, LoopPlan
from ralph.values.outcome import Outcome
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
