"""Converts the command line of `ralph run` to the options of a run, and does it. Imported when there is a run to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ralph.cli.command_words import wrong_value
from ralph.cli.task_words import check_output_is_open, requested_report, text_or_file, writable_file
from ralph.cli.values import absolute, json_or_path, run_directories
from ralph.output.writer import OutputOptions
from ralph.run.command import run_command
from ralph.run.options import RunOptions, SessionOptions
from ralph.values.controls import PermissionMode

if TYPE_CHECKING:
    from ralph.cli.options import RunLine
    from ralph.settings.handover import LoopHandover


def do_run(line: RunLine, writable: tuple[str, ...]) -> int:
    """Does the run, and returns the exit code. `writable` are the directories of `--add-dir`."""
    options = _run_options(line, writable)
    check_output_is_open(options.output.result_file)
    if not options.takes_messages:
        return run_command(options)
    from ralph.driven.driver import MessageDriver  # noqa: PLC0415 - few runs are driven

    return run_command(options, make_driver=MessageDriver)


def _run_options(line: RunLine, writable: tuple[str, ...]) -> RunOptions:
    bypasses = line.permission_mode is None and line.dangerously_skip_permissions
    session_dir, of_loop = absolute(line.session_dir), _of_loop(line.iteration)
    files = [line.system_prompt_file, line.append_system_prompt_file, line.json_schema]
    if of_loop is None:  # else the loop has read them
        servers = line.flags["mcp.config"]
        files += [line.config, line.claude_settings, *(servers if isinstance(servers, tuple) else ())]
    reach = writable if of_loop is None else (*writable, *of_loop.directories)
    directories = run_directories(line.directory, reach)
    return RunOptions(
        prompt=line.prompt,
        prompt_file=absolute(line.prompt_file),
        takes_messages=line.input_format == "stream-json",
        directory=line.directory,
        writable=writable,
        config_file=absolute(line.config),
        claude_settings=json_or_path(line.claude_settings),
        setting_sources=line.sources,
        names_sources=line.setting_sources is not None,
        takes_commands=not line.disable_slash_commands,
        permission_mode=PermissionMode.BYPASS if bypasses else line.permission_mode,
        permissions="nobody"
        if line.permission_prompts == "none"
        else None
        if line.permission_prompt_tool is None
        else "driver",
        session=SessionOptions(
            session_id=None if line.session_id is None else str(line.session_id),
            continues=line.continue_,
            resume=line.resume,
            forks=line.fork_session,
            has_moved=line.moved,
            directory=Path(session_dir) if session_dir else None,
            is_kept=not line.no_session_persistence,
        ),
        system_prompt=text_or_file("system-prompt", line.system_prompt, line.system_prompt_file, directories),
        append_system_prompt=text_or_file(
            "append-system-prompt", line.append_system_prompt, line.append_system_prompt_file, directories
        ),
        files_read=tuple(one for one in map(json_or_path, files) if one and one.startswith("/")),
        report=requested_report(line.json_schema, directories, is_required=line.require_report),
        of_loop=of_loop,
        metrics_file=writable_file("--metrics-file", line.metrics_file, directories),
        exports_traces=line.otel,
        has_diagnostics=line.debug or line.debug_file is not None,
        debug_file=writable_file("--debug-file", line.debug_file, directories),
        replays_messages=line.replay_user_messages,
        includes_hook_events=line.include_hook_events,
        title=line.name,
        output=OutputOptions(
            output_format=line.output_format,
            include_partial=line.include_partial_messages,
            is_quiet=line.quiet,
            result_file=writable_file("--result-file", line.result_file, directories),
            directories=directories,
        ),
        settings=line.flags,
        is_restricted=line.restricted,
    )


def _of_loop(descriptor: int | None) -> LoopHandover | None:
    if descriptor is None:
        return None
    from ralph.settings.handover import taken_over  # noqa: PLC0415 - for iterations alone

    try:
        return taken_over(descriptor)
    except ValueError as error:
        raise wrong_value("--iteration", str(error)) from None
