"""A run with one prompt, from the command line or standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.prompt.prompt_input import InputWait, PromptFound, read_prompt
from ralph.values.events import Notice, RunEnded
from ralph.values.outcome import Outcome, UsageError

if TYPE_CHECKING:
    from ralph.run.process import RunProcess
    from ralph.run.wiring import Surroundings


def run_prompt(process: RunProcess) -> int:
    """The exit code. Raises UsageError, whose line is the caller's."""
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
    """The prompt is read once the time limit is known: whoever pipes it in may take for ever."""
    around = process.begin()
    options = process.context.options
    if not options.reads_stdin:
        return around, PromptFound(options.prompt or "")
    context = process.context
    wait = InputWait(
        context.waiter,
        context.clock,
        around.settings.clocks.input_s,
        lambda text: context.writer.tell(Notice(text)),
    )
    return around, read_prompt(
        options.prompt,
        options.prompt_file,
        directories=options.output.directories,
        wait=wait,
        is_required=not options.session.is_old,
    )


def _work(process: RunProcess, around: Surroundings, found: PromptFound) -> RunEnded:
    prepared = process.open(around, has_prompt=bool(found.text))
    first_prompt = prepared.first_prompt(found.text)
    prepared.announce((*around.settings.warnings, *found.notices))
    if found.silent is not None:
        process.context.events.emit(Notice(found.silent.notice, is_vital=True))
        if found.silent.unread_bytes():
            prepared.session.forget()
            return process.ended_early(Outcome.USAGE, found.silent.refusal)
    return prepared.work(first_prompt)


def _late_notices(found: PromptFound) -> tuple[str, ...]:
    return () if found.silent is None else found.silent.in_the_end
