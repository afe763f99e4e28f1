"""The state of a loop whose directory has moved. Paths in the plan that lie below the old directory become paths below
the new one. No I/O happens here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from ralph.loop.state import LoopState


def moved_state(state: LoopState, directory: str, old_root: str, root: str) -> LoopState:
    """The state of the loop in `directory`. `root` is this directory or the top of its repository, and `old_root` is
    the path that it had.
    """

    def moved(path: str) -> str:
        return root + path[len(old_root) :] if path == old_root or path.startswith(f"{old_root}/") else path

    def moved_or_none(path: str | None) -> str | None:
        return None if path is None else moved(path)

    def moved_word(word: str) -> str:
        option, equals, path = word.partition("=")
        return f"{option}={moved(path)}" if equals and option.startswith("--") else moved(word)

    plan, current = state.plan, state.current
    plan = replace(
        plan,
        directory=directory,
        launch_directory=moved(plan.launch_directory),
        prompt_file=moved_or_none(plan.prompt_file),
        run_arguments=tuple(map(moved_word, plan.run_arguments)),
        session_directory=moved_or_none(plan.session_directory),
        config_file=moved_or_none(plan.config_file),
        mcp_files=tuple(map(moved, plan.mcp_files)),
        settings_files=None
        if plan.settings_files is None
        else tuple(replace(file, path=moved(file.path)) for file in plan.settings_files),
        claude_settings=moved_or_none(plan.claude_settings),
        claude_files=None
        if plan.claude_files is None
        else tuple(replace(file, name=moved(file.name), root=moved(file.root)) for file in plan.claude_files),
        metrics_file=moved_or_none(plan.metrics_file),
        report_file=moved_or_none(plan.report_file),
        added_directories=tuple(map(moved, plan.added_directories)),
        own_paths=tuple(map(moved, plan.own_paths)),
    )
    if current is not None:
        # Another clone has other settings, which no iteration has changed.
        current = replace(current, guarded=None)
    return replace(state, plan=plan, current=current)
