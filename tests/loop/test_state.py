from __future__ import annotations

from ralph.loop.state import (
    CurrentIteration,
    FileDigest,
    IterationRecord,
    LoopState,
    Phase,
    read_state,
    state_text,
)
from ralph.loop.values import CheckResult, LoopEnd, LoopLimits, LoopPlan
from ralph.values.outcome import Outcome

RECORD = IterationRecord(
    1, "s1", Outcome.TIMED_OUT, 124, 3, 0.25, 61.5, 2, ("a\udcff.py",), 9, True, "passed"
)
CURRENT = CurrentIteration(
    2,
    "s2",
    "2026-11-22T02:00:00+00:00",
    61.5,
    "abc",
    "def",
    (FileDigest("\udcff", "12"),),
    "main",
    Phase.WAITING,
    3,
    45.0,
)
FULL = LoopState(
    LoopPlan(
        "/work",
        "/",
        prompt_file="/work/PROMPT.md",
        run_arguments=("--model", "opus"),
        until="make test",
        limits=LoopLimits(5, 2.5, 3600.0),
    ),
    started_at="2026-11-22T01:00:00+00:00",
    pid=7,
    iterations=(RECORD,),
    first_check=CheckResult(1, "it fails\n"),
    last_check=CheckResult(None, problem="timed out after 5 s"),
    current=CURRENT,
    ended=LoopEnd(Outcome.INTERRUPTED, 130, "stopped by SIGINT"),
    commit_problem="commit failed",
)


def test_a_state_comes_back_as_it_was_written() -> None:
    assert read_state(state_text(FULL)) == FULL


def test_what_was_spent_counts_the_iteration_under_way_and_is_unknown_where_one_is() -> None:
    assert FULL.spent_usd == 0.25
    unknown = CurrentIteration(2, "s2", "", 0.0, "", "", cost_usd=None)
    assert LoopState(FULL.plan, "", 1, iterations=(RECORD,), current=unknown).spent_usd is None
