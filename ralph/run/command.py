"""Runs `ralph run`, from its options to its exit code. If ralph works on one prompt, it writes exactly one result,
even after a bug or a wrong command line. If it cannot write the result, it writes one line to standard error instead.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.inbox import ONE_SIGNAL_S, Inbox, catch_stop_signals
from ralph.machine.own_process import why_too_few_descriptors
from ralph.machine.waiter import SystemClock
from ralph.output.standard_streams import complain
from ralph.prompt.prompt_input import InputWait, PromptFound, read_prompt
from ralph.run.context import make_context
from ralph.run.process import RunProcess
from ralph.run.wiring import refuse_unknown_command
from ralph.values.credentials import known_secrets
from ralph.values.events import Notice, RunEnded
from ralph.values.outcome import Outcome, UsageError
from ralph.values.redaction import Redactor
from ralph.values.screen_text import in_one_line
from ralph.values.shortage import line_with_advice, shortage_of
from ralph.values.tool_calls import describe_bug

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.run.driven.driven_run import Driver
    from ralph.run.options import RunOptions
    from ralph.run.wiring import Surroundings
    from ralph.values.ports import Events


def run_command(options: RunOptions, environment: Mapping[str, str] | None = None, *watchers: Events) -> int:
    """Works on one prompt, or on the messages of a driver, and returns the exit code of the process.

    If `environment` is None, the environment of the process is used. Each of the `watchers` receives every event of
    the run. Raises only UsageError.
    """
    environment = dict(os.environ) if environment is None else environment
    clock, context = SystemClock(), None
    # A signal to a process group or a systemd unit reaches a run of `ralph loop` twice: directly, and through the
    # loop.
    inbox = Inbox(clock, one_signal_for_s=0.0 if options.of_loop is None else ONE_SIGNAL_S)
    restore_signals = catch_stop_signals(inbox)
    try:
        context = make_context(options, environment, inbox, clock, *watchers)
        process = RunProcess(context)
        code = run_prompt(process) if context.driver is None else _run_messages(process, context.driver)
        process.remove_old_journals()
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - not even the result could be written: one line, no traceback
        return _tell_failure(
            error, Redactor(known_secrets(environment)) if context is None else context.redactor
        )
    else:
        return code
    finally:
        restore_signals()


def _tell_failure(error: Exception, redactor: Redactor) -> int:
    """Writes one line to standard error that says why ralph could not write a result. Returns the exit code."""
    shortage = shortage_of(error)
    too_few = None if shortage is None else why_too_few_descriptors()
    why = too_few or (describe_bug(error) if shortage is None else line_with_advice(shortage))
    complain(redactor.redact_all(in_one_line(why)))
    outcome = Outcome.INTERNAL_ERROR if shortage is None else Outcome.API_UNAVAILABLE
    outcome = outcome if too_few is None else Outcome.CONFIG
    return outcome.exit_code()


def _run_messages(process: RunProcess, driver: Driver) -> int:
    from ralph.run.driven.driven_run import run_messages  # noqa: PLC0415 - few runs are driven

    return run_messages(process, driver)


def run_prompt(process: RunProcess) -> int:
    """Works on one prompt until there is a result, and returns the exit code. Raises UsageError if the command line
    is wrong. The caller writes the message of this error to standard error.
    """
    try:
        asked = process.attempt(lambda: _begin(process))
    except UsageError as error:
        return process.deliver_misuse(error)
    if isinstance(asked, RunEnded):
        return process.deliver(process.tell(asked), is_told=False).exit_code
    around, found = asked
    try:
        ended = process.attempt(lambda: _work(process, around, found))
    except UsageError as error:
        return process.deliver_misuse(error, _late_notices(found))
    ended = process.tell(replace(ended, notices=(*ended.notices, *_late_notices(found))))
    return process.deliver(ended, is_told=False).exit_code


def _begin(process: RunProcess) -> tuple[Surroundings, PromptFound]:
    """Reads the settings, and then the prompt.

    The settings come first because they contain the time limits. If standard input never ends, only a time limit ends
    the wait for the prompt.
    """
    around = process.begin()
    options = process.context.options
    if not options.reads_stdin:
        return around, PromptFound(options.prompt or "")
    context = process.context
    wait = InputWait(
        context.waiter,
        context.clock,
        around.settings.clocks.input_s,
        lambda text: context.tell(Notice(text)),
    )
    return around, read_prompt(
        options.prompt,
        options.prompt_file,
        directories=options.output.directories,
        wait=wait,
        is_required=not options.session.is_old,
    )


def _work(process: RunProcess, around: Surroundings, found: PromptFound) -> RunEnded:
    if found.typed is not None and found.typed.startswith("/"):
        refuse_unknown_command(around, process.context.options, found.typed)
    prepared = process.open(around, has_prompt=bool(found.text))
    first_prompt = prepared.first_prompt(found.text)
    prepared.announce((*around.settings.warnings, *found.notices), has_prompt=first_prompt is not None)
    if found.silent is not None:
        process.context.events.emit(Notice(found.silent.notice, is_vital=True))
        if found.silent.unread_bytes():
            prepared.parts.session.forget()
            return process.ended_early(Outcome.USAGE, found.silent.refusal)
    return prepared.work(first_prompt, _own_part(found, process.context.options))


def _own_part(found: PromptFound, options: RunOptions) -> slice | None:
    """The range of the prompt that contains the user's own words. Piped data and the text that a loop adds are
    outside of this range. None means that the user wrote the whole prompt.
    """
    task_chars = None if options.of_loop is None else options.of_loop.task_chars
    if found.text is not None and task_chars is not None:
        return slice(max(len(found.text) - task_chars, 0), len(found.text))
    return None if found.own_chars is None else slice(0, found.own_chars)


def _late_notices(found: PromptFound) -> tuple[str, ...]:
    return () if found.silent is None else found.silent.in_the_end
