"""Makes a task's prompt from a command file if the user's prompt calls a command (`/name`).

The file can contain shell lines and names of other files. ralph runs each shell line and reads each file by a tool
call, to which all rules of the run apply. If the command file requests a protection that ralph does not have, ralph
runs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.agent.tool_turn import PromptRefusedError
from ralph.machine.trees import LocalDisk
from ralph.permissions.judge import RulePlaces
from ralph.prompt.commands import read_command
from ralph.prompt.expansion import ShellLine, expand, may_count_from_1
from ralph.prompt.frontmatter import as_text
from ralph.run.command_rules import rules_of_command
from ralph.run.prompt_files import with_files
from ralph.values.events import Notice
from ralph.values.tool_calls import Runnable

if TYPE_CHECKING:
    from ralph.agent.tool_turn import PromptCalls
    from ralph.permissions.in_force import CommandRules, RulesInForce
    from ralph.prompt.commands import Command, CommandCall
    from ralph.values.ports import Events
    from ralph.values.tool_calls import Block, ToolOutput

# Fields that change how a command runs, and that ralph does not honour. None of them is a guard.
_NOT_HONOURED = ("model", "effort", "context", "agent", "shell")


class CommandPrompt(Struct, frozen=True):
    """Makes the prompt of one task from a command file. `make` is called after the task has begun."""

    call: CommandCall
    cwd: Path
    home: str
    session_id: str
    rules: RulesInForce
    events: Events
    above: str = ""
    """The text before the call in the user's prompt, such as a loop's text. It is no argument of the command."""
    below: str = ""
    """The text after the call, such as piped data. It is no argument either."""

    @property
    def name(self) -> str:
        return f"/{self.call.file.name}"

    def make(self, calls: PromptCalls) -> str | list[Block]:
        """Makes the prompt. Raises PromptRefusedError if a rule forbids a shell line, or if the command file is
        faulty.
        """
        command, rules = self._read()
        self.rules.begin_task(rules)
        self._announce(command, rules.tools)
        facts = {
            "CLAUDE_SKILL_DIR": str(Path(command.file.path).parent),
            "CLAUDE_SESSION_ID": self.session_id,
        }
        expansion = expand(command, self.call.arguments, facts)
        parts = [
            self._judged(part, calls) for part in expansion.parts
        ]  # all of them, before the first one runs
        shown = [part if isinstance(part, str) else _text_of(calls.run(self.name, part)) for part in parts]
        if command.file.is_skill:
            shown.insert(0, f"Base directory of this skill: {facts['CLAUDE_SKILL_DIR']}\n\n")
        texts = (self.above.strip(), "".join(shown).strip(), self.below.strip())
        text = "\n\n".join(filter(None, texts))
        if not text:
            raise PromptRefusedError(f"{self.name} has no text: {command.file.path}")
        return with_files(
            text, expansion.own_text, calls, cwd=self.cwd, events=self.events, command=self.name
        )

    def _read(self) -> tuple[Command, CommandRules]:
        try:
            command = read_command(self.call.file)
            rules = rules_of_command(command, RulePlaces(str(self.cwd), self.home, LocalDisk()))
        except ValueError as error:
            raise PromptRefusedError(f"{self.name} is not run: {self.call.file.path}: {error}") from None
        if command.fields.get("hooks"):
            why = (
                "it has hooks, which ralph runs for no single command: put them into ~/.claude/settings.json"
            )
            raise PromptRefusedError(f"{self.name} is not run: {command.file.path}: {why}")
        return command, rules

    def _announce(self, command: Command, tools: frozenset[str] | None) -> None:
        self._tell(f"{self.name} is {command.file.path}")
        if tools is not None:
            self._tell(f"{self.name} allows these tools alone: {', '.join(sorted(tools)) or 'none'}")
        ignored = [f"{key}: {as_text(command.fields[key])}" for key in _NOT_HONOURED if key in command.fields]
        if ignored:
            self._tell(f"{self.name} asks for {', '.join(ignored)}: this has no effect")
        if may_count_from_1(command.body):
            self._tell(
                f"{self.name} uses $1 and not $0: the first argument is $0 now, as in Claude Code, and $1 the second"
            )

    def _tell(self, text: str) -> None:
        self.events.emit(Notice(text))

    def _judged(self, part: str | ShellLine, calls: PromptCalls) -> str | Runnable:
        if isinstance(part, str):
            return part
        judged = calls.judge("Bash", {"command": part.command})
        if isinstance(judged, Runnable):
            return judged
        raise PromptRefusedError(f"{self.name} needs Bash {part.command}: {judged.content}")


def _text_of(output: ToolOutput) -> str:
    return output.content if isinstance(output.content, str) else ""
