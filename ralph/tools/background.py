"""Implements commands in the background: Bash with `run_in_background`, BashOutput and KillBash. Such a command runs until
none of its processes is left, KillBash stops it, or the run ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.running_command import ELSEWHERE, NEVER_STARTED, STARTER_GONE, STILL_RUNS, UNSEEN_END
from ralph.tools.background_commands import MOST_RUNNING, BackgroundCommand
from ralph.tools.bash import checked_command, denial_note, new_capture, not_started, purpose_of, start_shell
from ralph.values.answer import BASH_OUTPUT, COMMANDS, ToolCall, ToolError, ToolOutput
from ralph.values.events import BackgroundStarted
from ralph.values.ports import WorkingDirectoryGoneError
from ralph.values.screen_text import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.tools.tool_context import ToolContext

_WAITS_S = 30.0
# So a command that cannot run at all costs no turn.
_ENDS_EARLY_S = 0.2


def run(call: ToolCall, context: ToolContext) -> ToolOutput:
    """Runs a call of one of the three tools. Raises WorkingDirectoryGoneError, ToolError and Interrupted."""
    if call.name == COMMANDS:
        return _start(call, context)
    reads = call.name == BASH_OUTPUT
    command_id = call.arguments["bash_id" if reads else "shell_id"]
    command = context.background.get(command_id)
    if command is None:
        known = ", ".join(one.id for one in context.background.running) or "none"
        raise ToolError(f"there is no background command {command_id!r}; running: {known}")
    return _read(command, context) if reads else _kill(command, context)


def _start(call: ToolCall, context: ToolContext) -> ToolOutput:
    commands = context.background
    if len(running := commands.running) >= MOST_RUNNING:
        known = ", ".join(one.id for one in running)
        raise ToolError(f"{MOST_RUNNING} commands run in the background already ({known}): stop one first")
    text = checked_command(call.arguments["command"])
    try:
        environment = context.box.watch(context.settings.environment, "Bash: the sandbox")
        supervisor = context.new_supervisor(context.box.confine(lasts=True))
        end_sharing = context.box.share_namespaces()
        try:
            process = start_shell(text, context, supervisor, environment, lasts=True)
        except BaseException:
            supervisor.close()
            end_sharing()
            raise
    except OSError as error:
        raise not_started(error, context) from None
    commands.count += 1
    shown = " ".join(context.redactor.redact(text).split())
    started = BackgroundStarted(f"bash_{commands.count}", shown, call.id)
    refused = context.box.release_lasting()

    def release() -> Sequence[str]:
        end_sharing()
        return refused()

    command = BackgroundCommand(started, process, supervisor, new_capture(context), release)
    waiting_for = purpose_of(call.arguments, context)
    commands.add(command, waiting_for)
    has_ended = commands.ends_within(command, _ENDS_EARLY_S, waiting_for)
    if command.status == ELSEWHERE:
        raise WorkingDirectoryGoneError(context.settings.cwd)
    if has_ended:
        return replace(_read(command, context), is_error=bool(command.status))
    note = "BashOutput shows what it prints, KillBash stops it. It ends with the run."
    if "timeout" in call.arguments:
        note += " (timeout is not for commands in the background)"
    return ToolOutput(f"Command running in background with ID: {command.id}\n{note}")


def _read(command: BackgroundCommand, context: ToolContext) -> ToolOutput:
    if command.is_all_read:
        raise ToolError(
            f"{command.id} has ended ({_ending(command, context)}), and all of its output was read"
        )
    texts, waiting_for = list[str](), context.redactor.redact(f"BashOutput: {command.started.command}")[:80]
    # A command that has ended since its output was taken may have had more.
    while not texts or (command.is_over and not command.is_all_read):
        text = context.background.read(command, _WAITS_S, waiting_for)
        if text is None:
            raise ToolError(
                f"the output of {command.id} cannot be read: the file system with it does not answer"
            )
        texts.append(text)
    output = "".join(texts).strip("\n")
    if not command.is_all_read:
        took = duration(command.runs_for_s)
        nothing = f"(nothing new within {_WAITS_S:g} s)"
        return ToolOutput(f"{output or nothing}\n[{command.id} is running, {took} so far]")
    notes = [f"[{command.id} has ended: {_ending(command, context)}]"]
    if command.failure is not None:
        notes.append(f"[output was lost: {command.failure}]")
    has_failed = bool(command.status) and not command.stopped_by
    denied = denial_note(output, context.box, context, "BashOutput") if has_failed else ""
    notes += [f"[{one}]" for one in filter(None, (denied, *command.refusals))]
    return ToolOutput("\n".join([output or "(no output)", *notes]), is_denied=bool(denied))


def _kill(command: BackgroundCommand, context: ToolContext) -> ToolOutput:
    if command.is_over:
        raise ToolError(f"{command.id} has ended already ({_ending(command, context)})")
    context.background.stop([command], "model")
    if not command.is_all_gone:
        raise ToolError(f"{command.id} was told to stop: {STILL_RUNS}")
    command.is_all_read = not command.capture.has_output
    left = "" if command.is_all_read else "; BashOutput shows the rest of its output"
    return ToolOutput(f"{command.id} was stopped ({command.started.command[:200]}){left}")


def _ending(command: BackgroundCommand, context: ToolContext) -> str:
    status, exceeded = command.status, command.process.exceeded
    if command.stopped_by:
        return "it was stopped"
    if exceeded is not None:
        return f"stopped: {context.settings.sandbox.why_stopped(exceeded)}"
    if status == NEVER_STARTED:
        return f"it was not started: {STARTER_GONE}"
    return UNSEEN_END if status is None or status < 0 else f"exit code {status}"
