"""Parses permission rules such as `Bash(git diff:*)` and `Read(./secrets/**)`, in the form that Claude Code defines.
Raises RuleError if a rule cannot be parsed. If such a rule would deny something, the caller must stop, because the
protection would be missing.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from ralph.values.tool_choice import TOOL_NAMES, is_elsewhere, known_name, mcp_name, names_of, suggestion

_FORM = re.compile(r"(?P<tool>[^()\s]+)(?:\((?P<pattern>.*)\))?", re.DOTALL)
_MCP = re.compile(r"mcp__[A-Za-z0-9_.*-]+")
# Forms in which people write several patterns as one, none of which could match.
_SEVERAL_COMMANDS = re.compile(r":\*(?:[),;|]|\s+[A-Z]\w*\()|(?:^|\s)\w+: \*$", re.DOTALL)
_SEVERAL_PATHS = re.compile(r", |,\.|\||\) |:\*$|^[\"']| \./")
_LONGEST = 4096
"""The maximum number of characters in a rule. Real rules are much shorter."""

# Tools that Claude Code has or had for the work of ralph's tools. A rule about them holds for these.
READERS = frozenset("Read Glob Grep LS NotebookRead".split())
WRITERS = frozenset({"Edit", "Write", "MultiEdit", "NotebookEdit"})


class RuleError(ValueError):
    """A rule cannot be parsed. The message quotes the rule and gives the reason."""


class Effect(StrEnum):
    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


class PermissionRule(Struct, frozen=True):
    effect: Effect
    tool: str
    """The name of a tool. `*` stands for all tools. Inside the name of an MCP tool, `*` stands for any text."""
    pattern: str | None
    """The text in parentheses, or None if the rule covers every call of the tool."""
    source: str
    """The file or the option that contains the rule."""
    root: str = ""
    """A directory to which paths in the rule may be relative. Empty means that they are relative to the working
    directory."""

    @property
    def text(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    @property
    def place(self) -> str:
        """The text of the rule and its source, for people and for the model."""
        return f"{self.text} ({self.source})"

    def names(self, tool: str) -> bool:
        """Whether the rule is for this tool. A rule that names an MCP server is for all tools of that server."""
        if self.tool in (tool, "*"):
            return True
        if not tool.startswith("mcp__") or not self.tool.startswith("mcp__"):
            return False
        parts = re.escape(mcp_name(self.tool)).replace(r"\*", ".*")
        return any(re.fullmatch(rf"{parts}(?:__.*)?", name, re.DOTALL) for name in names_of(tool))


def parse_rule(text: object, effect: Effect, source: str, root: str = "") -> PermissionRule:
    """Parses one rule. Raises RuleError."""
    if not isinstance(text, str):
        raise RuleError(f"a rule must be a text, not {type(text).__name__}")
    stripped = text.strip()
    if len(stripped) > _LONGEST or "\0" in stripped:
        raise RuleError(f"a rule of {len(stripped):,} characters cannot be understood")
    if re.search(r"[^\S \t\n]", stripped):
        raise RuleError(
            f"{stripped!r} has white space that is no plain space, as pages have: no command has it; type it anew"
        )
    form = _FORM.fullmatch(stripped)
    if form is None:
        raise RuleError(f"{stripped!r} is not a rule: write Tool or Tool(pattern)")
    tool, pattern = known_name(form["tool"]), form["pattern"]
    is_known = tool == "*" or tool in TOOL_NAMES or _MCP.fullmatch(tool)
    if not is_known and not (re.fullmatch(r"[A-Za-z_]+", tool) and is_elsewhere(tool)):
        raise RuleError(f"{stripped!r}: no tool is called {tool!r}{suggestion(tool)}")
    if pattern is not None:
        pattern = pattern.strip()
        if not pattern:
            raise RuleError(f"{stripped!r}: the pattern is empty; write {tool} for every call")
        pattern = _checked_pattern(tool, pattern, stripped)
    return PermissionRule(effect, tool, pattern, source, root)


def _checked_pattern(tool: str, pattern: str, text: str) -> str | None:
    if pattern == "*" or (tool == "Bash" and pattern == ":*"):
        return None
    if tool == "*" or tool.startswith("mcp__"):
        raise RuleError(f"{text!r}: a rule for {tool} takes no pattern in parentheses")
    if tool in READERS | WRITERS and pattern.startswith("!"):
        raise RuleError(f"{text!r}: a path pattern cannot begin with `!`")
    if tool == "Bash" and (_SEVERAL_COMMANDS.search(pattern) or pattern.startswith("^")):
        raise RuleError(f"{text!r}: `:*` ends a pattern, and ^ begins none; write one rule for each command")
    if tool in READERS | WRITERS and _SEVERAL_PATHS.search(pattern):
        raise RuleError(
            f"{text!r}: a rule about paths has one pattern, without quotes and `:*`; write one rule for each"
        )
    if tool in READERS | WRITERS and pattern.startswith("$"):
        raise RuleError(f"{text!r}: variables in a path are not replaced; ~/ is your home directory")
    if tool == "WebFetch" and not pattern.startswith("domain:"):
        raise RuleError(f"{text!r}: a pattern for WebFetch begins with domain:")
    return pattern
