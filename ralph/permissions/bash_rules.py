"""Judges a shell command by the patterns for Bash. `bash_paths.py` judges the paths in the command.

A command may run if each simple command in it matches an allowed pattern and none matches a denied pattern. A part
that ralph cannot parse matches no allowed pattern. Such a part matches a denied pattern if one of its words is the
pattern's command name. A command whose name is known only at run time matches every denied pattern.
"""

from __future__ import annotations

import re
import shlex
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.permissions.shell import ShellCall, SimpleCommand, parse_shell
from ralph.permissions.wildcard import ANY, Element, Wildcard
from ralph.permissions.wrappers import name_of, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.permissions.rule import PermissionRule
    from ralph.permissions.shell_words import Word

_SEPARATOR = "\x1f"
"""Follows each word when words are joined into one text, so that a space inside a word does not look like the end of
the word."""
_OPERATORS = re.compile(r"\s*(?:&&|\|\||\|&|[|;\n]|(?<![<>&\d])&(?![>&\d]))\s*")
_MOST_LEVELS = 20
"""The maximum depth to which commands within commands, such as `sh -c`, are searched."""


class BashPattern:
    """The pattern of one rule for Bash. A pattern with an operator, such as `curl * | sh`, has several parts. The
    pattern denies a call if each part matches a command in the call.
    """

    def __init__(self, rule: PermissionRule) -> None:
        self.rule = rule
        parts = [part for part in _OPERATORS.split(rule.pattern or "*") if part.strip()]
        self._parts = [_Part(part) for part in parts]
        self.has_operator = len(self._parts) != 1

    def denies(self, commands: Sequence[Sequence[Word]]) -> bool:
        return all(any(part.may_match(words) for words in commands) for part in self._parts)

    def occurs_in(self, words: frozenset[str]) -> bool:
        """Whether all command names of the pattern are among `words`."""
        return all(part.occurs_in(words) for part in self._parts)

    def allows(self, words: Sequence[Word]) -> bool:
        return not self.has_operator and self._parts[0].surely_matches(words)


class _Part:
    """The part of a pattern that stands for one simple command."""

    def __init__(self, text: str) -> None:
        text = text.strip()
        is_open = text.endswith((":*", " *"))
        words = _pattern_words(text[:-2] if is_open else text)
        self._name = words[0].rpartition("/")[2].lower() if words else "*"
        self._exact = _wildcard(words, is_open=is_open)
        # People do not expect that `/bin/rm` or `RM` gets past a rule for `rm`.
        self._loose = _wildcard([self._name, *words[1:]], is_open=is_open)

    def surely_matches(self, words: Sequence[Word]) -> bool:
        return self._exact.surely_matches(_joined(words))

    def may_match(self, words: Sequence[Word]) -> bool:
        name = name_of(words)
        return name is not None and any(
            self._loose.may_match(_joined(words[at:], name.lower())) for at in _after_options(words)
        )

    def occurs_in(self, words: frozenset[str]) -> bool:
        if "*" in self._name:
            return any(fnmatchcase(word.lower(), self._name) for word in words)
        return any(word.lower() == self._name or word.lower().endswith(f"={self._name}") for word in words)


class Judged(Struct, frozen=True):
    """The facts about a shell command that ralph compares with patterns."""

    call: ShellCall
    commands: tuple[tuple[Word, ...], ...]
    """All commands that the call runs, including commands that other commands run."""
    not_understood: str
    suspect: str
    """A description of an ordinary command in the call that may run other commands. Empty if there is none."""
    cannot_be_allowed: str
    """The reason why no pattern can allow the call, even if ralph could parse all its parts. Empty if there is no
    such reason."""
    hides_text: bool
    """True if a text in the call looks like a substitution that the shell may run later, as with `PS4` and
    arithmetic."""
    runs_unknown: bool
    """True if the call runs a command whose name is known only at run time."""
    everywhere: frozenset[str]
    calls: tuple[ShellCall, ...]
    """The parsed call, and each parsed text that the call runs as a shell command."""
    needed: tuple[tuple[Word, ...], ...]
    """The commands that must match an allowed pattern if only allowed commands may run."""


def judged(text: str) -> Judged:
    reader = _Commands()
    call = parse_shell(text)
    reader.add_call(call, 0)
    return Judged(
        call,
        tuple(reader.commands),
        reader.problem,
        reader.suspect,
        reader.runner,
        any(re.search(r"\$\(|`", word.known) for word in _all_words(reader.calls)),
        reader.runs_unknown,
        frozenset().union(*(one.everywhere for one in reader.calls)),
        tuple(reader.calls),
        tuple(reader.needed),
    )


def denied_by(command: Judged, patterns: Sequence[BashPattern]) -> tuple[BashPattern, str] | None:
    """The first pattern that denies the command, and a remark that tells the model the reason. None if no pattern
    denies the command.
    """
    for pattern in patterns:
        if pattern.rule.pattern is None or pattern.denies(command.commands):
            return pattern, ""
        if command.runs_unknown:
            return (
                pattern,
                "It runs something that is known only when it runs, which may be that: write it out.",
            )
        problem = (
            command.not_understood
            or command.suspect
            or ("A text with a substitution" if command.hides_text else "")
        )
        if problem and pattern.occurs_in(command.everywhere):
            return (
                pattern,
                f"{problem[0].upper()}{problem[1:]} in it cannot be judged, and it names that: write it plainly.",
            )
    return None


def why_not_allowed(command: Judged, patterns: Sequence[BashPattern]) -> str | None:
    """Tells the model why the patterns do not allow the command. None if they allow it."""
    if any(pattern.rule.pattern is None for pattern in patterns):
        return None
    problem = (
        command.not_understood
        or command.cannot_be_allowed
        or ("a command that is known only when it runs" if command.runs_unknown else "")
    )
    if problem:
        return f"{problem} in it cannot be judged"
    if command.call.sets_variables:
        return "it sets variables for the commands after it"
    for words in command.needed:
        if not any(pattern.allows(words) for pattern in patterns):
            return f"no rule allows `{shown(words)}`"
    return None if command.needed else "there is no command in it"


def shown(words: Sequence[Word]) -> str:
    return " ".join("".join("..." if part is ANY else part for part in word.parts) for word in words)[:200]


def _all_words(calls: Sequence[ShellCall]) -> Iterator[Word]:
    for call in calls:
        yield from call.other_words
        for command in call.commands:
            yield from (*command.words, *command.assignments)


class _Commands:
    """Collects the commands of a call, including commands that other commands run."""

    def __init__(self) -> None:
        self.commands: list[tuple[Word, ...]] = []
        self.needed: list[tuple[Word, ...]] = []
        self.calls: list[ShellCall] = []
        self.problem = ""
        self.suspect = ""
        self.runner = ""
        self.runs_unknown = False

    def add_call(self, call: ShellCall, level: int) -> None:
        self.calls.append(call)
        self._say(call.not_understood)
        self.runs_unknown = self.runs_unknown or call.hides_names
        for command in call.commands:
            self._add(command.words, level, command=command)

    def _add(self, words: tuple[Word, ...], level: int, *, command: SimpleCommand | None) -> None:
        if level > _MOST_LEVELS:
            self._say("its nesting")
            self.runs_unknown = True
            return
        self.commands.append(words)
        inner = within(words, has_heredoc=command is not None and command.has_heredoc)
        self._say(inner.not_understood)
        self.suspect = self.suspect or inner.suspect
        self.runs_unknown = self.runs_unknown or inner.runs_unknown
        if command is not None and not inner.is_transparent:
            self.needed.append((*command.assignments, *words))
        elif command is not None:
            inner_command = SimpleCommand(inner.commands[0], command.assignments, command.has_heredoc)
            self._add(inner_command.words, level + 1, command=inner_command)
            return
        if inner.commands or inner.scripts:
            self.runner = self.runner or f"`{name_of(words)}`, which runs other commands,"
        for each in inner.commands:
            self._add(each, level + 1, command=None)
        for script in inner.scripts:
            self.add_call(parse_shell(script), level + 1)

    def _say(self, problem: str) -> None:
        self.problem = self.problem or problem


def _after_options(words: Sequence[Word]) -> Iterator[int]:
    """Yields the index of each word that may be the first operand. In `git -C x push`, the index of `push` is among
    them.
    """
    yield 1
    at = 1
    while at < len(words) and (words[at].known.startswith("-") or words[at].text is None):
        at += 1
        if at < len(words):
            yield at
        if at < len(words) and not words[at].known.startswith("-"):
            if at + 1 < len(words):
                yield at + 1  # the word before may be the value of the option
            if at + 1 < len(words) and words[at + 1].known.startswith("-"):
                at += 1


def _joined(words: Sequence[Word], name: str | None = None) -> list[Element]:
    """Joins the words to one text, with the separator after each word. `name` comes first if it is given."""
    text: list[Element] = [] if name is None else [*name, _SEPARATOR]
    for word in words:
        text += [*word.elements(), _SEPARATOR]
    return text


def _pattern_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _wildcard(words: Sequence[str], *, is_open: bool) -> Wildcard:
    elements: list[Element] = []
    for word in words:
        elements += [ANY if char == "*" else char for char in word]
        elements.append(_SEPARATOR)
    if is_open or (words and words[-1].endswith("*")):
        elements.append(ANY)
    return Wildcard(elements)
