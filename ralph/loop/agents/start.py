"""Prepares another agent for a loop, before its first iteration: the agent's command line with the options that the
user gave to ralph, and its variables. If the agent cannot enforce a restriction, that is an error, and nothing runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.loop.agents.table import agent_line, option_for_agent
from ralph.machine.own_programs import own_program, why_not_used
from ralph.permissions.claude_settings import read_settings, strictest_mode
from ralph.permissions.rule import Effect
from ralph.settings.claude_files import document_of, guards_in_short
from ralph.values.outcome import CannotError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.loop.agents.home import AgentHome
    from ralph.loop.agents.table import AgentLine, AgentRow
    from ralph.loop.check import LoopCommands
    from ralph.loop.values import LoopPlan
    from ralph.machine.own_programs import ProgramSearch
    from ralph.permissions.claude_settings import ClaudeSettings
    from ralph.settings.tables import Settings
    from ralph.values.claude_file import ClaudeFile

_READS_CLAUDE_FILES = "claude"


class OpenAgent(Struct, frozen=True):
    """The agent of a loop, and what its processes need."""

    line: AgentLine
    commands: LoopCommands
    environment: Mapping[str, str]
    """The variables of commands, and those that the agent's row names."""
    home: AgentHome


def agent_of(command: str, plan: LoopPlan, settings: Settings, search: ProgramSearch) -> AgentLine:
    """The agent of a loop. Raises CannotError if it cannot be started, or cannot enforce what the plan and the
    settings ask for.
    """
    line = agent_line(command, plan.agent_options)
    row = line.row
    budgets = (plan.limits.max_budget_usd, settings.limits.max_budget_usd)
    if any(one is not None for one in budgets) and not row.tells_cost:
        raise CannotError(
            f"a budget cannot be kept with --agent {row.name}: it does not report its cost; leave out --max-budget-usd "
            "and limit the iterations and the time (--max-iterations, --max-time)"
        )
    rules = [
        file.name for file in plan.claude_files or () if is_asked(file, plan) and guards_in_short([file])
    ]
    if rules and row.name != _READS_CLAUDE_FILES:
        raise CannotError(
            f"the rules of {', '.join(rules)} cannot be kept with --agent {row.name}; "
            "--setting-sources '' leaves these files out"
        )
    more = [word for words in _asked_in_files(row, settings) for word in words]
    program = _program_of(line.words[0], search)
    line = replace(line, words=(program, *line.words[1:], *more))
    if row.name == _READS_CLAUDE_FILES and not line.has_permissions and settings.sandbox.mode != "off":
        line = replace(line, words=(*line.words, *_stricter_mode(row, plan)))
    return line


def _stricter_mode(row: AgentRow, plan: LoopPlan) -> list[str]:
    """The words that pass on the permission mode of settings files. The option that lets all tools run would override
    that mode. Raises CannotError for rules that ask.
    """
    read = [found for _, found in rules_of(plan.claude_files or (), plan)]
    if not read:
        return []
    asking = [
        (rule.text, found.file.name) for found in read for rule in found.rules if rule.effect is Effect.ASK
    ]
    for rule, name in asking:
        raise CannotError(
            f"permissions.ask of {name} cannot be kept with --agent {row.name}: nobody is there to be asked ({rule}); make it a rule "
            f"that denies, or give one of the agent's options about permissions, such as {row.permissions[0]}"
        )
    mode = strictest_mode(read)
    return [] if mode is None else option_for_agent(row, "permission_mode", "permissions.defaultMode", mode)


def is_asked(file: ClaudeFile, plan: LoopPlan) -> bool:
    return file.kind == "flag" or file.kind in plan.setting_sources


def rules_of(files: Iterable[ClaudeFile], plan: LoopPlan | None = None) -> list[tuple[str, ClaudeSettings]]:
    """The rules, hooks and limits of files for Claude Code, with the name of each, and only of those that the `plan` asks for,
    if one is given. Empty if no file has any. Raises CannotError.
    """
    files = [file for file in files if plan is None or is_asked(file, plan)]
    if not guards_in_short(files):
        return []
    return [(file.name, read_settings(document_of(file), file)) for file in files]


def _asked_in_files(row: AgentRow, settings: Settings) -> Iterator[list[str]]:
    tools, most = settings.tools, settings.limits.max_turns
    for parameter, names in (
        ("tools", tools.exact),
        ("allowed_tools", tools.allowed),
        ("disallowed_tools", tools.disallowed or None),
    ):
        if names is not None:
            yield option_for_agent(row, parameter, f"{parameter} of the settings", ",".join(names))
    if most is not None:
        yield option_for_agent(row, "max_turns", "limits.max_turns of the settings", str(most))


def _program_of(word: str, search: ProgramSearch) -> str:
    if word.startswith("/"):
        why = search.why_unsafe(word)
        if why:
            raise CannotError(f"--agent: {word} is not run: {why}")
        return word
    found = None if "/" in word else own_program(word, search)
    if found is None:
        why = (
            "name it without a folder, or by its absolute path" if "/" in word else why_not_used(word, search)
        )
        raise CannotError(f"--agent: the program {word} cannot be started: {why or 'PATH does not have it'}")
    return found


def environment_of(home: AgentHome, of_commands: Mapping[str, str], *, is_confined: bool) -> dict[str, str]:
    """The variables for an agent: those of commands, and those that its row names. In the sandbox they name its directories."""
    row, users = home.row, home.environment
    own = {name: users[name] for name in row.variables if name in users}
    return {**of_commands, **own, **({**row.marks, **home.variables} if is_confined else {})}
