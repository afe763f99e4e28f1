"""Runs a hook: a command from the user's settings that decides about a tool call. The hook gets a JSON object on its
standard input. It runs in the same sandbox as other commands, with a time limit. When it ends, ralph stops all
processes that it has started.
"""

from __future__ import annotations

import os
import re
import tempfile
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.own_programs import own_environment, trusted_directories
from ralph.machine.running_command import STARTER_GONE, EndCause, KeptErrors, MemoryCapture, RunningCommand
from ralph.machine.starting import environment_for_commands
from ralph.places.own_commands import module_variables
from ralph.tools.bash import denial_note
from ralph.values.answer import os_error_text
from ralph.values.outcome import ShortageError
from ralph.values.ports import Interrupted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.machine.command_supervisor import SupervisedCommand
    from ralph.machine.running_command import CommandEnding
    from ralph.tools.tool_context import ToolContext

_MOST_OUTPUT_BYTES = 1_000_000
_LONGEST_LINE = 300
_SOCKETS = re.compile(
    r"d-?bus|/run/user/|\bdisplay\b|wayland|docker daemon|authentication agent|\.sock\b", re.IGNORECASE
)
_NETWORK = re.compile(
    r"resolve host|name resolution|could ?n[o']t connect|network|unreachable", re.IGNORECASE
)
_GRACE_S = 1.0  # its time limit is exceeded by two seconds at most
# The variable by which hooks that were written for Claude Code find the project.
_DIRECTORY_VARIABLE = "CLAUDE_PROJECT_DIR"


class HookEnding(Struct, frozen=True):
    """The result of running a hook's command."""

    status: int | None
    """The exit code, or None if the command could not be started or did not end by itself."""
    output: str = ""
    errors: str = ""
    problem: str = ""
    undone: str = ""
    """A note about changes to protected files that ralph has undone. The hook made these changes, or they were made
    before the hook started. Empty if there were none."""
    last_line: str = ""
    denied: str = ""
    """A sentence about an action that the sandbox denied to the hook, with the way out. Empty if its output shows none."""


def run_hook(
    command: str, given: bytes, limit_s: float, waiting_for: str, context: ToolContext, *, is_guard: bool
) -> HookEnding:
    """Runs a hook on the main thread. `given` is its standard input, `is_guard` that of `_environment`. Raises Interrupted."""
    undone = ""
    try:
        box = context.hook_box
        with tempfile.TemporaryFile() as stdin, KeptErrors() as errors:
            stdin.write(given)
            stdin.flush()
            stdin.seek(0)
            found = _environment(command, context, is_guard=is_guard)
            # Commands may write their caches, from which `uv run --script` and the like take code.
            has_caches = not (is_guard or context.settings.hook_plan)
            environment = box.before(found, waiting_for, has_caches=has_caches)
            capture = MemoryCapture(_MOST_OUTPUT_BYTES)
            try:
                process = _started(command, context, environment, stdin.fileno(), errors.fileno)
                running = RunningCommand(process, capture, waiter=context.waiter, clock=context.clock)
                ending = running.run(limit_s, waiting_for)
                undone = box.after(waiting_for)
            except BaseException:
                undone = box.after_stop()
                raise
            finally:
                undone = "\n".join(filter(None, (undone, box.between())))
            box.refuse_what_is_left()
            said = context.redactor.redact(errors.read().decode("utf-8", "replace").strip())
            output = capture.data.decode("utf-8", "replace")
            denied = _denied(
                ending, said if ending.status == 0 else f"{said}\n{output}", context, waiting_for
            )
    except Interrupted as stop:
        stop.undone = undone
        raise
    except (ShortageError, ValueError) as error:
        return HookEnding(None, problem=f"it could not be run: {error}", undone=undone)
    except OSError as error:
        return HookEnding(None, problem=f"it could not be run: {os_error_text(error)}", undone=undone)
    problem = problem_of(ending, limit_s)
    last_line = (said or context.redactor.redact(output.strip())).rpartition("\n")[2].strip()[:_LONGEST_LINE]
    return HookEnding(None if problem else ending.status, output, said, problem, undone, last_line, denied)


def _denied(ending: CommandEnding, text: str, context: ToolContext, waiting_for: str) -> str:
    """A sentence on what the sandbox denied to a hook, as its output shows, with the way out. Empty if nothing. Raises Interrupted."""
    plan = context.settings.hook_plan or context.settings.box_plan
    if not plan.is_confined or ending.how is not EndCause.BY_ITSELF or not text.strip():
        return ""
    note = denial_note(text, context.hook_box, context, waiting_for)
    if note:
        return f"{note}; give hooks more by [hooks] write in your config.toml, or run them outside (hooks.outside)"
    if ending.status != 0 and not plan.sockets and _SOCKETS.search(text):
        return (
            "the sandbox gives hooks no sockets of other programs, such as the desktop: name them by [hooks] sockets in your "
            "config.toml, or run hooks outside (hooks.outside)"
        )
    if ending.status != 0 and plan.net != "full" and _NETWORK.search(text):
        return f"hooks have the network of commands ({plan.net}): allow the host, or run hooks outside (hooks.outside)"
    return ""


def _started(
    command: str, context: ToolContext, environment: Mapping[str, str], stdin: int, errors: int
) -> SupervisedCommand:
    settings = context.settings
    return context.hook_supervisor.start(
        [context.program("bash") or "/bin/sh", "-c", command],
        cwd=settings.cwd,
        environment=environment_for_commands(environment) | {_DIRECTORY_VARIABLE: os.fspath(settings.cwd)},
        grace_s=_GRACE_S,
        input_from=stdin,
        errors_to=errors,
    )


def problem_of(ending: CommandEnding, limit_s: float) -> str:
    """The reason why a hook's answer does not count. Empty if the hook ended by itself. `limit_s` is its time limit."""
    match ending.how:
        case EndCause.BY_ITSELF:
            return ""
        case EndCause.TIMED_OUT:
            return f"it did not end before its timeout of {limit_s:g} s"
        case EndCause.TOO_MUCH_OUTPUT:
            return f"it printed more than {_MOST_OUTPUT_BYTES:,} bytes"
        case EndCause.TOO_MUCH_MEMORY | EndCause.TOO_MANY_PROCESSES:
            return "its processes exceeded a limit of the settings (sandbox.max_memory_mb, sandbox.max_processes)"
        case _:
            return STARTER_GONE


def _environment(command: str, context: ToolContext, *, is_guard: bool) -> Mapping[str, str]:
    """The variables for a hook. With more rights than commands, it loads nothing that commands can replace. `is_guard`: it
    decides about what has not happened yet. Then it finds there only programs that are nowhere else.
    """
    has_more = context.settings.hook_plan is not None
    if not (has_more or is_guard):
        return context.settings.environment
    path = trusted_directories(context.search)
    if not has_more:
        path += tuple(one for one in context.search.search_path.split(os.pathsep) if one not in path)
    own = own_environment(context.settings.environment, context.search)
    safe = own if has_more else context.safe_environment
    return safe | {"PATH": os.pathsep.join(path)} | module_variables(safe, context.search, command)
