"""Implements Bash, which runs one command with limits on time and output. When the command ends, ralph stops all
processes that the command has started. If a process cannot be stopped, the result says so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ralph.machine.running_command import (
    STARTER_GONE,
    STILL_RUNS,
    UNSEEN_END,
    CommandEnding,
    EndCause,
    OutputCapture,
    RunningCommand,
    StreamRedaction,
)
from ralph.machine.starting import environment_for_commands, start_thread
from ralph.sandbox.denials import about_gpus
from ralph.sandbox.disk_work import SilentDiskError
from ralph.values.answer import ToolError, ToolOutput, os_error_text
from ralph.values.outcome import ShortageError, shortage_of
from ralph.values.ports import TIMED_OUT, Interrupted, WorkingDirectoryGoneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.machine.command_supervisor import CommandSupervisor, SupervisedCommand
    from ralph.sandbox.command_box import CommandBox
    from ralph.tools.tool_context import Arguments, ToolContext

# Linux MAX_ARG_STRLEN: the most bytes of one argument of a program, its final NUL included.
_LONGEST_COMMAND_BYTES = 131_072 - 1
_LONGEST_PURPOSE = 80
# Looking at the paths in a command's output takes microseconds, unless one is on a file system that does not answer.
_EXPLAIN_WITHIN_S = 2.0


def run(arguments: Arguments, context: ToolContext) -> ToolOutput:
    """Runs the command. Raises WorkingDirectoryGoneError, ToolError and Interrupted."""
    command = checked_command(arguments["command"])
    settings = context.settings
    # A model may write a number that no float can hold.
    requested_s = min(arguments.get("timeout", settings.bash_timeout_s * 1000), 1e15) / 1000
    limit_s = min(requested_s, settings.bash_max_timeout_s)
    waiting_for = purpose_of(arguments, context)
    ending, capture = _ran(command, context, limit_s, waiting_for)
    if ending.how is EndCause.NEVER_STARTED:
        ending, capture = _ran(command, context, limit_s, waiting_for)
    text = capture.text().strip("\n") or "(no output)"
    has_failed = ending.how is not EndCause.BY_ITSELF or ending.status != 0
    refusals = context.box.refusals()
    denial, undone = _denials(text, context, has_failed=has_failed)
    denials = [*filter(None, (denial, undone)), *(f"[{one}]" for one in refusals)]
    notes = _notes(ending, limit_s, context, is_denied=bool(denial or refusals))
    if not ending.is_all_gone:
        notes.append("[something it started could not be stopped and still runs]")
    if limit_s < requested_s:
        notes.append(f"[timeout was lowered to the maximum, {limit_s * 1000:.0f} ms]")
    told, news = context.box.told()
    return ToolOutput(
        "\n".join([text, *notes, *denials, *told]),
        is_error=has_failed,
        is_denied=bool(denials),
        notices=(*refusals, *news),
    )


def purpose_of(arguments: Arguments, context: ToolContext) -> str:
    """The text of heartbeats during a command."""
    purpose = " ".join((arguments.get("description") or arguments["command"]).split())
    return context.redactor.redact(f"Bash: {purpose}")[:_LONGEST_PURPOSE]


def _denials(output: str, context: ToolContext, *, has_failed: bool) -> tuple[str, str]:
    """Notes for the model. The first is about an action that the sandbox denied."""
    undone = ""
    try:
        undone = context.box.after("Bash: protected files")
        telling = output if has_failed else about_gpus(output)
        told = denial_note(telling, context.box, context, "Bash") if telling else ""
        denial = f"[{told}]" if told else ""
    except Interrupted as stop:
        stop.undone = context.redactor.redact(undone or context.box.after_stop())
        raise
    return denial, undone


def denial_note(output: str, box: CommandBox, context: ToolContext, what: str) -> str:
    """A note on what the sandbox denied to a command, or empty. Made on a thread, because the output can name a path on a file
    system that never answers, and left out if that takes long: a note never costs the output. Raises Interrupted.
    """
    if not box.is_confined:
        return ""
    mailbox = context.waiter.mailbox()

    def look() -> None:
        try:
            mailbox.put(box.denial_note(output, os.path.realpath(context.settings.cwd)))
        except Exception:  # noqa: BLE001 - the command has ended, and its result is worth more than a note
            mailbox.put(None)

    try:
        start_thread(look, name="sandbox notes")
        until_s = context.clock.now_s() + _EXPLAIN_WITHIN_S
        found = context.waiter.wait(mailbox, until_s=until_s, waiting_for=f"{what}: what the sandbox denied")
    except ShortageError:
        return ""
    finally:
        mailbox.close()
    return "" if found is None or found is TIMED_OUT else str(found)


def _ran(
    command: str, context: ToolContext, limit_s: float, waiting_for: str
) -> tuple[CommandEnding, OutputCapture]:
    settings = context.settings
    capture = new_capture(context)
    try:
        environment = context.box.before(settings.environment, "Bash: the sandbox")
    except OSError as error:
        raise not_started(error, context) from None
    try:
        process = _started(command, context, environment)
        running = RunningCommand(process, capture, waiter=context.waiter, clock=context.clock)
        ending = running.run(limit_s, waiting_for)
    except WorkingDirectoryGoneError:
        context.box.not_started()
        raise
    except BaseException as error:
        # A stopped command may have changed protected files.
        undone = context.redactor.redact(context.box.after_stop())
        if isinstance(error, ToolError):
            raise ToolError("\n".join(filter(None, (str(error), undone)))) from None
        if isinstance(error, Interrupted):
            error.undone = undone
        raise
    if ending.how is EndCause.ELSEWHERE:
        context.box.not_started()
        raise WorkingDirectoryGoneError(settings.cwd)
    return ending, capture


def new_capture(context: ToolContext) -> OutputCapture:
    settings = context.settings
    return OutputCapture(
        max_bytes=settings.max_output_bytes,
        spill_bytes=settings.spill_bytes,
        spill=context.spill,
        redaction=StreamRedaction(context.redactor),
    )


def _started(command: str, context: ToolContext, environment: Mapping[str, str]) -> SupervisedCommand:
    try:
        return start_shell(command, context, context.supervisor, environment)
    except OSError as error:
        raise not_started(error, context) from None


def start_shell(
    command: str,
    context: ToolContext,
    supervisor: CommandSupervisor,
    environment: Mapping[str, str],
    *,
    lasts: bool = False,
) -> SupervisedCommand:
    """Starts a shell with a command. `lasts` is as in `CommandSupervisor.start`. Raises OSError."""
    return supervisor.start(
        [context.program("bash") or "/bin/sh", "-c", command],
        cwd=context.settings.cwd,
        environment=environment_for_commands(environment),
        grace_s=context.settings.kill_grace_s,
        held_directory=context.roots.working_directory,
        lasts=lasts,
    )


def not_started(error: OSError, context: ToolContext) -> ToolError | WorkingDirectoryGoneError:
    """The error if a command could not be started."""
    short = shortage_of(error)
    if short is not None:
        return ToolError(f"the command was not started: {short}. That passes: try again")
    if isinstance(error, SilentDiskError):
        return ToolError(f"the command was not started: {error}")
    if not context.settings.cwd.is_dir():
        return WorkingDirectoryGoneError(context.settings.cwd)
    return ToolError(f"the command could not be started: {os_error_text(error)}")


def _notes(ending: CommandEnding, limit_s: float, context: ToolContext, *, is_denied: bool) -> list[str]:
    settings = context.settings
    match ending.how:
        case EndCause.BY_ITSELF:
            left = [] if ending.is_all_gone else [f"[{STILL_RUNS}]"]
            if ending.stopped:
                were = (
                    "process that this command started was"
                    if ending.stopped == 1
                    else "processes that this command started were"
                )
                left.append(f"[{ending.stopped} {were} stopped; run_in_background keeps a server]")
            return [*left, f"Exit code {ending.status}"] if ending.status else left
        case EndCause.WITHOUT_SUPERVISOR:
            sentence = (
                f"{UNSEEN_END}; {ending.rest}. How far the command came is unknown: look at its effects"
            )
            return [f"[{sentence}]"]
        case EndCause.NEVER_STARTED | EndCause.ELSEWHERE:  # the latter was raised as an error
            return [f"[the command was not started: {STARTER_GONE}. Try again]"]
        case EndCause.TOO_MUCH_OUTPUT:
            size = f"{settings.spill_bytes:,}"
            return [f"[stopped: it printed more than {size} bytes. Filter the output, or send it to a file]"]
        case EndCause.TOO_MANY_PROCESSES | EndCause.TOO_MUCH_MEMORY:
            return [f"[stopped: {settings.sandbox.why_stopped(ending.how)}; {ending.rest}]"]
        case EndCause.TIMED_OUT:
            most_ms = f"{settings.bash_max_timeout_s * 1000:.0f}"
            stopped = "the command and all it started were stopped" if ending.is_all_gone else STILL_RUNS
            # What the sandbox denies does not come with time.
            advice = (
                "" if is_denied else f". Give a longer timeout (at most {most_ms} ms), or do less at once"
            )
            return [f"[timed out after {limit_s:g} s; {stopped}{advice}]"]


def checked_command(command: str) -> str:
    """The command, if a shell can read it. Raises ToolError."""
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolError("the command contains half a surrogate pair, which no shell can read") from None
    if "\0" in command:
        raise ToolError("the command contains a NUL character, which no shell can read; use printf '\\0'")
    if size > _LONGEST_COMMAND_BYTES:
        raise ToolError(
            f"the command has {size:,} bytes; the system takes {_LONGEST_COMMAND_BYTES:,}. "
            "Write it to a script file, then run that."
        )
    return command
