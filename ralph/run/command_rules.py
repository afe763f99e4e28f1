"""The permission rules in a command file's frontmatter. During the command's task, they apply in addition to the
rules of the run. They can only forbid tool calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.permissions.in_force import CommandRules
from ralph.permissions.settings_keys import misspelt
from ralph.prompt.frontmatter import as_names
from ralph.values.tool_choice import READ_ONLY, TOOL_NAMES, is_elsewhere, known_name, tool_of, with_background

if TYPE_CHECKING:
    from ralph.permissions.judge import Permissions, RulePlaces
    from ralph.permissions.rule import PermissionRule
    from ralph.prompt.commands import Command

ALLOWED, FORBIDDEN = "allowed-tools", "disallowed-tools"


def rules_of_command(command: Command, places: RulePlaces) -> CommandRules:
    """Reads the rules in a command file. Raises ValueError for a key or a rule that ralph cannot apply."""
    name = f"/{command.file.name}"
    found = misspelt(command.fields, (ALLOWED, FORBIDDEN, "hooks"))
    if found is not None:
        raise ValueError(f"{found[0]} is not known, and is perhaps meant as {found[1]}; nothing was run")
    allowed, forbidden = _names(command, ALLOWED), _names(command, FORBIDDEN)
    if ALLOWED not in command.fields and not forbidden:
        return CommandRules(name)
    tools = with_background(map(tool_of, allowed)) if ALLOWED in command.fields else frozenset(TOOL_NAMES)
    offered = frozenset(TOOL_NAMES) & ((tools | set(READ_ONLY)) - set(map(known_name, forbidden)))
    has_patterns = any("(" in entry for entry in (*allowed, *forbidden))
    return CommandRules(name, offered, _patterns(command, places) if has_patterns else None)


def _names(command: Command, key: str) -> tuple[str, ...]:
    """The entries of the field `key` that begin with the name of one of ralph's tools. Leaves out entries for tools
    that only other agents have. Raises ValueError for an unknown tool.
    """
    names = as_names(command.fields.get(key, ()))
    for name in names:
        if tool_of(name) not in TOOL_NAMES and not is_elsewhere(name):
            raise ValueError(f"{key} has {name}: no tool is called so; nothing was run")
    return tuple(name for name in names if tool_of(name) in TOOL_NAMES)


def _patterns(command: Command, places: RulePlaces) -> Permissions:
    from ralph.permissions.judge import Permissions  # noqa: PLC0415 - few commands have patterns
    from ralph.permissions.rule import Effect, parse_rule  # noqa: PLC0415 - few commands have patterns
    from ralph.run.permission_rules import has_parser  # noqa: PLC0415 - few commands have patterns

    def rules(key: str, effect: Effect) -> list[PermissionRule]:
        return [parse_rule(name, effect, command.file.path) for name in _names(command, key)]

    allowed = rules(ALLOWED, Effect.ALLOW) if ALLOWED in command.fields else None
    denied = [rule for rule in rules(FORBIDDEN, Effect.DENY) if rule.pattern is not None]
    judge = Permissions(denied, allowed, places)
    if judge.needs_parser and not has_parser():
        raise ValueError(
            "its patterns need the packages tree-sitter and tree-sitter-bash, which are missing; nothing was run"
        )
    return judge
