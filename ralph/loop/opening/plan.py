"""The state that a loop begins with: its new or recorded plan, and the settings files whose content from before the first
iteration counts to the loop's end. It starts no process and calls no API.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.git.own_paths import own_output_files
from ralph.loop.record import LoopStore
from ralph.loop.rules import with_new_limits
from ralph.loop.state import LoopState, moved_state
from ralph.loop.values import REPORT_PAGE, LoopLimits
from ralph.machine.files.repository import repository_top
from ralph.machine.own_programs import search_around
from ralph.sessions.store import SessionStore
from ralph.settings.claude_files import ClaudeFileError, read_claude_files
from ralph.settings.files import find_settings_files
from ralph.settings.handover import changed_since, recorded_files
from ralph.settings.merge import ClaudeOptions, SettingsError, load_with_claude
from ralph.values.outcome import CannotError, Outcome
from ralph.values.servers.endpoint import URL_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.loop.values import LoopOptions, LoopPlan
    from ralph.settings.files import SettingsFile
    from ralph.settings.tables import Settings
    from ralph.values.ports import Clock

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def opening_state(
    options: LoopOptions, environment: Mapping[str, str], store: LoopStore, clock: Clock
) -> LoopState:
    """A new state, or with `--continue` the newest recorded one. Raises CannotError and RecordError."""
    now = clock.utc_now().isoformat()
    if not options.continues:
        plan = _with_own_paths(options.plan, environment)
        return LoopState(plan, started_at=now, pid=os.getpid(), updated_at=now)
    directory, record = options.plan.directory, store.newest()
    state, given = record.load(), options.limits_given
    if options.has_moved and state.plan.directory != directory:
        state = moved_state(state, directory, *_moved_roots(state.plan.directory, directory))
        if not Path(state.plan.launch_directory).is_dir():  # it was on the other machine
            state = replace(state, plan=replace(state.plan, launch_directory=directory))
    if state.plan.directory != directory:
        other = f"{record.path} belongs to the loop in {state.plan.directory}; `ralph loop` without --continue starts a new one here"
        raise CannotError(other)
    ended = state.ended
    if ended is not None and ended.outcome is Outcome.COMPLETED and given == LoopLimits():
        done = f"the loop of {directory} is done ({ended.reason})"
        raise CannotError(
            f"{done}: `ralph loop` without --continue starts a new one, a higher limit resumes this one",
            Outcome.USAGE,
        )
    _refuse_reached_limit(state, given)
    plan = _with_own_paths(state.plan, environment)
    if options.base_url_given is not None:
        # If an option is given twice, the last value is used.
        arguments = (*plan.run_arguments, "--base-url", options.base_url_given)
        flags = {**plan.server_flags, "model.base_url": options.base_url_given}
        plan = replace(plan, run_arguments=arguments, server_flags=flags, server=None)
    return with_new_limits(replace(state, plan=plan, pid=os.getpid(), ended=None, unpushed=0), given)


def _moved_roots(old: str, new: str) -> tuple[str, str]:
    """The roots below which paths have moved together with a directory: the top of its repository before and now, or the
    directory itself if it has another place in the repository than before.
    """
    top = repository_top(Path(new))
    inside = "" if top is None else new.removeprefix(str(top))
    return (old.removesuffix(inside), str(top)) if inside and old.endswith(inside) else (old, new)


def _refuse_reached_limit(state: LoopState, given: LoopLimits) -> None:
    """A loop without iterations left would end at once, and without a check as a success, even after a failure."""
    done, most = len(state.iterations), given.max_iterations
    has_failed = state.ended is not None and state.ended.outcome is not Outcome.COMPLETED
    # With unsaved work the loop continues, to commit and push it.
    if most is None and has_failed and not (state.plan.has_condition or state.has_unsaved_work):
        most = state.plan.limits.max_iterations
    if most is not None and most <= done:
        number = "1 iteration" if done == 1 else f"{done} iterations"
        raise CannotError(
            f"the loop has already run {number}: to continue it, give a higher --max-iterations",
            Outcome.USAGE,
        )


def _with_own_paths(plan: LoopPlan, environment: Mapping[str, str]) -> LoopPlan:
    """Adds all that ralph writes to, or that receives its output, to `own_paths`: changes there are not the agent's work."""
    directory = Path(plan.directory)
    named = None if plan.session_directory is None else Path(plan.session_directory)
    stores = [SessionStore.to_read(environment, place) for place in (None, named)]
    files = [plan.metrics_file, plan.report_file, environment.get(STEP_SUMMARY)]
    places = (
        *own_output_files(),
        *(store.root for store in stores),
        *(store.place_of(directory) for store in stores),
        *LoopStore.to_read(environment, directory).roots,
        directory / REPORT_PAGE,
        *(Path(plan.launch_directory, path) for path in files if path),
    )
    return replace(plan, own_paths=tuple(dict.fromkeys((*plan.own_paths, *map(str, places)))))


def with_settings_files(
    plan: LoopPlan, environment: Mapping[str, str], warn: Callable[[str], None]
) -> tuple[LoopPlan, tuple[SettingsFile, ...]]:
    """Reads the settings files, and records in the plan those that an iteration could change. A recorded file counts as it
    was, with a warning if it has changed since.
    """
    config_file = None if plan.config_file is None else Path(plan.config_file)
    recorded = plan.settings_files or ()
    directory, reach = Path(plan.directory), reach_of(plan)
    search = search_around(environment, (directory, *reach))
    mcp_files = map(Path, plan.mcp_files)
    files = find_settings_files(
        environment, directory, config_file, search, recorded=recorded, mcp_files=mcp_files
    )
    for path in changed_since(recorded):
        warn(_changed(path))
    if plan.settings_files is None:
        plan = replace(plan, settings_files=recorded_files(files, search))
    return plan, files


def with_claude_files(
    plan: LoopPlan, environment: Mapping[str, str], warn: Callable[[str], None]
) -> LoopPlan:
    """As `with_settings_files`, for the files made for Claude Code. The user's own file is read again. Raises CannotError."""
    try:
        now = read_claude_files(Path(plan.directory), environment, plan.claude_settings, reach_of(plan))
    except ClaudeFileError:
        if plan.claude_files is None:
            raise
        now = ()
    if plan.claude_files is None:
        return replace(plan, claude_files=now)
    kept = tuple(file for file in plan.claude_files if file.kind != "user" or not now)
    for file in kept:
        if file.kind != "user" and file not in now:
            warn(_changed(file.name))
    return replace(plan, claude_files=(*kept, *(file for file in now if file.kind == "user")))


def _changed(name: str) -> str:
    return f"{name} has changed since the loop began: the loop keeps using the earlier content"


def with_server(plan: LoopPlan, settings: Settings) -> LoopPlan:
    """Records the server that the iterations ask. Raises CannotError if it differs from the recorded one: a variable
    that is no longer set must not send the work and the key to a server that the user did not choose for this loop.
    """
    if plan.agent is not None or settings.origins.get("targets", "default") != "default":
        return replace(plan, server=None)
    first = settings.targets[0]
    now = (first.api, first.base_url)
    if plan.server is None or plan.server == now:
        return replace(plan, server=now)
    api, base_url = plan.server
    named_api = "" if api == first.api else f"RALPH_API={api} and "
    raise CannotError(
        f"the loop asked {base_url} until now, and would ask {first.base_url}: set {named_api}{URL_VARIABLES[api]}={base_url} "
        f"as when it began, or confirm the new server with --continue --base-url {first.base_url}"
    )


def reach_of(plan: LoopPlan) -> tuple[Path, ...]:
    """The directories besides the working directory that an iteration may write."""
    return tuple(map(Path, plan.added_directories))


def settings_of(plan: LoopPlan, environment: Mapping[str, str], files: tuple[SettingsFile, ...]) -> Settings:
    """Loads the loop's settings. A missing API key is not an error here, because the options in `plan.run_arguments`
    may name a key. Each iteration checks for itself whether it has a key. Raises CannotError.
    """
    config_file = None if plan.config_file is None else Path(plan.config_file)
    flags = {
        "tools.pass_env": plan.pass_env,
        "notify.command": plan.notify,
        **plan.sandbox,
        **plan.server_flags,
    }
    claude = ClaudeOptions(plan.claude_settings, frozenset(plan.setting_sources), plan.claude_files)
    directory, reach = Path(plan.directory), reach_of(plan)
    try:
        return load_with_claude(flags, environment, directory, config_file, files, reach=reach, claude=claude)
    except SettingsError as error:
        if error.so_far is None:
            raise
        return error.so_far
