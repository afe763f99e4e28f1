"""Runs the tool calls that a prompt asks for before its first request: the shell lines and files of a command.

The calls are those of the user's command and not the model's. All rules for calls hold for them, and a call that a
rule refuses ends the task: a prompt without the part that it needs is another task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Makes the prompt of a task. It is called when the task has begun, and may run tools."""


class PromptRefusedError(Exception):
    """The prompt cannot be made, because a rule refuses a part of it. The message is one line."""


class PromptCalls:
    def __init__(self, toolbox: Toolbox, make_rules: Callable[[], CallRules], events: Events) -> None:
        """`make_rules` makes the rules of a task. They count calls, so that each call gets rules of its own."""
        self._toolbox = toolbox
        self._make_rules = make_rules
        self._events = events
        self._number = 0

    def judge(self, tool: str, arguments: Mapping[str, str]) -> ToolCall | ToolOutput:
        """The call if it may run, otherwise the refusal. Runs nothing."""
        self._number += 1
        call = ToolCall(f"prompt_{self._number}", tool, dict(arguments))
        ruling = self._make_rules().ruling(call)
        return ruling if isinstance(ruling, ToolOutput) else ruling.call

    def run(self, command: str, call: ToolCall) -> ToolOutput:
        """Runs a call that `judge` returned, and returns its output, which may be an error. `command` asks for it."""
        argument = str(next(iter(call.arguments.values())))
        self._events.emit(PromptCalled(command, call.name, argument))
        [(output, took_s)] = self._toolbox.run([call])
        self._events.emit(PromptCallEnded(command, call.name, argument, output.is_error, took_s))
        return output
