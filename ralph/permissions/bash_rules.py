"""Judges a shell command by the patterns for Bash. `bash_paths.py` judges the paths in the command.

A command may run if each simple command in it matches an allowed pattern and none matches a denied one. A part in which other
commands may be hidden matches no allowed pattern, and a denied one if it has all of the pattern's words. A command whose name is
known only at run time matches every denied pattern.
"""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from typing import TYPE_CHECKING

from ralph.permissions.patterns import ANY, WORD_END, Element, Wildcard
from ralph.permissions.shell_words import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.permissions.harmless import HarmlessCommands
    from ralph.permissions.judge import Broken, KnownRule
    from ralph.permissions.shell import ParsedLine
    from ralph.permissions.shell_syntax import SimpleCommand
    from ralph.permissions.shell_words import Word

_PIECE = re.compile(r"[\w.+@%:*-]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SET_VARIABLES = frozenset("export declare typeset local readonly env sudo doas".split())
_OPERATORS = re.compile(r"\s*(?:&&|\|\||\|&|[|;\n]|(?<![<>&\d])&(?![>&\d]))\s*")


class BashPattern:
    """The pattern of a rule for Bash. One with an operator, such as `curl * | sh`, has several parts, and denies a call in which
    each part matches a command.
    """

    def __init__(self, pattern: str) -> None:
        parts = [part for part in _OPERATORS.split(pattern) if part.strip()]
        self._parts = [_Part(part) for part in parts]
        self.has_operator = len(self._parts) != 1
        self.names_path = re.search(r"[./]", pattern) is not None
        """Whether a word in the pattern may be the path of a file."""

    def denies(self, line: ParsedLine) -> bool:
        return all(part.denies(line) for part in self._parts)

    def occurs_in(self, words: frozenset[str], names: frozenset[str]) -> bool:
        """Whether all words of the pattern are among `words`, and those that begin its commands among `names`."""
        return all(part.occurs_in(words, names) for part in self._parts)

    def is_named_in(self, words: frozenset[str]) -> bool:
        """Whether all command names of the pattern are among `words`."""
        return all(part.is_named_in(words) for part in self._parts)

    def allows(self, words: Sequence[Word]) -> bool:
        return not self.has_operator and self._parts[0].surely_matches(words)


class _Part:
    def __init__(self, text: str) -> None:
        text = text.strip()
        is_open, has_colon = text.endswith((":*", " *")), text.endswith(":*")
        text = text[:-2] if is_open else text
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        self._exact = _wildcard(words, is_open=is_open)
        self._set = [_wildcard([word], is_open=False) for word in takewhile(_ASSIGNMENT.match, words)]
        set_first, words = words[: len(self._set)], words[len(self._set) :]
        first = words[0] if words else "*"
        self._is_anywhere = first.startswith("*") and not set_first
        """Whether the pattern begins with any text, so that it is about the text of the line."""
        directory, _, name = first.rpartition("/")
        # In `*secrets/*` and `./scripts/*`, what is behind the slash is no name of a command.
        self._is_path = bool(directory) and "*" in name and (first[0] == "*" or not name.strip("*"))
        self._name = (first if self._is_path else name).lower()
        self._named = [*_pieces_of(set_first), self._name]
        self._pieces = _pieces_of([*set_first, self._name, *words[1:]])
        is_text = self._is_anywhere or bool(words and words[-1].endswith("*"))
        self._text = _wildcard(words, is_open=is_open, is_text=is_text)
        # People do not expect that `/bin/rm` or `RM` gets past a rule for `rm`.
        loose = [self._name, *words[1:]]
        self._loose = [_wildcard(loose, is_open=is_open, is_text=is_text)]
        # The colon may be a part of the word: `npm run deploy:*` is about `npm run deploy:prod` too.
        self._has_colon = has_colon and len(loose) > 1
        if self._has_colon:
            self._loose.append(_wildcard([*loose[:-1], f"{loose[-1]}:*"], is_open=False, is_text=is_text))

    def surely_matches(self, words: Sequence[Word]) -> bool:
        return self._exact.surely_matches(_joined(words))

    def denies(self, line: ParsedLine) -> bool:
        occurs = self.occurs_in(line.everywhere, line.everywhere)
        words = [*line.other_words] if self._set else []
        words += [word for one in line.commands if one.name in _SET_VARIABLES for word in one.words[1:]]
        unset = [one for one in self._set if not _may_be_among(one, words)]
        return self._is_beside(line) or any(
            self._may_match(command, line, occurs)
            for command in line.commands
            if all(_may_be_among(one, command.assignments) for one in unset)
        )

    def _may_match(self, command: SimpleCommand, line: ParsedLine, occurs: bool) -> bool:
        """`occurs` says whether the line has all words of the pattern."""
        words = command.words
        name = plain((command.name or "").lower())
        if (self._is_anywhere or self._is_path) and self._is_in_text(command, line, occurs):
            return True
        if command.name is None or self._is_path or ("*" not in self._name and name.known != self._name):
            return False
        return self._may_match_words((name, *words[1:]), line, is_named=occurs)

    def _may_match_words(self, words: Sequence[Word], line: ParsedLine, *, is_named: bool) -> bool:
        return any(one.may_match_words(words, line.options, is_named=is_named) for one in self._loose)

    def _is_in_text(self, command: SimpleCommand, line: ParsedLine, occurs: bool) -> bool:
        """Whether the pattern matches the text of a command. An unknown part counts if the line has all words of the pattern."""
        if not command.words:
            return False
        first, *rest = command.words
        words = [first if first.text is not None else plain(first.parts[-1] or ""), *rest]
        if self._is_anywhere:
            words = [*command.assignments, *words]
        return self._text.surely_matches(_joined(words)) or (
            occurs and self._text.may_match_words(words, line.options, is_named=True)
        )

    def _is_beside(self, line: ParsedLine) -> bool:
        """Whether a pattern that begins with any text matches what the line has beside its commands, such as `< .env`."""
        if not self._is_anywhere:
            return False
        beside: list[tuple[Word, ...]] = [(plain(one.operator), one.target) for one in line.redirections]
        beside += [(word,) for word in (*line.other_words, *line.given_texts)]
        return any(self._text.surely_matches(_joined(words)) for words in beside)

    def occurs_in(self, words: frozenset[str], names: frozenset[str]) -> bool:
        *first, last = self._pieces or [""]
        begins = f"{last}:"
        return (
            bool(self._pieces)
            and (self._is_anywhere or _is_among(names, self._pieces[0]))
            and all(_is_among(words, piece) for piece in first)
            and (
                _is_among(words, last)
                or (
                    self._has_colon and any(one.lower().startswith(begins) and one != begins for one in words)
                )
            )
        )

    def is_named_in(self, words: frozenset[str]) -> bool:
        return all(_is_among(words, one) for one in self._named)


def _pieces_of(words: Sequence[str]) -> list[str]:
    return [piece.lower() for word in words for piece in _PIECE.findall(word)]


def _may_be_among(pattern: Wildcard, words: Sequence[Word]) -> bool:
    return any(pattern.may_match(_joined([word])) for word in words)


def _is_among(words: frozenset[str], piece: str) -> bool:
    """Whether a part of a pattern's word is one of `words`, alone or as the value of an option in the same word."""
    texts = piece.split("*")
    if len(texts) > 1:
        return any(all(text in word.lower() for text in texts) for word in words)
    return any(piece in (word.lower(), word[2:].lower() if word[:1] == "-" else "") for word in words)


def broken_by(line: ParsedLine, rules: Sequence[KnownRule]) -> Broken | None:
    """The first rule for Bash that the line breaks, and a remark for the model. None if it breaks none."""
    hiding = list(line.hiding()) if rules else []
    for rule in rules:
        if rule.bash.denies(line):
            return rule, ""
        if line.runs_any:
            return rule, "It runs something that is known only when it runs, which may be that: write it out."
        problem = next((one for one, words, names in hiding if rule.bash.occurs_in(words, names)), "")
        if line.hides_any and rule.bash.is_named_in(line.everywhere):
            problem = line.hides_any
        if problem:
            problem = f"{problem[0].upper()}{problem[1:]}"
            return rule, f"{problem} in it cannot be judged, and it names that: write it plainly."
    return None


def why_not_allowed(line: ParsedLine, rules: Sequence[KnownRule], harmless: HarmlessCommands) -> str | None:
    """Tells the model why the rules for Bash do not allow the line. None if they allow all but what is harmless."""
    unknown = "a command that is known only when it runs" if line.runs_unknown else ""
    problem = next(iter((*line.not_understood, *line.evaluated)), line.runner or unknown)
    if problem:
        return f"{problem} in it cannot be judged"
    if line.sets_variables:
        return "it sets variables for the commands after it"
    needed = [one for one in line.commands if one.is_needed]
    is_moved = harmless.moves and any(one.name == "cd" and harmless.has(one) for one in needed)
    for one in needed:
        words = (*one.assignments, *one.words)
        if not (_is_allowed(words, rules, is_moved=is_moved) or harmless.has(one)):
            behind = (one.words for one in line.commands if one.words == words[-len(one.words) :] != words)
            inner = next((shown(one) for one in behind if _is_allowed(one, rules)), "")
            remark = f" (one allows `{inner}`, but not what `{words[0].known}` takes for it)" if inner else ""
            return f"no rule allows `{shown(words)}`{remark}"
    return None if needed else "there is no command in it"


def _is_allowed(words: Sequence[Word], rules: Sequence[KnownRule], *, is_moved: bool = False) -> bool:
    """`is_moved` says that the words may not be run in a root, where what a pattern names lies."""
    return any(rule.bash.allows(words) for rule in rules if not (is_moved and rule.bash.names_path))


def shown(words: Sequence[Word]) -> str:
    return " ".join("".join("..." if part is ANY else part for part in word.parts) for word in words)[:200]


def _joined(words: Sequence[Word]) -> list[Element]:
    return [element for word in words for element in (*word.elements(), WORD_END)]


def _wildcard(words: Sequence[str], *, is_open: bool, is_text: bool = False) -> Wildcard:
    elements: list[Element] = []
    for word in words:
        elements += [ANY if char == "*" else char for char in word]
        elements.append(WORD_END)
    if is_open or (words and words[-1].endswith("*")):
        elements.append(ANY)
    return Wildcard(elements, is_text=is_text)
