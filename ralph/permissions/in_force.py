"""The permission rules that are in force: those of the run, and those of the current task's command file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from ralph.permissions.judge import Permissions
    from ralph.values.answer import ToolCall


class RuleVerdict(Struct, frozen=True):
    """The decision of the permission rules about one tool call."""

    denied: str | None = None
    """The reason why a rule denies the call, written for the model. None if no rule denies the call."""
    asks: str | None = None
    """The reason why somebody must be asked before the call runs. None if nobody must be asked."""


class CommandRules(Struct, frozen=True):
    """The permission rules of one command file, which can only forbid calls. None stands for no rules of that kind."""

    command: str
    tools: frozenset[str] | None = None
    """The only tools that the command allows."""
    rules: Permissions | None = None
    """The rules with patterns, such as `Bash(git add:*)`."""


class RulesInForce:
    """Judges calls and paths by all rules in force, on any thread. Implements `PathRules`."""

    def __init__(self, of_run: Permissions | None = None) -> None:
        self._of_run = of_run
        self._of_command = CommandRules("")

    def begin_task(self, of_command: CommandRules | None = None) -> None:
        """Replaces the rules of the previous task's command. None means that the new task has no command."""
        self._of_command = of_command or CommandRules("")

    @property
    def _all(self) -> tuple[Permissions, ...]:
        return tuple(one for one in (self._of_run, self._of_command.rules) if one is not None)

    @property
    def are_none(self) -> bool:
        """Whether there are no rules about single calls."""
        return not self._all

    def judge(self, call: ToolCall) -> RuleVerdict:
        reading = [rule for one in self._all for rule in one.guards_of_reading]
        verdicts = [one.judge(call, reading) for one in self._all]
        denied = (one for one in verdicts if one.denied is not None)
        asking = (one for one in verdicts if one.asks is not None)
        return next(denied, None) or next(asking, RuleVerdict())

    def why_not_offered(self, tool: str) -> str | None:
        """The reason why the command does not allow the tool. None if it does, or if there is no command."""
        command = self._of_command
        if command.tools is None or tool in command.tools:
            return None
        names = ", ".join(sorted(command.tools)) or "no tool"
        return f"This call was not run: the command {command.command} allows {names} alone."

    def why_not_read(self, path: str) -> str | None:
        return next(filter(None, (one.why_not_read(path) for one in self._all)), None)

    def why_not_written(self, path: str) -> str | None:
        return next(filter(None, (one.why_not_written(path) for one in self._all)), None)
