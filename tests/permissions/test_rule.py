"""The syntax of permission rules. An invalid rule is an error and is not ignored."""

from __future__ import annotations

import pytest

from ralph.mcp.toolset import tool_name
from ralph.permissions.rule import Effect, RuleError, parse_rule
from tests.permissions.worlds import denies, permissions
from tests.rows import every_row

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
