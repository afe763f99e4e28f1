"""`ralph run`: converts the command line to the options of a run, and starts the run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ralph.cli.command_line import NO_EFFECT, refuse_command_word, refuse_lone_word, wrong_value
from ralph.cli.options import RunLine, check_output_is_open, refuse_contradictions, run_options
from ralph.cli.settings_command import SettingsCommand, TypedLine, check_settings
from ralph.cli.typer_command import (
    directories,
    prompt_not_in_list,
    refuse_file_as_prompt,
)
from ralph.machine.process_start import is_piped
from ralph.values.outcome import Outcome, ShortageError, shortage_of


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
        from ralph.run.command import run_command  # noqa: PLC0415 - the lack of memory for a run's modules is a result too
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
    options = run_options(line, writable)
    check_output_is_open(options.output.result_file)
    if not options.takes_messages:
        return run_command(options)
    from ralph.driven.driver import MessageDriver  # noqa: PLC0415 - few runs are driven

    return run_command(options, make_driver=MessageDriver)


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
