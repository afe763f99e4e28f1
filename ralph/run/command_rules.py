"""The permission rules in a command file's frontmatter. During the command's task, they apply in addition to the
rules of the run. They can only forbid tool calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.permissions.settings_keys import misspelt
from ralph.prompt.frontmatter import as_names
from ralph.values.controls import NarrowedTools
from ralph.values.tool_calls import RuleVerdict
from ralph.values.tool_choice import READ_ONLY, TOOL_NAMES, is_elsewhere

if TYPE_CHECKING:
    from ralph.permissions.judge import RulePlaces
    from ralph.permissions.rule import PermissionRule
    from ralph.prompt.commands import Command
    from ralph.values.ports import CallJudge
    from ralph.values.tool_calls import ToolCall

ALLOWED, FORBIDDEN = "allowed-tools", "disallowed-tools"


class CommandRules(Struct, frozen=True):
    """The permission rules of one command file. A field is None if the file has no rules of that kind."""

    narrowed: NarrowedTools | None = None
    judge: CallJudge | None = None
    """Applies the rules with patterns, such as `Bash(git add:*)`."""


def rules_of_command(command: Command, places: RulePlaces) -> CommandRules:
    """Reads the rules in a command file. Raises ValueError for a key or a rule that ralph cannot apply."""
    found = misspelt(command.fields, (ALLOWED, FORBIDDEN, "hooks"))
    if found is not None:
        raise ValueError(f"{found[0]} is not known, and is perhaps meant as {found[1]}; nothing was run")
    allowed, forbidden = _names(command, ALLOWED), _names(command, FORBIDDEN)
    if ALLOWED not in command.fields and not forbidden:
        return CommandRules()
    tools = {name.partition("(")[0] for name in allowed} if ALLOWED in command.fields else set(TOOL_NAMES)
    names = (tools | set(READ_ONLY)) - set(forbidden)
    narrowed = NarrowedTools(f"/{command.file.name}", frozenset(names) & frozenset(TOOL_NAMES))
    if not any("(" in name for name in (*allowed, *forbidden)):
        return CommandRules(narrowed)
    return CommandRules(narrowed, _patterns(command, places))


def _names(command: Command, key: str) -> tuple[str, ...]:
    """The entries of the field `key` that begin with the name of one of ralph's tools. Leaves out entries for tools
    that only other agents have. Raises ValueError for an unknown tool.
    """
    names = as_names(command.fields.get(key, ()))
    for name in names:
        if name.partition("(")[0] not in TOOL_NAMES and not is_elsewhere(name):
            raise ValueError(f"{key} has {name}: no tool is called so; nothing was run")
    return tuple(name for name in names if name.partition("(")[0] in TOOL_NAMES)


def _patterns(command: Command, places: RulePlaces) -> CallJudge:
    from ralph.permissions.judge import Permissions  # noqa: PLC0415 - few commands have patterns
    from ralph.permissions.rule import Effect, parse_rule  # noqa: PLC0415 - few commands have patterns
    from ralph.run.permission_rules import LocalDisk, has_parser  # noqa: PLC0415 - few commands have patterns

    def rules(key: str, effect: Effect) -> list[PermissionRule]:
        return [parse_rule(name, effect, command.file.path) for name in _names(command, key)]

    allowed = rules(ALLOWED, Effect.ALLOW) if ALLOWED in command.fields else None
    denied = [rule for rule in rules(FORBIDDEN, Effect.DENY) if rule.pattern is not None]
    judge = Permissions(denied, allowed, places, LocalDisk())
    if judge.needs_parser and not has_parser():
        raise ValueError(
            "its patterns need the packages tree-sitter and tree-sitter-bash, which are missing; nothing was run"
        )
    return judge


class TaskJudge:
    """Judges tool calls by the rules of the run and by the rules in the current task's command file. Implements
    `CallJudge`.
    """

    def __init__(self, of_run: CallJudge | None) -> None:
        self._of_run = of_run
        self._of_command: CallJudge | None = None

    def begin_task(self, of_command: CallJudge | None) -> None:
        """Replaces the command rules of the previous task by `of_command`. None means that the new task has no
        command rules.
        """
        self._of_command = of_command

    def judge(self, call: ToolCall) -> RuleVerdict:
        verdict = RuleVerdict() if self._of_run is None else self._of_run.judge(call)
        if verdict.denied is not None or self._of_command is None:
            return verdict
        narrower = self._of_command.judge(call)
        return verdict if narrower.denied is None else narrower

    def grant(self, call: ToolCall) -> None:
        if self._of_run is not None:
            self._of_run.grant(call)

    def why_not_read(self, path: str) -> str | None:
        rules = (one for one in (self._of_run, self._of_command) if one is not None)
        return next(filter(None, (one.why_not_read(path) for one in rules)), None)

    def why_not_written(self, path: str) -> str | None:
        rules = (one for one in (self._of_run, self._of_command) if one is not None)
        return next(filter(None, (one.why_not_written(path) for one in rules)), None)
