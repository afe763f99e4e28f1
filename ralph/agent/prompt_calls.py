"""Runs the tool calls that a command file requests. These calls run a shell line or read a file, and their output
becomes part of the prompt. They run before the first request to the model.

All rules for tool calls apply to these calls too. If a rule refuses a call, the task ends, because a part of the
prompt would be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from ralph.values.events import PromptCalled, PromptCallEnded
from ralph.values.tool_calls import ToolCall, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from ralph.agent.call_rules import CallRules
    from ralph.agent.ports import Toolbox
    from ralph.values.ports import Events
    from ralph.values.tool_calls import Block

    PromptMaker: TypeAlias = Callable[["PromptCalls"], str | Sequence[Block]]
    """A function that makes the prompt of a task. It is called when the task has begun, and may run tools."""


class PromptRefusedError(Exception):
    """The prompt cannot be made, because a rule refuses a part of it. The message is one line."""


class PromptCall(Struct, frozen=True):
    """A permitted tool call of a command file."""

    call: ToolCall
    notes: tuple[str, ...]
    rules: CallRules


class PromptCalls:
    def __init__(self, toolbox: Toolbox, make_rules: Callable[[], CallRules], events: Events) -> None:
        """`make_rules` returns a new `CallRules`. Each call needs its own, because a `CallRules` counts the calls
        that it judges.
        """
        self._toolbox = toolbox
        self._make_rules = make_rules
        self._events = events

    def judge(self, tool: str, arguments: Mapping[str, str]) -> PromptCall | ToolOutput:
        """Decides whether a call may run. Returns the permitted call, whose arguments a hook may have changed. If the
        call may not run, returns the refusal. Raises `Interrupted` when a signal arrives or a hook ends the run.
        """
        rules = self._make_rules()
        ruling = rules.ruling(ToolCall(f"prompt_{uuid4().hex}", tool, dict(arguments)))
        return ruling if isinstance(ruling, ToolOutput) else PromptCall(ruling.call, ruling.notes, rules)

    def run(self, command: str, prompt_call: PromptCall) -> ToolOutput:
        """Runs a call that `judge` has permitted, and returns the call's output. If the tool fails, the output is an
        error. `command` is the name of the command.
        """
        call = prompt_call.call
        argument = str(next(iter(call.arguments.values())))
        self._events.emit(PromptCalled(command, call.name, argument))
        [(output, took_s)] = self._toolbox.run([call])
        self._events.emit(PromptCallEnded(command, call.name, argument, output.is_error, took_s))
        if prompt_call.notes and isinstance(output.content, str):
            output = replace(output, content="\n".join((output.content, *prompt_call.notes)))
        return prompt_call.rules.heard(call, output, took_s)
