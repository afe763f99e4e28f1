"""The table of agents that a loop can run instead of ralph: their command lines, their sessions, their files, and what the loop
must know to keep its promises. An agent that is not in the table is judged by its exit code alone. Before the first iteration,
the agent's command line gets the options that the user gave to ralph. If the agent cannot enforce a restriction, that is an
error, and nothing runs.

Measured with claude 2.1.332, codex 0.171.0, opencode 1.18.33 and pi 0.73.1, on scripted servers.
"""

from __future__ import annotations

import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.loop.agent_events import read_claude, read_codex, read_opencode, read_pi
from ralph.machine.own_programs import own_program, why_not_used
from ralph.permissions.claude_settings import read_settings, strictest_mode
from ralph.permissions.rule import Effect
from ralph.settings.files import document_of, guards_in_short
from ralph.values.outcome import CannotError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.loop.agent_events import Reader
    from ralph.loop.agent_iterations import AgentHome
    from ralph.loop.check import LoopCommands
    from ralph.loop.values import LoopPlan
    from ralph.machine.own_programs import ProgramSearch
    from ralph.permissions.claude_settings import ClaudeSettings
    from ralph.settings.tables import Settings
    from ralph.values.claude_file import ClaudeFile

_READS_CLAUDE_FILES = "claude"


class AgentPlace(Struct, frozen=True, kw_only=True):
    """A directory of an agent's settings and sessions. In the sandbox, the loop gives it one of its own instead (`home.py`)."""

    variable: str
    """The variable that names it."""
    usual: str
    """Where it is without the variable: a template of `places/table.py`."""
    folder: str = ""
    """The agent's part of the directory, if it is for all programs."""
    taken: tuple[str, ...] = ()
    """The names of the user's files that are copied: all those that decide what the agent does. A folder is linked,
    and read-only."""
    login: str = ""
    """The file with the login, if there is one."""
    by_project: tuple[str, ...] = ()
    """Templates of a file of which only the parts about the loop's directory are copied. The first that exists counts.
    """


class AgentRow(Struct, frozen=True, kw_only=True):
    name: str
    needs: str = ""
    """The word of the command line that makes it run once, without a person."""
    events: tuple[str, ...] = ()
    """The options that make it print its events."""
    allows: tuple[str, ...] = ()
    """The options that let its tools run without a question. They are added if ralph's sandbox confines the agent and the user
    has given none of `permissions`."""
    marks: Mapping[str, str] = MappingProxyType({})
    """Variables that tell it that it is in a sandbox."""
    permissions: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    """The words that resume a session; `ID` stands for the session. Empty if it cannot resume one."""
    sets: tuple[str, ...] = ()
    """The agent's options that the loop sets itself."""
    options: Mapping[str, str] = MappingProxyType({})
    """Options of `ralph run`, by parameter name, with the option of the agent that keeps them."""
    read: Reader | None = None
    """Reads its events. None if only its exit code is known."""
    tells_cost: bool = False
    variables: tuple[str, ...] = ()
    """The variables with its credentials and servers, which are not passed to other commands."""
    state: tuple[AgentPlace, ...] = ()
    reads: tuple[str, ...] = ()
    """The places of its program, which it may read besides. Templates."""


_ANTHROPIC = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CODE_OAUTH_TOKEN")
_OPENAI = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY")
_MANY = (
    *_ANTHROPIC[:3],
    *_OPENAI[:2],
    "GEMINI_API_KEY",
    "OPENROUTER_API_KEY",
    "GROQ_API_KEY",
    "MISTRAL_API_KEY",
)

AGENTS = (
    AgentRow(
        name="claude",
        needs="-p",
        events=("--output-format", "stream-json", "--verbose"),
        allows=("--dangerously-skip-permissions",),
        marks=MappingProxyType({"IS_SANDBOX": "1"}),  # without it, root may not skip permissions
        permissions=(
            *("--permission-mode", "--dangerously-skip-permissions", "--allowedTools", "--allowed-tools"),
            "--permission-prompt-tool",
        ),
        resume=("--resume", "ID"),
        sets=(
            *("--output-format", "--input-format", "--resume", "-r", "--continue", "-c", "--session-id"),
            *("--fork-session", "--no-session-persistence"),
        ),
        options=MappingProxyType(
            {
                "model": "--model",
                "fallback_model": "--fallback-model",
                "allowed_tools": "--allowedTools",
                "disallowed_tools": "--disallowedTools",
                "tools": "--tools",
                "system_prompt": "--system-prompt",
                "append_system_prompt": "--append-system-prompt",
                "permission_mode": "--permission-mode",
                "setting_sources": "--setting-sources",
                "max_turns": "--max-turns",
            }
        ),
        read=read_claude,
        tells_cost=True,
        variables=(*_ANTHROPIC, "CLAUDE_CONFIG_DIR"),
        state=(
            AgentPlace(
                variable="CLAUDE_CONFIG_DIR",
                usual="~/.claude",
                taken=tuple(
                    "settings.json settings.local.json CLAUDE.md commands agents skills hooks plugins rules "
                    "output-styles keybindings.json statusline.sh *.md *.sh *.py *.js".split()
                ),
                login=".credentials.json",
                by_project=("$CLAUDE_CONFIG_DIR/.claude.json", "~/.claude.json"),
            ),
        ),
        reads=("{data}/claude", "~/.claude/local"),
    ),
    AgentRow(
        name="codex",
        needs="exec",
        events=("--json", "--skip-git-repo-check"),
        allows=("-s", "danger-full-access"),
        permissions=(
            *("-s", "--sandbox", "--full-auto", "--dangerously-bypass-approvals-and-sandbox", "--yolo"),
            *("-a", "--ask-for-approval"),
        ),
        resume=("resume", "ID", "-"),
        sets=("resume", "--ephemeral"),
        options=MappingProxyType({"model": "-m"}),
        read=read_codex,
        variables=(*_OPENAI, "CODEX_HOME"),
        state=(
            AgentPlace(
                variable="CODEX_HOME",
                usual="~/.codex",
                taken=tuple(
                    "config.toml AGENTS.md AGENTS.override.md hooks.json prompts skills/* rules plugins .env "
                    "*.config.toml".split()
                ),
                login="auth.json",
            ),
        ),
        reads=("~/.codex/packages",),
    ),
    AgentRow(
        name="opencode",
        needs="run",
        events=("--format", "json"),
        allows=("--auto",),
        permissions=("--auto",),
        resume=("-s", "ID"),
        sets=("--format", "-s", "--session", "-c", "--continue", "--fork"),
        options=MappingProxyType({"model": "-m"}),
        read=read_opencode,
        tells_cost=True,
        variables=(*_MANY, "OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT"),
        state=(
            AgentPlace(
                variable="XDG_DATA_HOME",
                usual="~/.local/share",
                folder="opencode",
                taken=("bin",),
                login="auth.json",
            ),
            AgentPlace(
                variable="XDG_STATE_HOME", usual="~/.local/state", folder="opencode", taken=("model.json",)
            ),
            AgentPlace(
                variable="XDG_CONFIG_HOME",
                usual="~/.config",
                folder="opencode",
                taken=tuple(
                    "opencode.json opencode.jsonc config.json AGENTS.md agent agents command commands mode modes "
                    "plugin plugins skill skills tool tools themes package*.json bun.lock* node_modules*".split()
                ),
            ),
        ),
        reads=("~/.opencode",),
    ),
    AgentRow(
        name="pi",
        needs="-p",
        events=("--mode", "json"),
        resume=("--session", "ID"),
        sets=("--mode", "--session", "-c", "--continue", "-r", "--resume", "--no-session", "--fork"),
        options=MappingProxyType({"model": "--model", "append_system_prompt": "--append-system-prompt"}),
        read=read_pi,
        tells_cost=True,
        variables=(*_MANY, "PI_CODING_AGENT_DIR"),
        state=(
            AgentPlace(
                variable="PI_CODING_AGENT_DIR",
                usual="~/.pi/agent",
                taken=tuple(
                    "settings.json models.json AGENTS.md CLAUDE.md SYSTEM.md APPEND_SYSTEM.md keybindings.json "
                    "extensions skills prompts themes tools hooks bin npm git".split()
                ),
                login="auth.json",
            ),
        ),
    ),
)

KEPT_BY_THE_LOOP = frozenset(
    "add_dir quiet verbose config sandbox net allow_host unix_sockets pass_env setting_sources notify".split()
)
"""Parameters of `ralph run` that the loop enforces itself, unless the agent has an option for them."""


class AgentLine(Struct, frozen=True):
    words: tuple[str, ...]
    """The command line of an agent, as the user typed it, and the agent's counterparts of ralph's options."""
    row: AgentRow

    @property
    def has_permissions(self) -> bool:
        """Whether the words contain one of the agent's options about permissions."""
        return bool(_has_option(self.words, self.row.permissions))

    def command(self, session: str, *, is_confined: bool) -> list[str]:
        """The words of a process that begins a session, or resumes `session` unless it is empty. The prompt is its input."""
        row, given = self.row, list(self.words)
        if row.needs and row.needs not in given:
            given.append(row.needs)
        given += row.events
        if is_confined and not self.has_permissions:
            given += row.allows
        return given + [session if word == "ID" else word for word in row.resume if session]


def agent_line(text: str, more: tuple[str, ...] = ()) -> AgentLine:
    """Reads the value of `--agent`, and adds `more` words. Raises UsageError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--agent {text!r} is not a command line: {error}") from None
    if not words:
        raise UsageError("--agent is empty: name a command, as in --agent 'claude -p'")
    name = words[0].rpartition("/")[2]
    row = next((one for one in AGENTS if one.name == name), AgentRow(name=name))
    if own := _has_option(words[1:], row.sets):
        raise UsageError(f"--agent: leave out {own}, the loop sets it itself for {name}")
    return AgentLine((*words, *more), row)


def option_for_agent(row: AgentRow, parameter: str, asked: str, value: str | None) -> list[str]:
    """The words of the agent's command line for a parameter of `ralph run`. `asked` names the parameter for people.
    Raises CannotError if the agent has no counterpart.
    """
    option = row.options.get(parameter)
    if option is None:
        kept = ", ".join(f"--{one.replace('_', '-')}" for one in row.options)
        raise CannotError(
            f"{asked} cannot be kept with --agent {row.name}: {f'it keeps {kept}' if kept else 'the loop knows no option of it'}; "
            "leave it out, or write the agent's own option into --agent"
        )
    return [option] if value is None else [option, value]


def _has_option(words: Iterable[str], options: tuple[str, ...]) -> str:
    """The first of `options` that is among `words`, also in the form `--option=value`. Empty if none is."""
    return next((word for word in words if word.partition("=")[0] in options), "")


# --- Before the first iteration


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
