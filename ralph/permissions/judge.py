"""Judges tool calls by all permission rules of a run. A rule can only forbid calls. No rule permits a call that ralph
would refuse without the rule.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.permissions.bash_paths import PathJudge, PathRule
from ralph.permissions.bash_rules import BashPattern, denied_by, why_not_allowed
from ralph.permissions.in_force import RuleVerdict
from ralph.permissions.path_pattern import PathPattern, PatternBases
from ralph.permissions.rule import READERS, WRITERS, Effect, PermissionRule
from ralph.permissions.shell import parse_line
from ralph.values.tool_choice import READ_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.permissions.bash_paths import Disk
    from ralph.values.tool_calls import ToolCall

_NOT_RUN = "This call was not run"
_PATH_ARGUMENTS = {
    "Read": "file_path",
    "Edit": "file_path",
    "Write": "file_path",
    "Grep": "path",
    "Glob": "path",
}


class RulePlaces(Struct, frozen=True):
    """The directories to which relative paths and `~` in rules and calls refer."""

    cwd: str
    """The absolute path of the working directory."""
    home: str
    """The user's home directory, or an empty text if it is unknown."""


class Permissions:
    """The permission rules of a run, or of a command file."""

    def __init__(
        self,
        rules: Sequence[PermissionRule],
        allowed: Sequence[PermissionRule] | None,
        places: RulePlaces,
        disk: Disk,
        *,
        kept: Sequence[PermissionRule] | None = None,
        narrow: Sequence[PermissionRule] = (),
        is_narrow: Callable[[], bool] = lambda: False,
    ) -> None:
        """`rules` deny calls or require a question. Each call must match a rule in `allowed`, and also a rule in
        `kept`, which holds the rules of the resumed session. If `allowed` or `kept` is None, it sets no condition.
        While `is_narrow` returns True, each call must also match a rule in `narrow`. Raises RuleError.
        """
        self._is_narrow = is_narrow
        self._places = places
        self._disk = disk
        self._real_cwd = disk.real(places.cwd)
        self._rules = {
            effect: tuple(rule for rule in rules if rule.effect is effect)
            for effect in (Effect.DENY, Effect.ASK)
        }
        self._always = [tuple(one) for one in (allowed, kept) if one is not None]
        self._narrow = tuple(narrow)
        every = (*rules, *(rule for one in self._always for rule in one), *narrow)
        self._paths = {rule: self._pattern(rule) for rule in every if _is_about_paths(rule)}
        self._bash = {rule: BashPattern(rule) for rule in every if rule.names("Bash")}

    @property
    def needs_parser(self) -> bool:
        """Whether commands must be parsed. They must be parsed if a rule may apply to a part of a command."""
        return any(rule.pattern is not None for rule in (*self._bash, *self._paths))

    # --- The port

    def judge(self, call: ToolCall) -> RuleVerdict:
        denied = self._first_broken(call.name, call.arguments, Effect.DENY)
        if denied is not None:
            rule, remark = denied
            return RuleVerdict(denied=f"{_NOT_RUN}: the rule {rule.place} forbids it.{remark}")
        lists = [*self._always, *([self._narrow] if self._is_narrow() else [])]
        why = next(filter(None, (self._why_not_allowed(call, allowed) for allowed in lists)), None)
        if why is not None:
            return RuleVerdict(denied=f"{_NOT_RUN}: only calls that a rule allows may run, and {why}.")
        asked = self._first_broken(call.name, call.arguments, Effect.ASK)
        if asked is not None:
            rule, remark = asked
            return RuleVerdict(asks=f"the rule {rule.place} wants somebody to be asked first.{remark}")
        return RuleVerdict()

    def unreadable_places(self) -> tuple[str, ...]:
        """The absolute paths of files and directories whose whole content rules deny to read, with symbolic links
        resolved.

        Only patterns that begin with `//` or `~/` are used. Any other pattern is ambiguous: `/bin/**` probably means
        a directory of the project and not the system's directory.
        """
        rules = (
            rule
            for rule in self._of(self._rules[Effect.DENY], READERS)
            if (rule.pattern or "").startswith(("//", "~/"))
        )
        found = (self._disk.real(place) for rule in rules for place in self._paths[rule].whole_places())
        return tuple(dict.fromkeys(found))

    def why_not_read(self, path: str) -> str | None:
        return self._hidden_by(path, READERS)

    def why_not_written(self, path: str) -> str | None:
        return self._hidden_by(path, WRITERS)

    # --- Rules that deny or ask

    def _first_broken(
        self, tool: str, arguments: Mapping[str, Any], effect: Effect
    ) -> tuple[PermissionRule, str] | None:
        rules = self._rules[effect]
        for rule in rules:
            if rule.pattern is None and _is_about(rule, tool):
                return rule, ""
        if tool == "Bash":
            return self._broken_by_command(arguments, rules)
        path = self._path_of(tool, arguments)
        if path is not None:
            kinds = (READERS, WRITERS) if tool == "Edit" else (READERS,) if tool in READERS else (WRITERS,)
            for kind in kinds:
                for rule in self._of(rules, kind):
                    if any(self._paths[rule].matches(one) for one in path):
                        return rule, ""
        return None

    def _broken_by_command(
        self, arguments: Mapping[str, Any], rules: Sequence[PermissionRule]
    ) -> tuple[PermissionRule, str] | None:
        patterns = [self._bash[rule] for rule in rules if rule in self._bash]
        reading, changing = (
            [PathRule(r, self._paths[r]) for r in self._of(rules, kind)] for kind in (READERS, WRITERS)
        )
        if not (patterns or reading or changing):
            return None
        line = parse_line(str(arguments.get("command", "")))
        broken = denied_by(line, patterns)
        if broken is not None:
            return broken[0].rule, f" {broken[1]}" if broken[1] else ""
        found = PathJudge(
            line, self._real_cwd, self._places.home, self._disk, reading=reading, changing=changing
        ).found()
        return None if found is None else (found.rule, f" {found.remark}")

    def _hidden_by(self, path: str, kind: frozenset[str]) -> str | None:
        for effect in (Effect.DENY, Effect.ASK):
            for rule in self._of(self._rules[effect], kind):
                if self._paths[rule].matches(path):
                    return rule.place
        return None

    def _of(self, rules: Sequence[PermissionRule], kind: frozenset[str]) -> list[PermissionRule]:
        return [rule for rule in rules if rule.tool in kind and rule in self._paths]

    # --- Rules that allow

    def _why_not_allowed(self, call: ToolCall, allowed: Sequence[PermissionRule]) -> str | None:
        """Tells the model why no rule in `allowed` allows the call. None if a rule allows it."""
        if call.name in READ_ONLY:
            return None
        rules = [rule for rule in allowed if _allows(rule, call.name)]
        if any(rule.pattern is None for rule in rules):
            return None
        if call.name == "Bash":
            return self._why_command_not_allowed(str(call.arguments.get("command", "")), rules, allowed)
        path = self._path_of(call.name, call.arguments)
        if path and self._is_path_allowed(path, rules):
            return None
        return f"none allows this call of {call.name}"

    def _why_command_not_allowed(
        self, text: str, rules: Sequence[PermissionRule], allowed: Sequence[PermissionRule]
    ) -> str | None:
        if not rules:
            return "none allows a command"
        line = parse_line(text)
        why = why_not_allowed(line, [self._bash[rule] for rule in rules])
        if why is not None:
            return why
        writers = [rule for rule in allowed if rule.tool in WRITERS]
        for one in line.redirections:
            if one.writes and not one.is_harmless and not self._may_write(one.target.text, writers):
                return f"none allows to write {one.target.known or 'where its output leads'}"
        return None

    def _may_write(self, text: str | None, writers: Sequence[PermissionRule]) -> bool:
        """Whether a rule allows writing to the file `text`, to which a command redirects its output. None means an
        unknown file.
        """
        if text is None:
            return False
        return any(rule.pattern is None for rule in writers) or self._is_path_allowed(
            self._named(text), writers
        )

    def _is_path_allowed(self, paths: Sequence[str], rules: Sequence[PermissionRule]) -> bool:
        return any(
            all(self._paths[rule].matches(path) for path in paths) for rule in rules if rule in self._paths
        )

    # --- Paths

    def _path_of(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The absolute paths that a call may mean, including each path with its symbolic links resolved. None if the
        call names no path.
        """
        argument = _PATH_ARGUMENTS.get(tool)
        if argument is None:
            return None
        text = arguments.get(argument, ".")
        return self._named(text) if isinstance(text, str) and "\0" not in text else None

    def _named(self, text: str) -> tuple[str, ...]:
        home = self._places.home
        if home and (text == "~" or text.startswith("~/")):
            text = home + text[1:]
        named = [
            posixpath.normpath(posixpath.join(base, text)) for base in (self._places.cwd, self._real_cwd)
        ]
        return tuple(dict.fromkeys((*named, *map(self._disk.real, named))))

    def _pattern(self, rule: PermissionRule) -> PathPattern:
        """The path pattern of a rule. If a rule denies a symbolic link, its pattern also matches the target of the
        link.
        """
        home = self._places.home
        homes = (home, self._disk.real(home)) if home else ()
        bases = PatternBases(
            tuple(dict.fromkeys((self._places.cwd, self._real_cwd))), tuple(dict.fromkeys(homes))
        )
        if rule.effect is Effect.ALLOW:
            return PathPattern(rule, bases)
        literal = PathPattern(rule, bases).literal_paths()
        return PathPattern(rule, bases, [real for path in literal if (real := self._disk.real(path)) != path])


def _is_about_paths(rule: PermissionRule) -> bool:
    return rule.pattern is not None and rule.tool in READERS | WRITERS


def _is_about(rule: PermissionRule, tool: str) -> bool:
    """Whether a rule without a pattern applies to a tool. A rule for Edit applies to every tool that changes files."""
    return rule.names(tool) or (rule.tool == "Edit" and tool in WRITERS)


def _allows(rule: PermissionRule, tool: str) -> bool:
    return rule.names(tool) or (rule.tool in WRITERS and tool in WRITERS and rule.tool in ("Edit", tool))
