"""Tests which tools remain after three lists, and which names the lists may contain."""

from __future__ import annotations

import pytest

from ralph.values.answer import ToolCall
from ralph.values.tool_choice import (
    OTHER_NAMES,
    TOOL_NAMES,
    ToolLists,
    check_tool_name,
    covers,
    enabled_tools,
    is_chosen,
    lacking,
    mcp_name,
    with_known_name,
)
from tests.rows import every_row

READERS = ("Read", "Glob", "Grep")
COMMANDS = ("Bash", "BashOutput", "KillBash")

# --tools, --allowed-tools, --disallowed-tools, what is left.
ROWS = [
    (None, None, (), TOOL_NAMES),
    ((), None, (), ()),
    (("Bash",), None, (), COMMANDS),
    (("Bash",), None, ("BashOutput",), ("Bash", "KillBash")),
    (None, ("Bash(git *)",), ("TaskStop", "AgentOutputTool"), ("Read", "Bash", "Glob", "Grep")),
    (("Read", "BashOutput", "KillShell"), None, (), ("Read",)),
    (None, (), (), READERS),
    (None, ("Bash",), (), ("Read", *COMMANDS, "Glob", "Grep")),
    (None, ("WebFetch",), (), READERS),
    (None, None, ("Bash", "TodoWrite"), ("Read", "Write", "Edit", "Glob", "Grep")),
    (None, ("Bash",), ("Bash", "Read"), ("Glob", "Grep")),
    (("Bash", "Write"), ("Bash",), (), COMMANDS),
    (TOOL_NAMES, ("Write",), ("Grep",), ("Read", "Write", "Glob")),
]


@every_row(("exact", "allowed", "disallowed", "left"), ROWS)
def test_what_is_left_is_what_every_list_leaves(exact, allowed, disallowed, left) -> None:
    assert enabled_tools(exact, allowed, disallowed) == left


ELSEWHERE = [
    *("WebFetch", "WebSearch", "TodoWrite", "Task", "TaskCreate", "NotebookEdit", "MultiEdit"),
    *("Agent", "mcp__calc__add", "mcp__*", "mcp__a-b__*", "WebFetch(domain:example.com)"),
]


@every_row("name", [*TOOL_NAMES, *OTHER_NAMES, *ELSEWHERE])
def test_a_tool_of_claude_code_is_known_and_lacking(name) -> None:
    check_tool_name(name)
    assert (name in lacking([name])) is (name in ELSEWHERE)


@every_row(
    ("name", "says"),
    [
        ("bash", "no tool is called 'bash': did you mean Bash?"),
        ("killshell", "no tool is called 'killshell': did you mean KillShell?"),
        ("webfetch", "no tool is called 'webfetch': did you mean WebFetch?"),
        ("Writ", "no tool is called 'Writ': did you mean Write?"),
        ("Launch", "no tool is called 'Launch'"),
        ("bash(git *)", "no tool is called 'bash(git *)': did you mean Bash?"),
        ("Bash(git *", "'Bash(git *' lacks its closing parenthesis"),
        ("Bash()", "no tool is called 'Bash()': did you mean Bash?"),
        ("*", "no tool is called '*'"),
        ("mcp__x(", "'mcp__x(' lacks its closing parenthesis"),
    ],
)
def test_any_other_name_is_refused_with_what_may_be_meant(name, says) -> None:
    with pytest.raises(ValueError, match=r"must contain (?:exact tool )?names") as refused:
        check_tool_name(name)
    assert str(refused.value).endswith(says)


@every_row(
    ("called", "arguments", "known"),
    [
        ("BashOutput", {"bash_id": "bash_1"}, ("BashOutput", {"bash_id": "bash_1"})),
        (
            "TaskOutput",
            {"task_id": "bash_1", "block": True},
            ("BashOutput", {"bash_id": "bash_1", "block": True}),
        ),
        ("AgentOutputTool", {"shell_id": "bash_1"}, ("BashOutput", {"bash_id": "bash_1"})),
        ("KillShell", {"shell_id": "bash_1"}, ("KillBash", {"shell_id": "bash_1"})),
        ("TaskStop", {"task_id": "bash_1"}, ("KillBash", {"shell_id": "bash_1"})),
        ("TaskStop", {"task_id": "x", "shell_id": "y"}, ("KillBash", {"task_id": "x", "shell_id": "y"})),
        ("KillBash", {}, ("KillBash", {})),
        ("Bash", {"task_id": "x"}, ("Bash", {"task_id": "x"})),
    ],
)
def test_a_call_by_another_name_is_one_of_ralphs_own_tool(called, arguments, known) -> None:
    call = with_known_name(ToolCall("c", called, arguments))
    assert (call.id, (call.name, call.arguments)) == ("c", known)


@every_row(
    ("pattern", "is_covered"),
    [
        ("mcp__calc__add", True),
        ("mcp__calc", True),
        ("mcp__calc__*", True),
        ("mcp__*", True),
        ("mcp__*__add", True),
        ("*", True),
        ("mcp__cal", False),
        ("mcp__calc__ad", False),
        ("mcp__calc__add__more", False),
        ("mcp__other__*", False),
        ("calc", False),
    ],
)
def test_a_pattern_covers_a_tool_a_server_or_what_its_star_leaves_open(pattern, is_covered) -> None:
    assert covers(pattern, "mcp__calc__add") is is_covered


def test_a_pattern_may_have_the_words_of_the_server_itself() -> None:
    assert covers("mcp__my.calc__a.d", "mcp__my_calc__a_d")
    assert covers("mcp__my.*", "mcp__my_calc__a_d")
    long = mcp_name(f"mcp__my_calc__{'long' * 20}_delete")
    assert covers("mcp__*delete", long)
    assert not covers("mcp__*delete_all", long)


# --tools, --allowed-tools, --disallowed-tools, whether the command line names the server, whether the tool remains.
MCP_ROWS = [
    (None, None, (), False, True),
    (("Read",), None, (), True, True),
    (("Read",), None, (), False, False),
    ((), None, (), True, True),
    (TOOL_NAMES, None, (), False, True),
    (("Read", "mcp__calc__add"), None, (), False, True),
    (("Read", "mcp__calc__sub"), None, (), True, False),
    (None, ("Bash",), (), True, False),
    (None, ("mcp__calc",), (), True, True),
    (None, ("mcp__calc__add(x)",), (), True, False),
    (None, None, ("mcp__calc",), True, False),
    (None, ("mcp__calc",), ("mcp__calc__add",), True, False),
    (None, None, ("mcp__calc__add(x)",), True, False),
]


@every_row(("exact", "allowed", "disallowed", "is_asked_for", "remains"), MCP_ROWS)
def test_which_tools_of_servers_remain(exact, allowed, disallowed, is_asked_for, remains) -> None:
    lists = ToolLists(exact, allowed, disallowed)
    assert is_chosen("mcp__calc__add", lists, is_asked_for=is_asked_for) is remains
