"""Implements Bash, which runs one command with limits on time and output. When the command ends, ralph stops all
processes that the command has started. If a process cannot be stopped, the result says so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ralph.machine.output_capture import OutputCapture, StreamRedaction
from ralph.machine.running_command import CommandEnding, Ended, NotFollowedError, RunningCommand
from ralph.machine.starting import start_thread
from ralph.values.error_text import ToolError, os_error_text
from ralph.values.ports import TIMED_OUT, Interrupted
from ralph.values.shortage import ShortageError, shortage_of
from ralph.values.tool_calls import ToolOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.machine.command_supervisor import SupervisedCommand
    from ralph.sandbox.command_box import CommandBox
    from ralph.tools.tool_room import Arguments, ToolRoom

# Linux MAX_ARG_STRLEN: the most bytes of one argument of a program, its final NUL included.
_LONGEST_COMMAND_BYTES = 131_072 - 1
_LONGEST_PURPOSE = 80
# Looking at the paths in a command's output takes microseconds, unless one is on a file system that does not answer.
_EXPLAIN_WITHIN_S = 2.0
# A network file system that is away for longer than this is not there.
_LOOK_WITHIN_S = 30.0


def run(arguments: Arguments, room: ToolRoom) -> ToolOutput:
    command = _checked(arguments["command"])
    settings = room.settings
    requested_s = arguments["timeout"] / 1000 if "timeout" in arguments else settings.bash_timeout_s
    limit_s = min(requested_s, settings.bash_max_timeout_s)
    purpose = " ".join((arguments.get("description") or command).split())
    waiting_for = room.redact(f"Bash: {purpose}")[:_LONGEST_PURPOSE]
    ending, capture = _ran(command, room, limit_s, waiting_for)
    if ending.how is Ended.NEVER_STARTED:  # an earlier command has killed the supervisor
        ending, capture = _ran(command, room, limit_s, waiting_for)
    notes = _notes(ending, limit_s, room)
    if not ending.is_all_gone:
        notes.append("[something it started could not be stopped and still runs]")
    if limit_s < requested_s:
        notes.append(f"[timeout was lowered to the maximum, {limit_s * 1000:.0f} ms]")
    text = capture.text().strip("\n") or "(no output)"
    has_failed = ending.how is not Ended.BY_ITSELF or ending.status != 0
    refusals = () if room.box is None else room.box.refusals()
    between = "" if room.box is None else room.box.undone_between(str(settings.cwd))
    denials = [*_denials(text, room, has_failed=has_failed), *(f"[{one}]" for one in refusals)]
    return ToolOutput(
        "\n".join([text, *notes, *denials, *([between] if between else [])]),
        is_error=has_failed,
        is_denied=bool(denials),
        notices=(*refusals, *([between] if between else [])),
    )


def _denials(output: str, room: ToolRoom, *, has_failed: bool) -> list[str]:
    """Notes for the model. One note is about changes to protected files that ralph has undone. The other is about an
    action that the sandbox denied.

    A thread makes both notes, because a file system may never answer, and the command's output can name any path.
    This function waits for the first note without a time limit, and leaves the second note out if it takes long.
    Raises Interrupted.
    """
    box = room.box
    if box is None:
        return []
    mailbox, told = room.waiter.mailbox(), list[str]()

    def look() -> None:
        try:
            working_directory = os.path.realpath(room.settings.cwd)
            told.append(box.undo_changes(working_directory))
            mailbox.put(told[0])
            denial = box.denial_note(output, working_directory) if has_failed else None
            mailbox.put(f"[{denial}]" if denial else "")
        except BaseException as failed:  # noqa: BLE001 - raised where it is waited for
            mailbox.put(failed)

    try:
        thread = start_thread(look, name="sandbox notes")
    except ShortageError:
        return [note] if (note := box.undo_changes(str(room.settings.cwd))) else []
    try:
        undone = room.waiter.wait(mailbox, until_s=None, waiting_for="Bash: protected files")
        until_s = room.clock.now_s() + _EXPLAIN_WITHIN_S
        denial = room.waiter.wait(mailbox, until_s=until_s, waiting_for="Bash: what the sandbox denied")
    except BaseException as error:
        thread.join(_EXPLAIN_WITHIN_S)  # a change that is half undone would stay
        if isinstance(error, Interrupted) and told:
            error.undone = room.redact(told[0])
        raise
    finally:
        mailbox.close()
    for found in (undone, denial):
        if isinstance(found, BaseException):
            raise found
    return [note for note in (denial, undone) if note and note is not TIMED_OUT]


def _undone_at_stop(room: ToolRoom) -> str:
    """Undoes the changes that a stopped command has made to protected files, and returns a note about them. A thread
    does this work. The function waits for the thread only for a moment.
    """
    box, told = room.box, list[str]()
    if box is None:
        return ""

    def undo() -> None:
        told.append(box.undo_changes(os.path.realpath(room.settings.cwd)))

    try:
        start_thread(undo, name="protected files").join(_EXPLAIN_WITHIN_S)
    except ShortageError:
        undo()
    return room.redact(told[0]) if told else ""


def _ran(
    command: str, room: ToolRoom, limit_s: float, waiting_for: str
) -> tuple[CommandEnding, OutputCapture]:
    settings = room.settings
    capture = OutputCapture(
        max_bytes=settings.max_output_bytes,
        spill_bytes=settings.spill_bytes,
        spill=room.spill,
        redaction=StreamRedaction(room.redact, room.redact_longest),
    )
    running = RunningCommand(
        _started(command, room),
        capture,
        waiter=room.waiter,
        clock=room.clock,
        grace_s=settings.kill_grace_s,
    )
    try:
        return running.run(limit_s, waiting_for), capture
    except BaseException as error:
        undone = _undone_at_stop(room)  # the command may have changed protected files before it was stopped
        if isinstance(error, NotFollowedError):
            raise ToolError("\n".join(filter(None, (str(error), undone)))) from None
        if isinstance(error, Interrupted):
            error.undone = undone
        raise


def _started(command: str, room: ToolRoom) -> SupervisedCommand:
    from ralph.machine.processes import environment_for_commands  # noqa: PLC0415 - only Bash needs it

    settings = room.settings
    try:
        environment = settings.environment
        if room.box is not None:
            environment = _looked(room, room.box)
        return room.supervisor.start(
            [room.program("bash") or "/bin/sh", "-c", command],
            cwd=settings.cwd,
            environment=environment_for_commands(environment),
            grace_s=settings.kill_grace_s,
        )
    except ShortageError as error:
        raise ToolError(f"the command was not started: {error}. That passes: try again") from None
    except OSError as error:
        short = shortage_of(error)
        if short is not None:
            raise ToolError(f"the command was not started: {short}. That passes: try again") from None
        if not settings.cwd.is_dir():
            raise ToolError(f"the working directory {settings.cwd} no longer exists") from None
        raise ToolError(f"the command could not be started: {os_error_text(error)}") from None


def _looked(room: ToolRoom, box: CommandBox) -> Mapping[str, str]:
    """Prepares the start of a command: records the state of the protected files, and makes the sandbox. Returns the
    command's environment variables. Raises OSError and Interrupted, and ToolError if the disk does not answer.
    """
    mailbox = room.waiter.mailbox()

    def look() -> None:
        try:
            environment = box.variables(room.settings.environment)
            box.look()
            box.prepare()
            mailbox.put(environment)
        except BaseException as failed:  # noqa: BLE001 - raised where it is waited for
            mailbox.put(failed)

    box.in_turn(look)
    until_s = room.clock.now_s() + _LOOK_WITHIN_S
    try:
        found = room.waiter.wait(mailbox, until_s=until_s, waiting_for="Bash: the sandbox")
    finally:
        mailbox.close()
    if found is TIMED_OUT:
        raise ToolError(
            "the command was not started: a file system that the sandbox must look at (protected files, places with "
            "secrets) does not answer"
        )
    if isinstance(found, BaseException):
        raise found
    environment: Mapping[str, str] = found
    return environment


def _notes(ending: CommandEnding, limit_s: float, room: ToolRoom) -> list[str]:
    settings = room.settings
    match ending.how:
        case Ended.BY_ITSELF:
            return [f"Exit code {ending.status}"] if ending.status else []
        case Ended.WITHOUT_SUPERVISOR:
            sentence = (
                "the command killed the process that supervises it; all it had started was stopped. "
                "How far it came is unknown: look at its effects"
            )
            return [f"[{sentence}]"]
        case Ended.NEVER_STARTED:
            return ["[the command was not started: the process that starts commands was killed. Try again]"]
        case Ended.TOO_MUCH_OUTPUT:
            size = f"{settings.spill_bytes:,}"
            return [f"[stopped: it printed more than {size} bytes. Filter the output, or send it to a file]"]
        case Ended.TOO_MANY_PROCESSES | Ended.TOO_MUCH_MEMORY:
            return [f"[stopped: {room.limits.why_stopped(ending.how)}; all it had started was stopped]"]
        case Ended.TIMED_OUT:
            most_ms = f"{settings.bash_max_timeout_s * 1000:.0f}"
            sentence = (
                f"timed out after {limit_s:g} s; the command and all it started were stopped. "
                f"Give a longer timeout (at most {most_ms} ms), or do less at once"
            )
            return [f"[{sentence}]"]


def _checked(command: str) -> str:
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolError("the command holds half a surrogate pair, which no shell can read") from None
    if "\0" in command:
        raise ToolError("the command holds a NUL character, which no shell can read; use printf '\\0'")
    if size > _LONGEST_COMMAND_BYTES:
        raise ToolError(
            f"the command has {size:,} bytes; the system takes {_LONGEST_COMMAND_BYTES:,}. "
            "Write it to a script file, then run that."
        )
    return command
