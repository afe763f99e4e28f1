"""Parses permission rules such as `Bash(git diff:*)` and `Read(./secrets/**)`, in the form that Claude Code defines, and the matchers
that say for which calls a hook is called. Raises RuleError if a rule cannot be parsed: if it would deny something, the caller must
stop, because the protection would be missing. A matcher that can match no call is refused too: the hook may be a guard.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.answer import FINAL_REPORT
from ralph.values.claude_file import misspelt
from ralph.values.tool_choice import (
    ELSEWHERE,
    MCP_PREFIX,
    OTHER_NAMES,
    TOOL_NAMES,
    covers,
    is_elsewhere,
    known_name,
    mcp_name,
    names_of,
    suggestion,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.values.answer import ToolCall

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


_PLAIN = re.compile(r"[\w\s|,-]*")
_SEPARATOR = re.compile(r"\s*[|,]\s*")
# `|` and `,` between alternatives, but not inside parentheses.
_OUTER_SEPARATOR = re.compile(r"[|,](?![^()]*\))")
_RULE = re.compile(r"(?P<tool>\w+)\((?P<pattern>.+)\)", re.DOTALL)
_KNOWN = (*TOOL_NAMES, FINAL_REPORT, *OTHER_NAMES, *sorted(ELSEWHERE))
_WAY_OUT = (
    f", so that the hook would never be called: name one of {', '.join(TOOL_NAMES)}, or write * for all tools"
)
# What joins a server's name and a tool's. A regular expression with it may be about the tools of a server.
_OF_SERVERS = "__"


class Matcher(Struct, frozen=True):
    """The calls for which a hook is called: those of `names`, those that an expression finds, and those that a rule is about."""

    names: frozenset[str] = frozenset()
    expressions: tuple[re.Pattern[str], ...] = ()
    """They may match any part of a tool's name."""
    rules: tuple[PermissionRule, ...] = ()
    unknown: tuple[str, ...] = ()
    """Those of `names` that no tool has, beside one that a tool has."""

    def covers(self, call: ToolCall, is_about: Callable[[PermissionRule, ToolCall], bool]) -> bool:
        """Whether the hook is called for `call`. `is_about` judges a call of the rule's tool by the rule's pattern."""
        return (
            any(covers(name, call.name) for name in self.names)
            or any(one.search(name) for one in self.expressions for name in names_of(call.name))
            or any(rule.tool == call.name and is_about(rule, call) for rule in self.rules)
        )


@lru_cache(256)
def parse_matcher(text: str | None) -> Matcher:
    """Reads a matcher. Raises ValueError with the reason if it is none, or if it can match no call.

    A matcher is a name, or a list of names such as `A|B` or `A,B`, each for exactly that tool, or all tools of that MCP server.
    `Tool(pattern)`, also in such a list, is a rule on that tool's input; a `|` in it separates patterns. Any other matcher is a
    regular expression. None, "" and "*" cover all tools.
    """
    stripped = (text or "").strip(" \t\r\n,|")
    if stripped in ("", "*"):
        return Matcher(expressions=(re.compile(""),))
    if _PLAIN.fullmatch(stripped):
        return _list_of_names(_SEPARATOR.split(stripped))
    parts = [part.strip() for part in _OUTER_SEPARATOR.split(stripped)]
    if not any(map(_rules_in, parts)):
        return Matcher(expressions=(_expression(stripped),))
    rules, others = [], []
    for part in filter(None, parts):
        found = _rules_in(part)
        rules += found
        others += [] if found else [parse_matcher(part)]
    return Matcher(
        frozenset().union(*(one.names for one in others)),
        # As in Claude Code, `Bash(.*)` covers every command. It is not a pattern that begins with a dot.
        (*(one for other in others for one in other.expressions), *_expressions_in(parts)),
        tuple(rules),
        tuple(name for one in others for name in one.unknown),
    )


def _list_of_names(names: list[str]) -> Matcher:
    missing = [name for name in TOOL_NAMES if name not in names]
    found = misspelt((name for name in names if name not in _KNOWN), missing)
    if found is not None:
        raise ValueError(f"no tool is called {found[0]!r}: did you mean {found[1]}?")
    unknown = tuple(name for name in names if name not in _KNOWN and not name.startswith(MCP_PREFIX))
    if len(unknown) == len(names):
        named = " or ".join(map(repr, unknown))
        raise ValueError(f"no tool is called {named}{_WAY_OUT}")
    return Matcher(frozenset(map(known_name, names)), unknown=unknown)


def _expression(text: str) -> re.Pattern[str]:
    try:
        expression = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"it is not a regular expression: {error}") from error
    if _OF_SERVERS not in text and not any(map(expression.search, _KNOWN)):
        raise ValueError(f"as a regular expression it matches the name of no tool{_WAY_OUT}")
    return expression


def _rules_in(part: str) -> list[PermissionRule]:
    """The rules for a part of a matcher such as `Bash(git commit:*)`. Empty if the part is none. Raises ValueError."""
    form = _RULE.fullmatch(part)
    if form is None or form["tool"] not in _KNOWN:
        return []
    patterns = filter(None, map(str.strip, form["pattern"].split("|")))
    return [parse_rule(f"{form['tool']}({one})", Effect.DENY, "a matcher") for one in patterns]


def _expressions_in(parts: list[str]) -> list[re.Pattern[str]]:
    """Those of the rules in `parts` that match the name of a tool of ralph's as regular expressions."""
    found = []
    for part in filter(_rules_in, parts):
        try:
            expression = re.compile(part)
        except (re.error, RecursionError, OverflowError):
            continue
        found += [expression] if any(map(expression.search, TOOL_NAMES)) else []
    return found
