"""`ralph run`: converts the command line to the options of a run, and starts the run."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ralph.cli.claude_options import NO_EFFECT
from ralph.cli.commands import wrong_value
from ralph.cli.options import RunLine
from ralph.cli.settings_command import SettingsCommand, Typed, check_settings
from ralph.cli.values import (
    absolute,
    check_output_is_open,
    check_partial_messages,
    directories,
    json_or_path,
    prompt_not_in_list,
    refuse_file_as_prompt,
    requested_report,
    run_directories,
    session_options,
    text_or_file,
    who_permits,
    writable_file,
)
from ralph.values.outcome import Outcome
from ralph.values.permission_mode import PermissionMode
from ralph.values.shortage import ShortageError, shortage_of

if TYPE_CHECKING:
    from ralph.output.writer import OutputOptions
    from ralph.run.options import RunOptions
    from ralph.settings.handover import LoopHandover


def run(line: RunLine, typed: Typed) -> int:
    """Do one task: ask the model, run its tools, and repeat until the task ends."""
    if typed.is_command_inserted and line.prompt and not line.print_:
        from ralph.cli.command_words import refuse_command_word  # noqa: PLC0415 - most prompts follow `ralph run`

        # The parser has only now found out which word is the prompt, because options precede it.
        refuse_command_word([line.prompt, *(["--continue"] if line.continue_ or line.resume else [])])
    refuse_file_as_prompt(line.prompt)
    try:
        from ralph.run.command import run_command  # noqa: PLC0415 - not needed for --help
    except (OSError, MemoryError, ImportError) as error:
        shortage = shortage_of(error)
        if shortage is not None:
            _write_result(shortage, line.output_format)
        raise
    check_partial_messages(is_asked=line.include_partial_messages, output_format=line.output_format)
    takes_messages = line.input_format == "stream-json"
    if takes_messages and line.output_format != "stream-json":
        raise wrong_value("--input-format", "stream-json needs --output-format stream-json")
    if line.include_hook_events and line.output_format != "stream-json":
        raise wrong_value("--include-hook-events", "needs --output-format stream-json")
    if line.replay_user_messages and not takes_messages:
        raise wrong_value("--replay-user-messages", "needs --input-format stream-json")
    permissions = who_permits(
        line.permission_prompt_tool, line.permission_prompts, takes_messages=takes_messages
    )
    names_prompt = (line.prompt, line.prompt_file, line.resume) != (None, None, None)
    has_prompt = names_prompt or line.continue_ or takes_messages
    with prompt_not_in_list(typed.last_list, has_prompt=has_prompt):
        writable = directories("--add-dir", line.add_dir)
        check_settings({name: value for name, value in line.settings.items() if name.startswith("tools.")})
    options = _run_options(line, writable, permissions=permissions)
    check_output_is_open(options.output.result_file)
    return run_command(options)


def _run_options(
    line: RunLine, writable: tuple[str, ...], *, permissions: Literal["driver", "nobody"] | None
) -> RunOptions:
    from ralph.run.options import RunOptions  # noqa: PLC0415 - not needed for --help

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
        permission_mode=_mode(line),
        permissions=permissions,
        session=session_options(
            continues=line.continue_,
            resume=line.resume,
            forks=line.fork_session,
            has_moved=line.moved,
            session_id=None if line.session_id is None else str(line.session_id),
            directory=absolute(line.session_dir),
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
        output=_output_options(line),
        settings=line.flags,
        is_restricted=line.restricted,
    )


def _of_loop(descriptor: int | None) -> LoopHandover | None:
    """The values of the loop that started this run. None if no loop started it."""
    if descriptor is None:
        return None
    from ralph.settings.handover import taken_over  # noqa: PLC0415 - for iterations alone

    try:
        return taken_over(descriptor)
    except ValueError as error:
        raise wrong_value("--iteration", str(error)) from None


def _mode(line: RunLine) -> PermissionMode | None:
    if line.permission_mode is None and line.dangerously_skip_permissions:
        return PermissionMode.BYPASS
    return line.permission_mode


def _output_options(line: RunLine) -> OutputOptions:
    from ralph.output.writer import OutputOptions  # noqa: PLC0415 - not needed for --help

    return OutputOptions(
        output_format=line.output_format,
        include_partial=line.include_partial_messages,
        is_quiet=line.quiet,
        result_file=writable_file("--result-file", line.result_file, line.directory),
        directories=run_directories(line.directory),
    )


def _write_result(shortage: ShortageError, output_format: str) -> None:
    """Writes the result of a run that could not begin, because its modules could not be loaded. The JSON text is put
    together by hand. No value in it needs escaping.
    """
    if output_format == "text":
        return
    outcome = Outcome.API_UNAVAILABLE
    line = (
        '{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0,'
        f'"terminal_reason":"{outcome.value}","exit_code":{outcome.exit_code()},"errors":["{shortage}"]}}\n'
    )
    with suppress(OSError):
        os.write(1, line.encode())


COMMAND = SettingsCommand("run", run, RunLine, ignored=NO_EFFECT)
