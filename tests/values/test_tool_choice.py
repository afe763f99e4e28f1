"""Tests which tools remain after three lists, and which names the lists may contain."""

from __future__ import annotations

import pytest

from ralph.values.tool_choice import TOOL_NAMES, check_tool_name, enabled_tools, lacking
from tests.rows import every_row

READERS = ("Read", "Glob", "Grep")

# --tools, --allowed-tools, --disallowed-tools, what is left.
ROWS = [
    (None, None, (), TOOL_NAMES),
    ((), None, (), ()),
    (("Bash",), None, (), ("Bash",)),
    (None, (), (), READERS),
    (None, ("Bash",), (), ("Read", "Bash", "Glob", "Grep")),
    (None, ("WebFetch",), (), READERS),
    (None, None, ("Bash", "TodoWrite"), ("Read", "Write", "Edit", "Glob", "Grep")),
    (None, ("Bash",), ("Bash", "Read"), ("Glob", "Grep")),
    (("Bash", "Write"), ("Bash",), (), ("Bash",)),
    (TOOL_NAMES, ("Write",), ("Grep",), ("Read", "Write", "Glob")),
]


@every_row(("exact", "allowed", "disallowed", "left"), ROWS)
def test_what_is_left_is_what_every_list_leaves(exact, allowed, disallowed, left) -> None:
    assert enabled_tools(exact, allowed, disallowed) == left


ELSEWHERE = [
    *("WebFetch", "WebSearch", "TodoWrite", "Task", "TaskCreate", "NotebookEdit", "MultiEdit", "BashOutput"),
    *("KillShell", "Agent", "mcp__calc__add", "mcp__*", "mcp__a-b__*", "WebFetch(domain:example.com)"),
]


@every_row("name", [*TOOL_NAMES, *ELSEWHERE])
def test_a_tool_of_claude_code_is_known_and_lacking(name) -> None:
    check_tool_name(name)
    assert (name in lacking([name])) is (name in ELSEWHERE)


@every_row(
    ("name", "says"),
    [
        ("bash", "no tool is called 'bash': did you mean Bash?"),
        ("webfetch", "no tool is called 'webfetch': did you mean WebFetch?"),
        ("Writ", "no tool is called 'Writ': did you mean Write?"),
        ("Launch", "no tool is called 'Launch'"),
        ("bash(git *)", "no tool is called 'bash(git *)': did you mean Bash?"),
        ("Bash(git *", "no tool is called 'Bash(git *': did you mean Bash?"),
        ("Bash()", "no tool is called 'Bash()': did you mean Bash?"),
        ("*", "no tool is called '*'"),
        ("mcp__x(", "no tool is called 'mcp__x('"),
    ],
)
def test_any_other_name_is_refused_with_what_may_be_meant(name, says) -> None:
    with pytest.raises(ValueError, match="must hold exact names of tools") as refused:
        check_tool_name(name)
    assert str(refused.value).endswith(says)
