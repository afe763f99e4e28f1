"""The plan of a loop whose directory has moved must name no path below the old directory."""

from __future__ import annotations

from ralph.loop.state import CurrentIteration, FileDigest, LoopState, moved_state, state_text
from ralph.loop.values import LoopPlan
from ralph.settings.files import RecordedFile
from ralph.values.claude_file import ClaudeFile

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
