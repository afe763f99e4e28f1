"""The syntax of permission rules. An invalid rule is an error and is not ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ralph.mcp.toolset import tool_name
from ralph.permissions.judge import Permissions, RulePlaces
from ralph.permissions.rule import Effect, RuleError, parse_matcher, parse_rule
from ralph.values.answer import ToolCall
from ralph.values.tool_choice import mcp_name
from tests.permissions.worlds import FakeDisk, denies, permissions
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.permissions.rule import PermissionRule

WRONG = {
    "bash(rm *)": "no tool is called 'bash': did you mean Bash?",
    "Bsh": "did you mean Bash?",
    "Nothing(x)": "no tool is called 'Nothing'",
    "Bash(rm *": "is not a rule: write Tool or Tool(pattern)",
    "Bash rm": "is not a rule",
    "": "is not a rule",
    "Bash()": "the pattern is empty; write Bash for every call",
    "Read(!x)": "a path pattern cannot begin with `!`",
    "mcp__x(y)": "a rule for mcp__x takes no pattern",
    "*(x)": "a rule for * takes no pattern",
    "WebFetch(example.com)": "a pattern for WebFetch begins with domain:",
    "Bash(git push:*) Bash(rm:*)": "write one rule for each command",
    "Bash(git push:*))": "write one rule for each command",
    "Bash(curl:*, wget:*)": "write one rule for each command",
    "Bash(git push: *)": "write one rule for each command",
    "Bash(^git push)": "write one rule for each command",
    "Read(.env, .env.local)": "a rule about paths has one pattern",
    "Edit(.env|.env.local)": "a rule about paths has one pattern",
    "Read(.env) Read(.key)": "a rule about paths has one pattern",
    "Read(.env,.env.local)": "a rule about paths has one pattern",
    "Read(./.env ./secrets/**)": "a rule about paths has one pattern",
    "Read(./.env:*)": "a rule about paths has one pattern",
    "Read('.env')": "a rule about paths has one pattern",
    "Read($HOME/.ssh/**)": "~/ is your home directory",
    "Read(" + "{a,b}" * 12 + ")": "stands for more than 200 patterns",
    "Bash(" + "x" * 5000 + ")": "cannot be understood",
}


@every_row(("text", "says"), WRONG.items())
def test_a_rule_that_cannot_be_understood_is_refused(text, says) -> None:
    with pytest.raises(
        RuleError, match=says.replace("*", r"\*").replace("(", r"\(").replace(")", r"\)").replace("?", r"\?")
    ):
        permissions(deny=[text])


@every_row(
    "text",
    [
        "Bash(cut -d: *)",
        "Bash(scp *:* *)",
        "Bash(curl http://localhost:*/x)",
        "Read(*.{pem,key})",
        "Edit(My Docs/**)",
    ],
)
def test_a_rule_with_a_colon_braces_or_a_space_is_understood(text) -> None:
    permissions(deny=[text])


def test_a_rule_that_is_no_text_is_refused() -> None:
    with pytest.raises(RuleError, match="a rule must be a text, not dict"):
        parse_rule({}, Effect.DENY, "the file")


MCP = [
    ("mcp__files", "mcp__files__read", True),
    ("mcp__files__*", "mcp__files__read", True),
    ("mcp__files__read", "mcp__files__read", True),
    ("mcp__files__read", "mcp__files__write", False),
    ("mcp__files__read*", "mcp__files__read_all", True),
    ("mcp__*", "mcp__any__thing", True),
    ("mcp__fil", "mcp__files__read", False),
    ("mcp__My.Files__re.ad", tool_name("My.Files", "re.ad"), True),
    ("mcp__My.*", tool_name("My.Files", "read"), True),
    (f"mcp__files__{'long' * 20}", tool_name("files", "long" * 20), True),
    ("mcp__*__*delete*", tool_name("files", f"{'long' * 20}_delete_all"), True),
    ("mcp__files__*_delete", tool_name("files", f"{'long' * 20}_delete_all"), False),
    ("*", "mcp__files__read", True),
    ("WebFetch(domain:example.com)", "mcp__files__read", False),
]


@every_row(("rule", "tool", "is_denied"), MCP)
def test_a_rule_for_a_server_is_about_its_tools(rule, tool, is_denied) -> None:
    assert denies(permissions(deny=[rule]), tool) is is_denied
    if rule.startswith("mcp"):
        assert denies(permissions(allow=[rule]), tool) is not is_denied


def is_about(rule: PermissionRule, call: ToolCall) -> bool:
    return Permissions((rule,), None, RulePlaces("/w", "/h", FakeDisk())).judge(call).denied is not None


def covers(matcher: str | None, called: str) -> bool:
    """Whether a matcher covers a call: the name of its tool, and behind a space its command or path."""
    tool, _, said = called.partition(" ")
    arguments = {"command": said} if tool == "Bash" else {"file_path": said or "f"}
    return parse_matcher(matcher).covers(ToolCall("t", tool, arguments), is_about)


@every_row(
    ("matcher", "covered", "not_covered"),
    [
        (None, ["Bash", "mcp__a__b"], []),
        ("", ["Bash"], []),
        ("*", ["Bash"], []),
        ("Bash", ["Bash"], ["bash", "BashOutput", "Ba"]),
        ("KillShell", ["KillBash"], ["Bash", "BashOutput"]),
        ("TaskOutput|TaskStop", ["BashOutput", "KillBash"], ["Bash"]),
        ("^Task", ["BashOutput", "KillBash"], ["Bash"]),
        ("Bash.*", ["Bash", "BashOutput"], ["Read"]),
        ("Write|Edit", ["Write", "Edit"], ["WriteEdit", "Bash"]),
        ("Write, Edit", ["Write", "Edit"], ["Bash"]),
        ("Write |Edit|", ["Write", "Edit"], ["Bash"]),
        ("as.*", ["Bash"], ["Read"]),
        ("^(Bash|Write)$", ["Bash", "Write"], ["Read"]),
        ("mcp__.*", ["mcp__a__b"], ["Bash"]),
        (".*__delete.*", ["mcp__a__delete_all"], ["Bash", "mcp__a__b"]),
        ("mcp__a", ["mcp__a__b"], ["mcp__ab__c", "Bash"]),
        ("final_report", ["final_report"], ["Bash"]),
        ("Bash(git commit:*)", ["Bash git commit -m x", "Bash ls; git commit"], ["Bash git push", "Read"]),
        ("Bash(git push*)", ["Bash cd /x && git push"], ["Bash git pull", "mcp__a__b"]),
        ("Bash(git push*) | Write", ["Bash git push", "Write x"], ["Bash ls", "Read x"]),
        ("Bash(rm:*|shred:*)", ["Bash rm x", "Bash shred x"], ["Bash ls"]),
        ("Bash(rm:*)|mcp__a__.*", ["Bash rm x", "mcp__a__b"], ["Bash ls"]),
        ("Bash(*)", ["Bash ls"], ["Read"]),
        ("Bash(.*)", ["Bash ls"], ["Read"]),
        ("Read(./.env)", ["Read .env", "Read /w/.env"], ["Read x", "Bash cat .env"]),
        ("Edit(*.py)", ["Edit a.py", "Edit d/a.py"], ["Edit a.js", "Write a.py"]),
        ("WebFetch(domain:x.com)|Bash", ["Bash"], ["Read"]),
    ],
)
def test_a_matcher_covers_calls_by_the_rules_of_claude_code(matcher, covered, not_covered) -> None:
    assert [call for call in covered if not covers(matcher, call)] == []
    assert [call for call in not_covered if covers(matcher, call)] == []


@every_row(
    ("matcher", "says"),
    [
        ("Shell", "no tool is called 'Shell'"),
        ("Any", "no tool is called 'Any'"),
        ("all", "no tool is called 'all'"),
        ("Bash Edit", "no tool is called 'Bash Edit'"),
        ("Ba", "no tool is called 'Ba'"),
        ("Foo|Quux", "no tool is called 'Foo' or 'Quux'"),
        ("bash", "did you mean Bash?"),
        ("Wriite|Bash", "did you mean Write?"),
        ("/Bash/", "it matches the name of no tool, so that the hook would never be called: name one of Read, Write"),
        ('tool == "Bash" && command contains "rm"', "it matches the name of no tool"),
        ("bash(git:*)", "it matches the name of no tool"),
        ("^as", "it matches the name of no tool"),
        ("Bash(rm:*)|Shell", "no tool is called 'Shell'"),
        ("(", "it is not a regular expression"),
        ("Read(!x)", "a path pattern cannot begin with `!`"),
        ("WebFetch(x)", "a pattern for WebFetch begins with domain:"),
    ],
)  # fmt: skip
def test_a_matcher_that_can_match_no_call_is_refused(matcher, says) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - every row says the text
        parse_matcher(matcher)
    assert says in str(raised.value)


def test_an_expression_finds_the_end_of_a_name_that_is_too_long_for_the_model() -> None:
    long = mcp_name(f"mcp__files__{'long' * 20}_delete")
    assert covers("mcp__.*delete.*", long)
    assert not covers("mcp__.*deleted.*", long)


def test_names_that_no_tool_has_are_kept_beside_a_tool() -> None:
    assert parse_matcher("Bash|Shell|run_command").unknown == ("Shell", "run_command")
    assert parse_matcher("Bash|Task|mcp__a__b").unknown == ()
