"""Selects the tools of a run from the user's options, and checks the names of tools in these options. No I/O happens
here.

A name is refused if neither ralph nor Claude Code has a tool with this name. Otherwise a mistyped name would have no
effect, and the user would not notice.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.values.answer import BASH_OUTPUT, KILL_BASH, ToolCall
from ralph.values.outcome import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


TOOL_NAMES = ("Read", "Write", "Edit", "Bash", BASH_OUTPUT, KILL_BASH, "Glob", "Grep")
OF_BACKGROUND = (BASH_OUTPUT, KILL_BASH)
OTHER_NAMES = {
    **dict.fromkeys(("TaskOutput", "AgentOutputTool"), BASH_OUTPUT),
    **dict.fromkeys(("TaskStop", "KillShell"), KILL_BASH),
}
"""Other names that Claude Code has or had for tools of ralph."""
READ_ONLY = ("Read", "Glob", "Grep")
TOOL_SETTINGS = ("tools.exact", "tools.allowed", "tools.disallowed")
ALL_OF_THEM = "default"
"""The value of `--tools` that selects all tools. SDKs send this value."""

# Tools of Claude Code: those in its tools reference (https://code.claude.com/docs/en/tools-reference, read
# 2026-11), and those of earlier versions, which scripts still name. Ralph does not have these tools, so an option
# that allows or forbids one of them changes nothing.
ELSEWHERE = frozenset(
    """
    Agent Artifact AskUserQuestion CronCreate CronDelete CronList EnterPlanMode EnterWorktree ExitPlanMode
    ExitWorktree LSP ListMcpResourcesTool Monitor NotebookEdit PowerShell PushNotification ReadMcpResourceTool
    RemoteTrigger ScheduleWakeup SendMessage Skill StructuredOutput TaskCreate TaskGet TaskList
    TaskUpdate TeamCreate TeamDelete TodoWrite ToolSearch WebFetch WebSearch Workflow LS MultiEdit NotebookRead SlashCommand Task TodoRead
    """.split()
)
_ELSEWHERE_FORM = r"([A-Za-z_]+|mcp__[A-Za-z0-9_.*-]+)(\(.*\))?"


def is_elsewhere(name: str) -> bool:
    """Whether the name belongs to a tool that Claude Code has and ralph does not have, or has the form of an MCP
    tool's name. A pattern in parentheses may follow the name.
    """
    form = re.fullmatch(_ELSEWHERE_FORM, name, re.ASCII | re.DOTALL)
    return form is not None and (form[1] in ELSEWHERE or form[1].startswith("mcp__"))


def tool_of(name: str) -> str:
    """The name of the tool in an entry of a tool list: `Bash` for `Bash(git *)`, and `KillBash` for `KillShell`."""
    return known_name(name.partition("(")[0])


def known_name(name: str) -> str:
    """Ralph's name for a tool, which may have another name in Claude Code. Other names are returned unchanged."""
    return OTHER_NAMES.get(name, name)


_ID_ARGUMENTS = {BASH_OUTPUT: "bash_id", KILL_BASH: "shell_id"}


def with_known_name(call: ToolCall) -> ToolCall:
    """The call as ralph's definition of the tool has it. The argument with the id of a command in the background has another
    name in each tool of Claude Code.
    """
    name = known_name(call.name)
    argument = _ID_ARGUMENTS.get(name)
    if argument is None:
        return call
    renamed = {
        argument
        if key in ("bash_id", "shell_id", "task_id") and argument not in call.arguments
        else key: value
        for key, value in call.arguments.items()
    }
    return replace(call, name=name, arguments=renamed)


def names_of(tool: str) -> tuple[str, ...]:
    """All names of a tool of ralph, its own first. Of an MCP server's, the one that the model has, and the whole one."""
    if tool in _whole_names:
        return (tool, _whole_names[tool])
    return (tool, *(other for other, known in OTHER_NAMES.items() if known == tool))


def is_pattern(name: str) -> bool:
    """Whether an entry of a tool list is for only some calls of the tool. An example is `Bash(git *)`."""
    return "(" in name and name.partition("(")[2] not in ("*)", ":*)")


def check_tool_name(name: str, *, takes_patterns: bool = True) -> None:
    """Raises ValueError if neither ralph nor Claude Code has a tool with this name. The caller puts the option's name
    before the error's text. If `takes_patterns` is True, a pattern in parentheses may follow the name.
    """
    tools = ", ".join(TOOL_NAMES)
    name = known_name(name)
    form = re.fullmatch(r"([A-Za-z_]+)\(.+\)", name, re.ASCII | re.DOTALL)
    if (
        name in TOOL_NAMES
        or is_elsewhere(name)
        or (form is not None and form[1] in TOOL_NAMES and takes_patterns)
    ):
        return
    if "(" in name and not name.endswith(")"):
        raise ValueError(f"must contain names of tools or patterns; {name!r} lacks its closing parenthesis")
    if form is not None and form[1] in TOOL_NAMES:
        raise ValueError(f"must contain exact tool names ({tools}); {name!r} is a pattern")
    raise ValueError(
        f"must contain exact tool names ({tools}); no tool is called {name!r}{suggestion(tool_of(name))}"
    )


def suggestion(name: str) -> str:
    """The end of an error message about an unknown tool: a known tool with a similar name, if there is one."""
    by_lower = {known.lower(): known for known in (*sorted(ELSEWHERE), *OTHER_NAMES, *TOOL_NAMES)}
    near = nearest(name.lower(), by_lower)
    return f": did you mean {by_lower[near]}?" if near else ""


def lacking(names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that belong to no tool of ralph."""
    return tuple(name for name in names if tool_of(name) not in TOOL_NAMES)


def enabled_tools(
    exact: tuple[str, ...] | None, allowed: tuple[str, ...] | None, disallowed: tuple[str, ...]
) -> tuple[str, ...]:
    """The tools that a run may use.

    If `exact` is not None, only the tools in it can be used. If `allowed` is not None, only the read-only tools and
    the tools in `allowed` can be used. The tools in `disallowed` are never used. An entry with a pattern, such as
    `Bash(git *)`, enables its tool, and `ralph/permissions/` judges each call. `OF_BACKGROUND` can be used with
    Bash only, and need not be listed.
    """
    kept = TOOL_NAMES if exact is None else with_background(map(tool_of, exact))
    permitted = TOOL_NAMES if allowed is None else with_background((*map(tool_of, allowed), *READ_ONLY))
    forbidden = {tool_of(name) for name in disallowed if not is_pattern(name)}
    found = [name for name in TOOL_NAMES if name in kept and name in permitted and name not in forbidden]
    return tuple(name for name in found if name not in OF_BACKGROUND or "Bash" in found)


def with_background(names: Iterable[str]) -> frozenset[str]:
    """The names, with the tools for commands in the background if Bash is among them."""
    names = frozenset(names)
    return names | frozenset(OF_BACKGROUND) if "Bash" in names else names


def without_background(names: Collection[str]) -> tuple[str, ...]:
    """The names as people get them: without `OF_BACKGROUND`, unless one of these is missing although Bash is there."""
    are_implied = "Bash" in names and all(name in names for name in OF_BACKGROUND)
    return tuple(name for name in names if not (are_implied and name in OF_BACKGROUND))


# --- Tools of MCP servers

MCP_PREFIX = "mcp__"
"""The beginning of each name of an MCP server's tool."""


_LONGEST_NAME = 64
"""The longest name of a tool that every server of the Messages API takes."""
_HASH_DIGITS = 8
_whole_names: dict[str, str] = {}
"""The names that `mcp_name` has shortened until now, each with the whole one. Patterns may be about its end."""


def mcp_name(name: str) -> str:
    """The name of an MCP server's tool as the model gets it, of one with the server's own words, as in a rule: an underscore stands
    for each character that a tool's name must not contain, but `*`, as in Claude Code, and a checksum for the end of a long one.
    """
    name = re.sub(r"[^A-Za-z0-9_*-]", "_", name)
    if len(name) <= _LONGEST_NAME or "*" in name:
        return name
    import hashlib  # noqa: PLC0415 - few names are so long

    digits = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    short = f"{name[: _LONGEST_NAME - _HASH_DIGITS - 1]}_{digits}"
    _whole_names[short] = name
    return short


class ToolLists(Struct, frozen=True):
    """The three lists with which a user selects tools."""

    exact: tuple[str, ...] | None = None
    allowed: tuple[str, ...] | None = None
    disallowed: tuple[str, ...] = ()

    @property
    def mcp_patterns(self) -> tuple[str, ...]:
        """The entries of all three lists that refer to tools of MCP servers."""
        names = (*(self.exact or ()), *(self.allowed or ()), *self.disallowed)
        return tuple(dict.fromkeys(name for name in names if name.startswith(MCP_PREFIX)))


def covers(pattern: str, name: str) -> bool:
    """Whether an entry of a tool list includes the MCP tool with this name. `mcp__server` includes all tools of the
    server. `*` stands for any characters.
    """
    pattern = mcp_name(pattern)
    if "*" in pattern:
        expression = re.compile(".*".join(map(re.escape, pattern.split("*"))))
        return any(map(expression.fullmatch, names_of(name)))
    return name == pattern or name.startswith(f"{pattern}__")


def is_chosen(name: str, lists: ToolLists, *, is_asked_for: bool) -> bool:
    """Whether a run may use the MCP tool with this name.

    `lists.disallowed` and `lists.allowed` apply as to other tools. If `lists.exact` (`--tools`) names MCP tools,
    only those may be used. Otherwise it limits only ralph's own tools, as in Claude Code, and an MCP tool may be
    used only if `is_asked_for` is True: the command line configures the tool's server.
    """
    if any(covers(pattern.partition("(")[0], name) for pattern in lists.disallowed):
        return False
    if lists.allowed is not None and not any(covers(pattern, name) for pattern in lists.allowed):
        return False
    if lists.exact is None or with_background(map(tool_of, lists.exact)).issuperset(TOOL_NAMES):
        return True
    named = [pattern for pattern in lists.exact if pattern.startswith(MCP_PREFIX)]
    return any(covers(pattern, name) for pattern in named) if named else is_asked_for
