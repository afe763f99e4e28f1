"""Judges tool calls by all permission rules of a run. A rule can only forbid calls. No rule permits a call that ralph
would refuse without the rule.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ralph.permissions.bash_paths import PathJudge
from ralph.permissions.bash_rules import BashPattern, HarmlessCommands, broken_by, why_not_allowed
from ralph.permissions.gate import RuleVerdict
from ralph.permissions.patterns import PathPattern
from ralph.permissions.rule import READERS, WRITERS, Effect, PermissionRule, parse_rule
from ralph.permissions.shell import parse_line
from ralph.values.tool_choice import OF_BACKGROUND, READ_ONLY, is_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ralph.values.answer import ToolCall

_NOT_RUN = "This call was not run"
_PATH_ARGUMENTS = {
    **dict.fromkeys(("Read", "Edit", "Write"), "file_path"),
    **dict.fromkeys(("Grep", "Glob"), "path"),
}


class Disk(Protocol):
    """Answers questions about the paths on the disk."""

    def real(self, path: str) -> str:
        """The path with all symbolic links resolved. The path need not exist."""
        ...

    def names_in(self, directory: str) -> Sequence[str]:
        """The names of what is in a directory. Empty if the path is not a directory, or may not be read."""
        ...

    def may_be_tracked(self, path: str) -> bool:
        """Whether git may track the file in the repository around it. True if that is not known."""
        ...

    def paths_below(self, directory: str) -> Sequence[str] | None:
        """All paths in a directory, at every depth. Empty if the path is not a directory. None if there are too many."""
        ...


class RulePlaces:
    """The directories to which relative paths and `~` in rules and calls refer, and the disk on which they are."""

    def __init__(self, cwd: str, home: str, disk: Disk, added: Sequence[str] = ()) -> None:
        """`cwd` is the absolute working directory, `added` are other directories of the user. `home` is empty if it is unknown."""
        self.home = home
        self.disk = disk
        self.real_cwd = disk.real(cwd)
        self.cwds = tuple(dict.fromkeys((cwd, self.real_cwd)))
        self.homes = tuple(dict.fromkeys((home, disk.real(home)))) if home else ()
        self.roots = tuple(dict.fromkeys((self.real_cwd, *map(disk.real, added))))
        """Absolute, with symbolic links resolved."""

    def joined(self, text: str, base: str) -> str:
        """The absolute path for a path that may begin with `~` or be relative to the directory `base`."""
        if self.home and (text == "~" or text.startswith("~/")):
            text = self.home + text[1:]
        return posixpath.normpath(posixpath.join(base, text)).replace("//", "/")

    def named(self, text: str, bases: Sequence[str]) -> tuple[str, ...]:
        """The absolute paths that a path may mean, and each of them with its symbolic links resolved."""
        paths = [self.joined(text, base) for base in bases]
        return tuple(dict.fromkeys((*paths, *map(self.disk.real, paths))))

    def is_below_root(self, path: str) -> bool:
        """Whether a path without symbolic links is a root or is in one. False if the root is the whole disk."""
        return any(f"{path}/".startswith(f"{root}/") for root in self.roots if root != "/")

    def is_near_home(self, path: str) -> bool:
        """Whether a path without symbolic links is a hidden file of the home directory, or the home directory is in it."""
        return any(path.startswith(f"{home}/.") or f"{home}/".startswith(f"{path}/") for home in self.homes)


class KnownRule:
    """A permission rule with its compiled pattern."""

    def __init__(self, rule: PermissionRule, places: RulePlaces) -> None:
        """Raises RuleError."""
        self.of = rule
        self.is_whole = rule.pattern is None
        self.is_about_paths = not self.is_whole and rule.tool in READERS | WRITERS
        self.is_about_commands = rule.names("Bash")
        if self.is_about_paths:
            self.path = PathPattern(rule, places)
        if self.is_about_commands:
            self.bash = BashPattern(rule.pattern or "*")

    def covers(self, tool: str) -> bool:
        """Whether the rule is for calls of this tool. One for Edit is for every tool that changes files, and one that denies
        every command for what belongs to commands.
        """
        if tool in OF_BACKGROUND and self.of.tool == "Bash":
            return self.is_whole and self.of.effect is Effect.DENY
        return self.of.names(tool) or (self.of.tool == "Edit" and tool in WRITERS)


class DeniedPlaces(Struct, frozen=True):
    """Files and directories that rules deny as a whole: absolute paths, with symbolic links resolved."""

    read: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Only those in the given directories: commands may write nowhere else."""
    unsearched: tuple[str, ...] = ()
    """Directories with too many paths to compare each with the rules, so that only what rules name there is known."""


Broken = tuple[KnownRule, str]
"""A rule that a call breaks, and a remark for the model."""


class Permissions:
    """The permission rules of a run, or of a command file."""

    def __init__(
        self,
        rules: Sequence[PermissionRule],
        allowed: Sequence[PermissionRule] | None,
        places: RulePlaces,
        *,
        kept: Sequence[PermissionRule] | None = None,
        narrow: Sequence[PermissionRule] = (),
        is_narrow: Callable[[], bool] = lambda: False,
    ) -> None:
        """`rules` deny calls or require a question. Each call must match a rule in `allowed`, and one in `kept`, those of the
        resumed session. None sets no condition. While `is_narrow` returns True, it must also match one in `narrow`. Raises
        RuleError.
        """
        self._is_narrow = is_narrow
        self._places = places
        self._denying, self._asking = (
            [KnownRule(one, places) for one in rules if one.effect is effect]
            for effect in (Effect.DENY, Effect.ASK)
        )
        self._always = [
            [KnownRule(rule, places) for rule in one] for one in (allowed, kept) if one is not None
        ]
        self._narrow = [KnownRule(rule, places) for rule in narrow]

    @property
    def guards_of_reading(self) -> list[KnownRule]:
        """The rules that deny to read something, or want somebody to be asked first."""
        rules = (*self._denying, *self._asking)
        return [rule for rule in rules if rule.covers("Read") or rule in _about(READERS, (rule,))]

    def judge(self, call: ToolCall, others: Sequence[KnownRule] = ()) -> RuleVerdict:
        """`others` are the rules about reading that are in force beside these."""
        broken = self._broken(call, self._denying)
        if broken is not None:
            return RuleVerdict(denied=f"{_NOT_RUN}: the rule {broken[0].of.place} forbids it.{broken[1]}")
        lists = [*self._always, *([self._narrow] if self._is_narrow() else [])]
        why = next(filter(None, (self._why_not_allowed(call, allowed, others) for allowed in lists)), None)
        if why is not None:
            return RuleVerdict(denied=f"{_NOT_RUN}: only calls that a rule allows may run, and {why}.")
        broken = self._broken(call, self._asking)
        if broken is not None:
            place, remark = broken[0].of.place, broken[1]
            return RuleVerdict(asks=f"the rule {place} requires somebody to be asked first.{remark}")
        return RuleVerdict()

    def denied_places(self, roots: Sequence[str] = ()) -> DeniedPlaces:
        """The places that denying patterns name, and in the directories `roots` also those that they match now. Outside of `roots`, only
        patterns with `//` or `~/` count: any other is ambiguous, as `/bin/**`, which is probably a directory of the project.
        """
        reading, changing = (_about(tools, self._denying) for tools in (READERS, WRITERS))
        real, unsearched = self._places.disk.real, []
        outside = (rule for rule in reading if (rule.of.pattern or "").startswith(("//", "~/")))
        read = [real(place) for rule in outside for place in rule.path.whole_places()]
        changed: list[str] = []
        for root in map(real, roots):
            # A rule about the whole directory would leave nothing to work with.
            rules = [rule for rule in (*reading, *changing) if not rule.path.holds(root)]
            below = self._places.disk.paths_below(root) if rules else ()
            if below is None:
                unsearched.append(root)
            for rule in rules:
                path = rule.path
                named = (*path.whole_places(), *path.literal_paths(), *filter(path.matches, below or ()))
                inside = (one for one in map(real, named) if one.startswith(f"{root.rstrip('/')}/"))
                (read if rule.of.tool in READERS else changed).extend(inside)
        return DeniedPlaces(*(tuple(dict.fromkeys(one)) for one in (read, changed, unsearched)))

    def why_not_read(self, path: str) -> str | None:
        return self._hidden_by(path, READERS)

    def why_not_written(self, path: str) -> str | None:
        return self._hidden_by(path, WRITERS)

    def _hidden_by(self, path: str, tools: frozenset[str]) -> str | None:
        rules = _about(tools, (*self._denying, *self._asking))
        return next((rule.of.place for rule in rules if rule.path.matches(path)), None)

    def _broken(self, call: ToolCall, rules: Sequence[KnownRule]) -> Broken | None:
        """The first of these rules that the call breaks, with a remark that begins with a space. None if it breaks none."""
        whole = next((rule for rule in rules if rule.is_whole and rule.covers(call.name)), None)
        if whole is not None:
            return whole, ""
        reading, changing = _about(READERS, rules), _about(WRITERS, rules)
        if call.name == "Bash":
            commands = [rule for rule in rules if rule.is_about_commands]
            if not (commands or reading or changing):
                return None
            line = parse_line(str(call.arguments.get("command", "")))
            found = broken_by(line, commands) or PathJudge(line, self._places, reading, changing).broken()
            return found and (found[0], f" {found[1]}" if found[1] else "")
        kinds = {"Edit": (*reading, *changing), "Write": changing}.get(call.name, reading)
        paths = self._path_of(call) or ()
        return next(((rule, "") for rule in kinds if any(map(rule.path.matches, paths))), None)

    def _why_not_allowed(
        self, call: ToolCall, allowed: Sequence[KnownRule], others: Sequence[KnownRule]
    ) -> str | None:
        """Why no rule in `allowed` allows the call, for the model. None if one does."""
        if call.name in READ_ONLY or call.name in OF_BACKGROUND:
            return None
        rules = [rule for rule in allowed if rule.covers(call.name)]
        if any(rule.is_whole for rule in rules):
            return None
        if call.name == "Bash":
            writers = [rule for rule in allowed if rule.of.tool in WRITERS]
            text, reading = str(call.arguments.get("command", "")), (*self.guards_of_reading, *others)
            return self._why_command_not_allowed(text, rules, writers, reading)
        path = self._path_of(call)
        return None if path and _is_allowed(path, rules) else f"none allows this call of {call.name}"

    def _why_command_not_allowed(
        self,
        text: str,
        rules: Sequence[KnownRule],
        writers: Sequence[KnownRule],
        reading: Sequence[KnownRule],
    ) -> str | None:
        """The rules `writers` allow to write where output is redirected to. `reading` are those that deny to read something, or ask."""
        if not rules:
            return "none allows a command"
        line = parse_line(text)
        unread = _about(READERS, reading)
        may_read = not any(rule.is_whole for rule in reading)
        harmless = HarmlessCommands(line, self._places, may_read=may_read, has_read_rules=bool(unread))
        why = why_not_allowed(line, rules, harmless)
        if why is not None:
            return why
        unread = [rule for rule in unread if rule.of.effect is Effect.DENY]
        if unread and line.has_glob:
            return f"a file name pattern in it may name what the rule {unread[0].of.place} forbids: write the names out"
        may_write = any(rule.is_whole for rule in writers)
        for word in (one.target for one in line.redirections if one.writes and not one.is_harmless):
            if word.text is None or not (may_write or _is_allowed(self._named(word.text), writers)):
                return f"none allows to write {word.known or 'where its output leads'}"
        return None

    def _path_of(self, call: ToolCall) -> tuple[str, ...] | None:
        """The absolute paths that a call may mean. None if it names none."""
        argument = _PATH_ARGUMENTS.get(call.name)
        text = None if argument is None else call.arguments.get(argument, ".")
        return self._named(text) if isinstance(text, str) and "\0" not in text else None

    def _named(self, text: str) -> tuple[str, ...]:
        return self._places.named(text, self._places.cwds)


def _about(tools: frozenset[str], rules: Sequence[KnownRule]) -> list[KnownRule]:
    return [rule for rule in rules if rule.is_about_paths and rule.of.tool in tools]


def _is_allowed(paths: Sequence[str], rules: Sequence[KnownRule]) -> bool:
    return any(rule.is_about_paths and all(map(rule.path.matches, paths)) for rule in rules)


def denied_places(
    rules: Iterable[PermissionRule], disallowed: Iterable[str], places: RulePlaces, roots: Sequence[str]
) -> DeniedPlaces:
    """The places that denying rules, and patterns among the disallowed tools, deny (`Permissions.denied_places`). Raises RuleError."""
    denying = [rule for rule in rules if rule.effect is Effect.DENY]
    denying += [parse_rule(one, Effect.DENY, "the disallowed tools") for one in disallowed if is_pattern(one)]
    return Permissions(denying, None, places).denied_places(roots)
