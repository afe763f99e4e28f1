"""`ralph run`: converts the command line to the options of a run, and starts the run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.cli.claude_options import NO_EFFECT
from ralph.cli.command_words import refuse_command_word, refuse_lone_word, wrong_value
from ralph.cli.options import RunLine, refuse_contradictions
from ralph.cli.settings_command import SettingsCommand, TypedLine, check_settings
from ralph.cli.values import (
    absolute,
    check_output_is_open,
    directories,
    is_piped,
    json_or_path,
    prompt_not_in_list,
    refuse_file_as_prompt,
    requested_report,
    run_directories,
    text_or_file,
    writable_file,
)
from ralph.values.controls import PermissionMode
from ralph.values.outcome import Outcome
from ralph.values.shortage import ShortageError, shortage_of

if TYPE_CHECKING:
    from ralph.run.options import RunOptions
    from ralph.settings.handover import LoopHandover


def run(line: RunLine, typed: TypedLine) -> int:
    """Do one task: ask the model, run its tools, and repeat until the task ends."""
    if typed.is_command_inserted and line.prompt and not line.print_:
        # The parser has only now found out which word is the prompt, because options precede it.
        names_session = line.continue_ or line.resume is not None
        refuse_command_word([line.prompt, *(["--continue"] if names_session else [])])
        if not (names_session or is_piped()):
            refuse_lone_word(line.prompt, "ralph", "ralph run")
    refuse_file_as_prompt(line.prompt)
    try:
        from ralph.run.command import run_command  # noqa: PLC0415 - not needed for --help
    except (OSError, MemoryError, ImportError) as error:
        shortage = shortage_of(error)
        if shortage is not None:
            _write_result(shortage, line.output_format)
        raise
    refuse_contradictions(line)
    if line.session_dir and (line.continue_ or line.resume) and not Path(line.session_dir).exists():
        raise wrong_value(
            "--session-dir", f"{line.session_dir} does not exist, so it has no session to resume"
        )
    names_prompt = (line.prompt, line.prompt_file, line.resume) != (None, None, None)
    has_prompt = names_prompt or line.continue_ or line.input_format == "stream-json"
    with prompt_not_in_list(typed.last_list, has_prompt=has_prompt):
        writable = directories("--add-dir", line.add_dir)
        check_settings({name: value for name, value in line.settings.items() if name.startswith("tools.")})
    options = _run_options(line, writable)
    check_output_is_open(options.output.result_file)
    if not options.takes_messages:
        return run_command(options)
    from ralph.driven.driver import MessageDriver  # noqa: PLC0415 - few runs are driven

    return run_command(options, make_driver=MessageDriver)


def _run_options(line: RunLine, writable: tuple[str, ...]) -> RunOptions:
    from ralph.output.writer import OutputOptions  # noqa: PLC0415 - not needed for --help
    from ralph.run.options import RunOptions, SessionOptions  # noqa: PLC0415 - not needed for --help

    bypasses = line.permission_mode is None and line.dangerously_skip_permissions
    session_dir = absolute(line.session_dir)
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
        system_prompt=text_or_file(
            "system-prompt", line.system_prompt, line.system_prompt_file, line.directory
        ),
        append_system_prompt=text_or_file(
            "append-system-prompt", line.append_system_prompt, line.append_system_prompt_file, line.directory
        ),
        report=requested_report(line.json_schema, line.directory, is_required=line.require_report),
        of_loop=_of_loop(line.iteration),
        metrics_file=writable_file("--metrics-file", line.metrics_file, line.directory),
        exports_traces=line.otel,
        has_diagnostics=line.debug or line.debug_file is not None,
        debug_file=writable_file("--debug-file", line.debug_file, line.directory),
        replays_messages=line.replay_user_messages,
        includes_hook_events=line.include_hook_events,
        title=line.name,
        output=OutputOptions(
            output_format=line.output_format,
            include_partial=line.include_partial_messages,
            is_quiet=line.quiet,
            result_file=writable_file("--result-file", line.result_file, line.directory),
            directories=run_directories(line.directory),
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


def _write_result(shortage: ShortageError, output_format: str) -> None:
    """Writes the result of a run that could not begin, because its modules could not be loaded."""
    if output_format == "text":
        return
    outcome = Outcome.API_UNAVAILABLE
    line = (
        '{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0,'
        f'"terminal_reason":"{outcome.value}","exit_code":{outcome.exit_code()},"errors":["{shortage}"]}}\n'
    )
    with suppress(OSError):
        os.write(1, line.encode())


_FIRST = """
prompt_file model fallback_model max_turns max_budget_usd max_time sandbox output_format directory add_dir continue_ resume
""".split()

COMMAND = SettingsCommand("run", run, RunLine, first=_FIRST, ignored=NO_EFFECT)
