"""Lists all simple commands that a shell line runs, on which rules and paths are judged, and says which parts of the line
ralph cannot understand. The list also has the commands that other commands run, such as `make` in `timeout 5 make` and in
`sh -c 'make'`.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.permissions.patterns import Word, decoded_escapes, name_of, plain
from ralph.permissions.shell_syntax import (
    CALCULATION,
    INDIRECT,
    NESTING,
    Script,
    SimpleCommand,
)
from ralph.permissions.wrappers import commands_in_assignment, evaluates_values, inner_commands

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ralph.permissions.wrappers import InnerCommands

_MOST_LEVELS_OF_COMMANDS = 20
"""The maximum depth to which commands within commands, such as `sh -c`, are searched."""
_ANY_WORD = re.compile(r"[\w.+@%:-]+")
_MAY_MAKE_NAMES = re.compile(r"[*?\[{$`]|[!@+]\(")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[.*\])?\+?=", re.DOTALL)
# What the shell evaluates once more: values of variables in arithmetic and in subscripts, and of those with prompts and numbers.
_EVALUATES_VALUES = re.compile(
    r"\b(?:PS[0-4]|PROMPT_COMMAND|RANDOM|OPTIND|HISTCMD|SECONDS|LINENO)\b|\$\{[^{}]*@P\}"
)
# With it, assignments may stand anywhere among the words of later commands.
_SETS_KEYWORDS = re.compile(r"-[A-Za-z]*k[A-Za-z]*|keyword")
_OPTION = re.compile(r"(?<![^\s=,'\"({:])-[^\s'\",;|&)}]*")
# Commands that set variables by their names, and those that do so with an option.
_SETTERS = frozenset("read mapfile readarray getopts let declare typeset local".split())
_MAY_SET = frozenset("printf wait export readonly unset".split())
# Shells that may know no syntax of bash, and the syntax in which they find other commands than bash does.
_POSIX_SHELLS = frozenset("sh dash ash".split())
_OF_BASH = re.compile(r"\[\[|\(\(|\$['\"\[]|&>|\w\[(?![^]\s;&|(`\[]*\])")
_SILENT = frozenset(
    "[ [[ test grep egrep find xargs ls cp mv rm mkdir chmod tar head tail wc sort kill curl".split()
)
"""Commands whose options are given to no other one: they neither print nor keep them."""
_MOST_COMMANDS = 200
"""The maximum number of commands in a line in which the values of a variable are looked for."""
_MOST_COMPARED = 5_000
"""The maximum number of options of a line, times its unknown words, for which each option is compared with each word."""


@lru_cache(maxsize=1)
def parse_line(text: str) -> ParsedLine:
    """Parses a shell line. Of syntax that the parser does not know, `not_understood` says so, and no error is raised. The last
    result is kept, because all rules of a run and of a command file judge the same line.
    """
    return ParsedLine(text)


def _split(value: Word, *, is_one: bool) -> tuple[Word, ...] | None:
    """The words that a value of a variable becomes. None if they are not known."""
    if is_one or (value.known and not re.search(r"[\s*?\[]", value.known)):
        return None if name_of((value,)) is None else (value,)
    return (
        None
        if value.text is None or re.search(r"[*?\[]", value.text)
        else tuple(map(plain, value.text.split()))
    )


def _known_texts(words: Iterable[Word]) -> list[str]:
    return [text for word in words for text in (word.known, *word.choices)]


_LONG_OPTION = re.compile(r"(?<!\S)--[A-Za-z][\w-]*(?=[\s=]|\Z)")


def _words_anywhere(texts: Iterable[str], words: Iterable[Word]) -> Iterator[str]:
    """All words in the texts, without the quotes and operators around them."""
    for text in texts:
        text = re.sub(r"([<>](?:\\\n)*&(?:[ \t]|\\\n)*)-", r"\1 ", text)  # noqa: PLW2901 - `0<&-rm` closes a descriptor, and a word may follow
        without_quotes = re.sub(r"\\\n|\$(?=['\"])|[\"'\\]", "", text)
        without_escapes = re.sub(r"\\[abefnrtv]", " ", text)
        decoded = re.sub(r"\$?['\"]", "", decoded_escapes(text))
        for one in (text, without_quotes, without_escapes, decoded):
            yield from _ANY_WORD.findall(one)
    for word in words:
        yield from _ANY_WORD.findall(word.known)


def _with_assignments(command: SimpleCommand, words: Sequence[Word]) -> SimpleCommand:
    """A command that another one runs. Assignments before its name, as in `time x=1 make`, are not a part of its words."""
    at = next((at for at, word in enumerate(words) if not _ASSIGNMENT.match(word.known)), 0)
    return replace(command, words=tuple(words[at:]), assignments=(*command.assignments, *words[:at]))


class ParsedLine(Script):
    """A parsed shell line, with all texts in it that a shell in it runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.commands: list[SimpleCommand] = []
        """The commands of all texts, and those that another one runs by its words."""
        self.suspect = ""
        """A description of an ordinary command that may run other commands. Empty if there is none."""
        self.hides_any = ""
        """A description of a part that may run commands with other words than the line has. Empty if there is none."""
        self._suspects: dict[str, str] = {}
        """A description of a command that may run others, by its name if it may run itself."""
        self._data: list[Word] = []
        """The words of commands that are no names of commands in the list."""
        self.runner = ""
        """A description of a command that runs other commands, so that no pattern can allow the line. Empty if there
        is none."""
        self.runs_unknown = False
        """True if the line runs a command whose name is known only at run time, or may do so because it is not a valid
        shell."""
        self.runs_any = False
        """True if the line does so, and no description says what may be run."""
        self._tried: set[tuple[Word, ...]] = set()
        """The commands that variables name and that have been judged."""
        self._read_script(text, 0)
        words = self._words()
        self.has_glob = any(word.has_glob for word in words)
        self.everywhere = frozenset(_words_anywhere(self.texts, words))
        """All words of the line. Words inside quotes and substitutions are included."""
        self.runs_unknown |= self.runs_any

    def _words(self, silent: frozenset[str] = frozenset()) -> list[Word]:
        """All words of the line, without the options of the commands `silent`."""
        words = [*self.other_words, *self.heredocs, *(one.target for one in self.redirections)]
        for one in self.commands:
            words += one.assignments
            words += [word for word in one.words if one.name not in silent or word.known[:1] != "-"]
        return words

    @cached_property
    def options(self) -> frozenset[str] | None:
        """The options that the line names. The value of a variable may be one of them. None if there are too many to compare."""
        # A function of the line may have any name, and give its words to another command.
        silent = frozenset() if "a function" in self.not_understood else _SILENT
        words = self._words(silent)
        found = frozenset(_OPTION.findall("\n".join(_known_texts(words))))
        unknown = sum(word.text is None for word in words)
        return found if len(found) * unknown <= _MOST_COMPARED else None

    @property
    def given_texts(self) -> Sequence[Word]:
        """The here-documents, unless all go to commands that only copy them."""
        takers = (one.name for one in self.commands if one.has_heredoc)
        return () if all(name in ("cat", "tee") for name in takers) else self.heredocs

    @cached_property
    def evaluated(self) -> Sequence[str]:
        """A description of a text that the shell may evaluate, with what it names. Empty if there is none."""
        texts = (one.known for one in (*self._data, *self.other_words, *self.given_texts))
        is_found = self._evaluates() and any(re.search(r"\$\(|`", text) for text in texts)
        return ["a text with a substitution"] * is_found

    def hiding(self) -> Iterator[tuple[str, frozenset[str], frozenset[str]]]:
        """Descriptions of the parts that may run commands which are not in the list, each with all words that such commands have, and
        those that may be their names: the `--rm` of `docker run --rm` is none.
        """
        others = [*self.other_words, *self.heredocs, *(one.target for one in self.redirections)]
        texts = [*_known_texts([*self._data, *others])] if self._suspects else []
        data = frozenset(_words_anywhere(texts, ()))
        names = frozenset(_words_anywhere((_LONG_OPTION.sub(" ", text) for text in texts), ()))
        yield from ((problem, data | {name}, names | {name}) for name, problem in self._suspects.items())
        whole = [*self.lost[:1], *self.evaluated]
        if self.has_glob and "nullglob" in self.everywhere:
            whole.append("a file name pattern that may be no word at all")
        yield from ((problem, self.everywhere, self.everywhere) for problem in whole)

    def _read_script(self, text: str, level: int, *, is_inner: bool = False, shell: str = "") -> None:
        """Reads a text that a shell runs, with `level` commands around it. `is_inner`: no command in it needs a match of its own."""
        known, beside, lost = len(self.read_commands), len(self.other_words), len(self.lost)
        self.read(text)
        if shell in _POSIX_SHELLS and _OF_BASH.search(text):
            self.lost.append("syntax that `sh` and bash read differently")
        commands = self.read_commands[known:]
        self.not_understood += self.lost[lost:]
        self.runs_any |= len(self.lost) > lost and _MAY_MAKE_NAMES.search(text) is not None
        named = (word for one in commands for word in (*one.assignments, *one.words))
        assigned = [*self.other_words[beside:], *named]
        for command in commands:
            self._add(command, level, is_inner=is_inner)
        for one in map(commands_in_assignment, assigned if level < _MOST_LEVELS_OF_COMMANDS else ()):
            self.not_understood += filter(None, (one.not_understood,))
            self._suspect(one, "git")
            for script in one.scripts:
                self._read_script(script, level + 1, is_inner=True)

    def _add(self, command: SimpleCommand, level: int, *, is_inner: bool = False) -> None:
        """Adds a command, and those that it runs. `is_inner`: another command runs it."""
        if level > _MOST_LEVELS_OF_COMMANDS:
            self.lost.append(NESTING)
            self.not_understood.append(NESTING)
            self.runs_any = True
            return
        found = inner_commands(command.words, has_heredoc=command.has_heredoc, document=command.document)
        is_needed = not (is_inner or found.is_transparent)
        self.commands.append(replace(command, is_needed=is_needed))
        self.not_understood += filter(None, (found.not_understood,))
        if command.name == "set" and any(_SETS_KEYWORDS.fullmatch(word.known) for word in command.words):
            self.lost.append("`set -k`")
            self.not_understood.append("`set -k`")
        self.suspect = self.suspect or found.suspect
        self._suspect(found, "git" if command.name == "git" else "")
        named = () if command.name is not None else self._named_by_values(command.words)
        for words in named:
            if words not in self._tried:
                self._tried.add(words)
                self._add(replace(command, words=words), level + 1, is_inner=True)
        if found.runs_unknown:
            self.runs_unknown, self.runs_any = True, self.runs_any or not (found.suspect or named)
        first = [words[0] for words in found.commands if words]
        # What cannot be judged may have the name of another command for its own word.
        names = [one.text for one in first if not (found.suspect or _ASSIGNMENT.match(one.known))]
        inner = {*found.scripts, *names}
        self._data += [one for one in command.words[1:] if one.text is None or one.text not in inner]
        self._data += command.assignments
        if found.scripts or (found.commands and not (found.is_transparent or found.is_runner)):
            self.runner = self.runner or f"`{command.name}`, which runs other commands,"
        is_inner = is_inner or not found.is_transparent
        for words in found.commands:
            self._add(_with_assignments(command, words), level + 1, is_inner=is_inner)
        for script in found.scripts:
            self._read_script(script, level + 1, shell=(command.name or "").lower())

    def _named_by_values(self, words: Sequence[Word]) -> Sequence[tuple[Word, ...]]:
        """The words of a command that a variable names, with each value that the line gives it. Empty if there may be others."""
        name = words[0].variable if words else ""
        if not name or len(self.read_commands) > _MOST_COMMANDS:
            return ()
        values = [value for variable, value in self.loops if variable == name]
        others = (one for command in self.read_commands for one in (*command.words, *command.assignments))
        for word in (*self.other_words, *others):
            first = (word.parts[0] if word.parts else "") or ""
            if first.startswith(f"{name}="):
                values.append(Word((first.removeprefix(f"{name}="), *word.parts[1:])))
        # Whatever else may set a variable, or what splits values.
        may_be_set = re.compile(rf"\$\{{{name}:?=|IFS|\b{name}(?:\+=|\[)")
        is_set = any(
            one.name in _SETTERS
            or (one.name in _MAY_SET and any(word.known[:1] == "-" for word in one.words))
            for one in self.read_commands
        )
        found = [_split(value, is_one=words[0].is_one) for value in values]
        texts = (re.sub(r"[\\\"']", "", text) for text in self.texts)
        if not values or is_set or None in found or any(map(may_be_set.search, texts)):
            return ()
        # It may also have no value where it is used.
        without = [tuple(words[1:])] if words[1:] and not words[0].is_one else []
        return [*((*value, *words[1:]) for value in found if value is not None), *without]

    def _evaluates(self) -> bool:
        """Whether the shell may evaluate the value of a variable, and run what `$(...)` in it names."""
        return (
            not {INDIRECT, CALCULATION}.isdisjoint(self.not_understood)
            or any(evaluates_values(one.words) for one in self.commands)
            or any(map(_EVALUATES_VALUES.search, self.texts))
        )

    def _suspect(self, found: InnerCommands, name: str) -> None:
        if found.by_name:
            self.hides_any = found.not_understood
        if found.suspect:
            self._suspects.setdefault(name, found.suspect)
