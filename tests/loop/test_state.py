"""The state of a loop: how it is read, summed and moved to another directory."""

from __future__ import annotations

from ralph.loop.state import (
    CurrentIteration,
    FileDigest,
    IterationRecord,
    LoopState,
    Phase,
    moved_state,
    read_state,
    state_text,
)
from ralph.loop.values import CheckResult, LoopEnd, LoopLimits, LoopPlan
from ralph.settings.files import RecordedFile
from ralph.values.claude_file import ClaudeFile
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


OLD, NEW = "/machines/a/repo", "/b/repo"
PLAN = LoopPlan(
    directory=f"{OLD}/sub",
    launch_directory=OLD,
    prompt_file=f"{OLD}/PROMPT.md",
    run_arguments=("--config", f"{OLD}/x.toml", f"--metrics-file={OLD}/m", "--model", "opus"),
    session_directory=f"{OLD}/sessions",
    config_file=f"{OLD}/x.toml",
    mcp_files=(f"{OLD}/mcp.json",),
    settings_files=(RecordedFile(f"{OLD}/ralph.toml", "a = 1"),),
    claude_settings=f"{OLD}/settings.json",
    claude_files=(ClaudeFile(f"{OLD}/.claude/settings.json", "project", OLD, "{}"),),
    metrics_file=f"{OLD}/m",
    report_file=f"{OLD}/page.html",
    plan=f"{OLD}/PLAN.md",
    plan_file=f"{OLD}/PLAN.md",
    added_directories=(f"{OLD}/more",),
    own_paths=(f"{OLD}/sub/log", OLD),
)


def test_each_path_below_the_old_directory_is_below_the_new_one() -> None:
    state = LoopState(PLAN, "now", 1)
    moved = moved_state(state, f"{NEW}/sub", OLD, NEW)
    assert state_text(moved) == state_text(state).replace(OLD, NEW)


def test_other_paths_and_texts_stay() -> None:
    plan = LoopPlan(
        directory=OLD,
        launch_directory="/machines",
        prompt=f"look at {OLD}/a",
        run_arguments=("--append-system-prompt", f"see {OLD}/a", f"--name={OLD}er"),
        config_file=f"{OLD}er/x.toml",
        until=f"test -e {OLD}/a",
    )
    moved = moved_state(LoopState(plan, "now", 1), NEW, OLD, NEW).plan
    assert (moved.directory, moved.launch_directory, moved.prompt) == (NEW, "/machines", plan.prompt)
    assert (moved.run_arguments, moved.config_file, moved.until) == (
        plan.run_arguments,
        plan.config_file,
        plan.until,
    )


def test_another_clone_is_not_told_that_an_iteration_changed_gits_settings() -> None:
    current = CurrentIteration(1, "s", "now", 0.0, "head", "digest", guarded=(FileDigest("remote", "1"),))
    moved = moved_state(LoopState(PLAN, "now", 1, current=current), NEW, OLD, NEW)
    assert moved.current is not None
    assert moved.current.guarded is None
