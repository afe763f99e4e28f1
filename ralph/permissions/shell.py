"""Parses a shell line once, into the list of all simple commands that it runs, on which rules and paths are judged. Says
which parts of it ralph cannot understand.

A command may be anywhere in the syntax tree: inside a substitution or a function, or after the beginning of a here-document.
The list also has the commands that other commands run, such as `make` in `timeout 5 make` and in `sh -c 'make'`. tree-sitter
is imported only when a rule needs a parsed line.
"""

from __future__ import annotations

import re
import sys
from functools import cache, cached_property, lru_cache
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.permissions.patterns import ANY
from ralph.permissions.shell_words import UNKNOWN, Word, decoded_escapes, name_of, plain, word_of
from ralph.permissions.wrappers import commands_in_assignment, evaluates_values, inner_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ralph.permissions.wrappers import InnerCommands

_MOST_LEVELS = 200
"""The maximum depth of the syntax tree that is searched. Real commands are much less deep."""
_MOST_LEVELS_OF_COMMANDS = 20
"""The maximum depth to which commands within commands, such as `sh -c`, are searched."""
_MOST_BACKQUOTED = 200
"""The maximum number of commands in backquotes that are read apart, each of which is parsed once more."""
_LONGEST_BYTES = 131_072
# bash(1), Command Substitution: in backquotes a backslash escapes these; within double quotes the quotes escape first.
_IN_BACKQUOTES = re.compile(r"\\([$`\\])")
_IN_QUOTED_BACKQUOTES = re.compile(r"\\([$`\\\"])")
_BACKQUOTES = re.compile(r"\\.|`((?:\\.|[^`\\])*)`", re.DOTALL)
_ANY_WORD = re.compile(r"[\w.+@%:-]+")
# A here-document with a quoted word, between double quotes: nothing in it is expanded, so it is a text.
_CONSTANT = re.compile(
    rb"\$\([ \t\n]*cat[ \t]*<<[ \t]*(['\"])(\w+)\1[ \t]*\n((?:(?!\2\n)[^\n]*\n)*)\2\n[ \t\n]*\)"
)
# The bash 3.2 of macOS looks for the end of `$(...)` in the text of a here-document too.
_ENDS_EARLY = re.compile(rb"[()'\"`\\#$]" if sys.platform == "darwin" else rb"(?!)")
_SUBSTITUTION = re.compile(rb"([$<>]\(|`)")
_IN_DOCUMENT = re.compile(rb"(?<!\\)(?:\\\\)*(\$\()")
_MAY_MAKE_NAMES = re.compile(r"[*?\[{$`]")
_WITH_REGEX = frozenset(["binary_expression", "expansion"])
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[.*\])?\+?=", re.DOTALL)
# Variables that a loop or a redirection sets and that decide which program a name means, such as PATH, are in upper case.
_LOOP_VARIABLE = re.compile(r"(?!.*_proxy$)[a-z_][a-z0-9_]*")
# bash(1), Arithmetic Evaluation: the value of a variable in a subscript or an offset is evaluated, with its substitutions.
_ARITHMETIC = re.compile(
    rb"\(\(|\$\{[!#]?\w+\[(?!(?:\d+|[@*])\])|\$\{[\w@*]+(?:\[[^]]*\])?:(?![-=+?]|\s*-?\d+(?::\s*-?\d+)?\}$)"
)

# Not "no valid shell": the grammar lacks some of what bash takes, such as two here-documents in a line and `exec 3<>f`.
_UNKNOWN_SYNTAX = "syntax that ralph does not understand"
_COMPARISON = "a comparison outside `[[`"
_INDIRECT, _CALCULATION = "an indirect expansion", "arithmetic"
# What the shell evaluates once more: values of variables in arithmetic and in subscripts, and of those with prompts.
_EVALUATES_VALUES = re.compile(r"\bPS[0-4]\b|\bPROMPT_COMMAND\b|\$\{[^}]*@P\}")
_OPTION = re.compile(r"(?<![^\s=,'\"({:])-[^\s'\",;|&)}]*")
_SETTERS = frozenset("read mapfile readarray getopts printf let wait".split())
_SILENT = frozenset(
    "[ [[ test grep egrep find xargs ls cp mv rm mkdir chmod tar head tail wc sort kill curl".split()
)
"""Commands whose options are given to no other one: they neither print nor keep them."""
_MOST_COMMANDS = 200
"""The maximum number of commands in a line in which the values of a variable are looked for."""
_MOST_COMPARED = 5_000
"""The maximum number of options of a line, times its unknown words, for which each option is compared with each word."""
MISREAD = frozenset([_UNKNOWN_SYNTAX, _COMPARISON])
"""Descriptions of parts in which even the redirections are not known."""

# Nodes whose effect on what follows, or whose content, is not known before the command runs.
_NOT_UNDERSTOOD = {
    "command_substitution": "a substitution",
    "process_substitution": "a substitution",
    "function_definition": "a function",
    "arithmetic_expansion": _CALCULATION,
    "c_style_for_statement": _CALCULATION,
    "ERROR": _UNKNOWN_SYNTAX,
}
# Inside of these, bash reads quotes in its own way, or the text is expanded once more.
_AROUND = frozenset(
    "expansion command_substitution process_substitution arithmetic_expansion heredoc_body".split()
)
_REDIRECTIONS = frozenset(["file_redirect", "herestring_redirect", "heredoc_redirect"])
# Bash reads these in one line. The parser sometimes reads on in the next one, behind `=~`, `$` or an escaped line end.
_OF_ONE_LINE = frozenset(
    """
    command redirected_statement file_redirect herestring_redirect heredoc_redirect declaration_command unset_command
    variable_assignment simple_expansion concatenation word
    """.split()
)
_MAY_BE_MISREAD = _OF_ONE_LINE | {"comment", "compound_statement"}
_ONE_WORD, _ONE_LINE = (
    re.compile(rb"(?:\\.|[^\s\\])*", re.DOTALL),
    re.compile(rb"(?:\\.|[^\n\\])*", re.DOTALL),
)
_ONE_WORDS = frozenset(["concatenation", "simple_expansion", "variable_assignment"])
# The parser takes the end of a word such as `\ #x` for a comment. These are the last two bytes before a real one.
_BEFORE_COMMENT = re.compile(rb"(?:[^\\]?[\s;&|()<>`])?")
_ESCAPED = re.compile(rb"(?:\\.)+", re.DOTALL)
_NUMBER = re.compile(rb"(?:^|[\s|&;({!])\d+$")
_QUOTING = frozenset(["string", "translated_string"])
_DECLARATIONS = frozenset(["declaration_command", "unset_command", "test_command"])
_WORDS = frozenset(
    """
    word number string raw_string ansi_c_string translated_string concatenation simple_expansion expansion
    command_substitution arithmetic_expansion brace_expression process_substitution extglob_pattern regex
    variable_name special_variable_name array
    """.split()
)


class SimpleCommand(Struct, frozen=True):
    words: tuple[Word, ...]
    assignments: tuple[Word, ...] = ()
    """The assignments before the command, such as `PATH=.`."""
    has_heredoc: bool = False
    document: str | None = None
    """The text of the here-document that the command reads. None if there is none, or if it is known only at run time."""
    is_needed: bool = False
    """True if the command must match an allowed pattern if only allowed commands may run. A command that another one
    runs needs no match of its own, unless the other one changes nothing about it, as `timeout` does.
    """

    @property
    def name(self) -> str | None:
        """The name without its directories. None if it is known only at run time."""
        return name_of(self.words)


class Redirection(Struct, frozen=True):
    operator: str
    target: Word

    @property
    def is_harmless(self) -> bool:
        """Whether the redirection only duplicates or closes a file descriptor, or leads to /dev/null."""
        text = self.target.text
        is_copy = self.operator in (">&", "<&") and re.fullmatch(r"[0-9]+-?|-", text or "") is not None
        return is_copy or text == "/dev/null"

    @property
    def writes(self) -> bool:
        return self.operator not in ("<", "<&")


@lru_cache(maxsize=1)
def parse_line(text: str) -> ParsedLine:
    """Parses a shell line. Of syntax that the parser does not know, `not_understood` says so, and no error is raised. The last
    result is kept, because all rules of a run and of a command file judge the same line.
    """
    return ParsedLine(text)


def _problems_of(text: str, *, has_error: bool) -> Iterator[str]:
    """The parts of a text that ralph cannot understand although the parser may accept them."""
    if has_error:
        yield _UNKNOWN_SYNTAX
    if re.search(r"<<-?\s*[\"'][^\"'\n]*\n", text):
        yield "a here-document"
    if re.search(r"\{[A-Za-z_]\w*(?:\[[^]]*\])?\}[<>]", text):
        yield "a redirection that sets a variable"
    if re.search(r"\S\\\n\S", text):
        yield "a word that continues on the next line"
    if re.search(r"[\0\r\x0b\x0c]", text) or "\udc80" <= max(text, default="") <= "\udfff":
        yield "a control character"


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


def _words_anywhere(texts: Iterable[str], words: Iterable[Word]) -> Iterator[str]:
    """All words in the texts, without the quotes and operators around them."""
    for text in texts:
        text = re.sub(r"(?<=[<>]&)-", " ", text)  # noqa: PLW2901 - `0<&-rm` closes a descriptor, and a word may follow
        without_quotes = re.sub(r"\\\n|\$(?=['\"])|[\"'\\]", "", text)
        without_escapes = re.sub(r"\\[abefnrtv]", " ", text)
        decoded = re.sub(r"\$?['\"]", "", decoded_escapes(text))
        for one in (text, without_quotes, without_escapes, decoded):
            yield from _ANY_WORD.findall(one)
    for word in words:
        yield from _ANY_WORD.findall(word.known)


@cache
def _parser() -> Any:
    from tree_sitter import Language, Parser  # noqa: PLC0415 - only a pattern for Bash needs it
    from tree_sitter_bash import language  # noqa: PLC0415 - only a pattern for Bash needs it

    return Parser(Language(language()))


def _closes(redirect: Any) -> bool:
    """Whether a redirection closes a descriptor, as `>&-` does. It has no target: a word behind it belongs to the command."""
    return any(child.type.endswith("&-") for child in redirect.children)


def _ends_where_it_says(document: Any, source: bytes) -> bool:
    """Whether a here-document ends at the first line that is its word."""
    parts = {one.type: source[one.start_byte : one.end_byte] for one in document.children}
    ends = [one.end_byte for one in document.children if one.type == "heredoc_end"]
    word = re.sub(rb"[\\'\"]", b"", parts.get("heredoc_start", b""))
    is_begun = not {b"<<", b"<<-"}.isdisjoint(parts.values())
    is_ended = parts.get("heredoc_end") == word and all(source[end : end + 1] in (b"", b"\n") for end in ends)
    lines = parts.get("heredoc_body", b"").split(b"\n")
    return is_begun and is_ended and all(line.lstrip(b"\t") != word for line in lines)


def _literal_document(command: Any, source: bytes) -> str | None:
    """The text of the here-document that a command reads, if nothing in it is expanded. None if it is not known for sure. Of two
    that begin in one line, the parser understands neither.
    """
    if b"<<" not in source or any(one.type in _REDIRECTIONS for one in command.children):
        return None
    last = command
    while last.parent.type in ("list", "pipeline") and last.parent.named_children[-1] == last:
        last = last.parent
    statement = around = last.parent
    if statement.type != "redirected_statement" or statement.child_by_field_name("body") != last:
        return None
    while around.parent is not None:
        around = around.parent
        if around.type in _AROUND:
            return None
    redirects = [one for one in statement.children if one.type in _REDIRECTIONS]
    document = next((one for one in redirects if one.type == "heredoc_redirect"), None)
    if document is None or around.has_error:
        return None
    parts = {one.type: source[one.start_byte : one.end_byte] for one in document.children}
    others = [one for one in (*redirects, *document.children) if one.type in _REDIRECTIONS]
    is_only = all(
        source[one.start_byte : one.end_byte].lstrip(b"0123456789")[:1] in b"&>"
        for one in others
        if one != document
    )
    body = parts.get("heredoc_body", b"")
    is_literal = re.search(rb"[\\'\"]", parts.get("heredoc_start", b"")) or not re.search(rb"[$`\\]", body)
    if "file_descriptor" in parts or not (is_only and is_literal and _ends_where_it_says(document, source)):
        return None
    body = re.sub(rb"(?m)^\t+", b"", body) if "<<-" in parts else body
    return body.decode("utf-8", "surrogateescape")


def _constants(root: Any) -> dict[tuple[int, int], bytes]:
    """The places and texts of the substitutions `"$(cat <<'WORD' ...)"` in a syntax tree. Empty if there is another
    here-document: the shell may take other lines for the text.
    """
    found, documents, nodes = {}, 0, [] if root.has_error else [(root, False)]
    while nodes:
        node, is_inside = nodes.pop()
        constant = None
        if node.type == "command_substitution" and node.parent.type == "string" and not is_inside:
            constant = _CONSTANT.fullmatch(node.text)
        if constant is not None and not _ENDS_EARLY.search(constant[3]):
            found[node.start_byte, node.end_byte] = constant[3].rstrip(b"\n")
            continue
        documents += node.type == "heredoc_redirect"
        is_inside |= node.type in _AROUND
        nodes += [(one, is_inside) for one in node.children]
    return {} if documents else found


def _with_assignments(command: SimpleCommand, words: Sequence[Word]) -> SimpleCommand:
    """A command that another one runs. Assignments before its name, as in `time x=1 make`, are not a part of its words."""
    at = next((at for at, word in enumerate(words) if not _ASSIGNMENT.match(word.known)), 0)
    return replace(command, words=tuple(words[at:]), assignments=(*command.assignments, *words[:at]))


def _last_command(node: Any) -> Any:
    if node is None or node.type == "command" or node.type in _DECLARATIONS:
        return node
    found = map(_last_command, reversed(node.named_children))
    return next((one for one in found if one is not None), None)


class ParsedLine:
    """A parsed shell line, with all texts in it that a shell in it runs."""

    def __init__(self, text: str) -> None:
        self.commands: list[SimpleCommand] = []
        self.redirections: list[Redirection] = []
        self.other_words: list[Word] = []
        """Words that are not part of a simple command, such as the values in a loop or an assignment."""
        self.texts: list[str] = []
        """The line itself, and each text that the line runs as a shell command."""
        self.not_understood: list[str] = []
        """Descriptions of the parts that cannot be understood."""
        self.suspect = ""
        """A description of an ordinary command that may run other commands. Empty if there is none."""
        self.hides_any = ""
        """A description of a part that may run commands with other words than the line has. Empty if there is none."""
        self._hiding: list[tuple[str, str]] = []
        """Descriptions of the parts in which the parser may not find all substitutions, with their texts."""
        self._lost: list[str] = []
        """Descriptions of the parts that the parser may have misread, so that any word may be a command."""
        self._suspects: list[tuple[str, str]] = []
        """Descriptions of the commands that may run others, each with the command's name if it may run itself."""
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
        self.sets_variables = False
        """True if the line sets variables for later commands."""
        self.has_loop = False
        self._heredocs: list[Word] = []
        self._backquoted: list[str] = []
        """The commands in backquotes of the text that is read now, as the shell reads them."""
        self._seen: set[str] = set()
        """The commands in backquotes that have been read."""
        self._read_commands: list[SimpleCommand] = []
        """The commands of all texts so far, without those that another one runs by its words."""
        self._in_loops: list[tuple[str, Word]] = []
        """The variables of loops, each with one of its values."""
        self._source = b""
        self._found: list[SimpleCommand] = []
        self._behind: dict[tuple[int, int], list[Word]] = {}
        """The words that belong to a command although they come after a redirection. The key is the command's
        position in the text."""
        self._reads = self._readers()
        self._read_script(text, 0)
        words = self._words()
        self.has_glob = any(word.has_glob for word in words)
        self.everywhere = frozenset(_words_anywhere(self.texts, words))
        """All words of the line. Words inside quotes and substitutions are included."""
        self.runs_unknown |= self.runs_any

    def _readers(self) -> Mapping[str, Callable[[Any], None]]:
        """The method that reads each type of node of the syntax tree."""
        return {
            "command": self._read_command,
            "redirected_statement": self._find_words_behind,
            "file_redirect": self._read_redirection,
            "heredoc_body": self._read_heredoc,
            "expansion": self._read_expansion,
            "command_substitution": self._read_backquotes,
            "variable_assignment": self._read_assignment,
            **dict.fromkeys(("array", "case_statement", "herestring_redirect"), self._read_words),
            **dict.fromkeys(("for_statement", "while_statement", "c_style_for_statement"), self._read_loop),
            **dict.fromkeys(_DECLARATIONS, self._read_declaration),
        }

    def _words(self, silent: frozenset[str] = frozenset()) -> list[Word]:
        """All words of the line, without the options of the commands `silent`."""
        words = [*self.other_words, *self._heredocs, *(one.target for one in self.redirections)]
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
        return () if all(name in ("cat", "tee") for name in takers) else self._heredocs

    def hiding(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Descriptions of the parts that may run commands which are not in the list, each with all words that such commands have."""
        others = [*self.other_words, *self._heredocs, *(one.target for one in self.redirections)]
        data = frozenset(_words_anywhere(_known_texts([*self._data, *others]), ()) if self._suspects else ())
        yield from ((problem, data | {name}) for problem, name in self._suspects)
        yield from ((problem, frozenset(_words_anywhere((text,), ()))) for problem, text in self._hiding)
        yield from ((problem, self.everywhere) for problem in self._lost)
        texts = (one.known for one in (*self._data, *self.other_words))
        if self._evaluates() and any(re.search(r"\$\(|`", text) for text in texts):
            yield "a text with a substitution", self.everywhere

    def _read_script(self, text: str, level: int, *, is_inner: bool = False) -> None:
        """Reads a text that a shell runs, with `level` commands around it. `is_inner`: no command in it needs a match of its own."""
        self.texts.append(text)
        self._source, self._found, self._behind = text.encode("utf-8", "surrogateescape"), [], {}
        self._backquoted = []
        known = len(self.other_words)
        if len(self._source) > _LONGEST_BYTES:
            self._lose("its length")
            return
        root = _parser().parse(self._source).root_node
        constants = _constants(root) if b"<<" in self._source else {}
        if constants:
            # As they are written between double quotes.
            for (begin, end), constant in sorted(constants.items(), reverse=True):
                written = re.sub(rb'([\\$"`])', rb"\\\1", constant)
                self._source = self._source[:begin] + written + self._source[end:]
            self._found += [SimpleCommand((plain("cat"),), has_heredoc=True)] * len(constants)
            root, text = _parser().parse(self._source).root_node, self._source.decode("utf-8", "replace")
        self._read(root, 0)
        self._lose(*_problems_of(text, has_error=root.has_error))
        self.runs_any |= root.has_error and _MAY_MAKE_NAMES.search(text) is not None
        backquoted = self._backquoted
        self._read_commands += self._found
        assigned = [
            *self.other_words[known:],
            *(one for command in self._found for one in (*command.assignments, *command.words)),
        ]
        for command in self._found:
            self._add(command, level, is_inner=is_inner)
        for named in map(commands_in_assignment, assigned if level < _MOST_LEVELS_OF_COMMANDS else ()):
            self.not_understood += filter(None, (named.not_understood,))
            self._suspect(named, "git")
            for script in named.scripts:
                self._read_script(script, level + 1, is_inner=True)
        for script in dict.fromkeys(backquoted):
            if script in self._seen:  # what is nested is found more than once
                continue
            if level >= _MOST_LEVELS_OF_COMMANDS or len(self._seen) >= _MOST_BACKQUOTED:
                self._lose("its nesting")
                self.runs_any = True
                break
            self._seen.add(script)
            self._read_script(script, level + 1)

    def _add(self, command: SimpleCommand, level: int, *, is_inner: bool = False) -> None:
        """Adds a command, and those that it runs. `is_inner`: another command runs it."""
        if level > _MOST_LEVELS_OF_COMMANDS:
            self._lose("its nesting")
            self.runs_any = True
            return
        found = inner_commands(command.words, has_heredoc=command.has_heredoc, document=command.document)
        is_needed = not (is_inner or found.is_transparent)
        self.commands.append(replace(command, is_needed=is_needed))
        self.not_understood += filter(None, (found.not_understood,))
        self.suspect = self.suspect or found.suspect
        self._suspect(found, "git" if command.name == "git" else "")
        named = () if command.name is not None else self._named_by_values(command.words)
        for words in named:
            self._add(replace(command, words=words), level + 1, is_inner=True)
        if found.runs_unknown:
            self.runs_unknown, self.runs_any = True, self.runs_any or not (found.suspect or named)
        inner = {*found.scripts, *(words[0].text for words in found.commands if words)}
        self._data += [one for one in command.words[1:] if one.text is None or one.text not in inner]
        self._data += command.assignments
        if found.scripts or (found.commands and not (found.is_transparent or found.is_runner)):
            self.runner = self.runner or f"`{command.name}`, which runs other commands,"
        is_inner = is_inner or not found.is_transparent
        for words in found.commands:
            self._add(_with_assignments(command, words), level + 1, is_inner=is_inner)
        for script in found.scripts:
            self._read_script(script, level + 1)

    def _named_by_values(self, words: Sequence[Word]) -> Sequence[tuple[Word, ...]]:
        """The words of a command that a variable names, with each value that the line gives it. Empty if there may be others."""
        name = words[0].variable if words else ""
        may_be_set = rf"\$\{{{name}:?=|\bIFS=|\b(?:declare|local|typeset)\s+-\w*n"
        is_long = len(self._read_commands) > _MOST_COMMANDS
        if (
            not name
            or is_long
            or any(re.search(may_be_set, text) for text in self.texts)
            or self._is_read(name)
        ):
            return ()
        values = [value for variable, value in self._in_loops if variable == name]
        others = (one for command in self._read_commands for one in (*command.words, *command.assignments))
        for word in (*self.other_words, *others):
            first = word.parts[0] if word.parts else ""
            if first and re.match(rf"{name}(?:\+=|\[)", first):
                return ()
            if first and first.startswith(f"{name}="):
                values.append(Word((first.removeprefix(f"{name}="), *word.parts[1:])))
        found = [_split(value, is_one=words[0].is_one) for value in values]
        named = [(*value, *words[1:]) for value in found if value is not None]
        return named if len(named) == len(values) else ()

    def _is_read(self, name: str) -> bool:
        """Whether a command may give a variable a value that it reads or makes."""
        return any(
            command.name in _SETTERS
            and (command.name != "printf" or any(word.known.startswith("-v") for word in command.words))
            and any(word.text in (name, None) for word in command.words[1:])
            for command in self._read_commands
        )

    def _read(self, node: Any, level: int) -> None:
        if level > _MOST_LEVELS:
            self._lose("its nesting")
            return
        self._note(node)
        reads = self._reads.get(node.type)
        if reads is not None:
            reads(node)
        for child in node.children:
            self._read(child, level + 1)

    def _read_heredoc(self, node: Any) -> None:
        self._heredocs.append(self._whole(node))
        starts = [one for one in node.parent.children if one.type == "heredoc_start"]
        is_quoted = bool(starts) and re.search(rb"[\"'\\]", self._bytes(starts[0])) is not None
        if not is_quoted and re.search(rb"\$\(|`", self._bytes(node)):
            self._hides_in(node, "a substitution")
            text = self._bytes(node).decode("utf-8", "surrogateescape")
            found = (one[1] for one in _BACKQUOTES.finditer(text))  # the parser finds none here
            self._backquoted += [_IN_BACKQUOTES.sub(r"\1", one) for one in found if one]

    def _read_backquotes(self, node: Any) -> None:
        """Notes a command in backquotes. The parser takes an escaped quotation mark in it for a letter, but the shell removes the
        backslash first. The parser's reading is judged too.
        """
        raw = self._bytes(node)
        if not (raw.startswith(b"`") and raw.endswith(b"`") and b"\\" in raw):
            return
        inside = raw[1:-1].decode("utf-8", "surrogateescape")
        around = node.parent
        while around is not None and around.type not in (*_QUOTING, "command_substitution"):
            around = around.parent
        is_quoted = around is not None and around.type in _QUOTING
        self._backquoted.append((_IN_QUOTED_BACKQUOTES if is_quoted else _IN_BACKQUOTES).sub(r"\1", inside))

    def _read_assignment(self, node: Any) -> None:
        if node.parent.type != "command":
            self.sets_variables = self.sets_variables or node.parent.type not in _DECLARATIONS
            self.other_words.append(self._assignment(node))

    def _read_loop(self, node: Any) -> None:
        self.has_loop = True
        variables = [one for one in node.named_children if one.type == "variable_name"]
        names = [self._bytes(one).decode("utf-8", "replace") for one in variables]
        self.sets_variables |= not all(map(_LOOP_VARIABLE.fullmatch, names))
        known = len(self.other_words)
        self._read_words(node)
        self._in_loops += product(names, self.other_words[known:])

    def _read_words(self, node: Any) -> None:
        self.other_words += [word_of(one, self._source) for one in node.named_children if one.type in _WORDS]

    def _note(self, node: Any) -> None:
        if node.type in _NOT_UNDERSTOOD:
            self.not_understood.append(_NOT_UNDERSTOOD[node.type])
            if _NOT_UNDERSTOOD[node.type] == _CALCULATION and _SUBSTITUTION.search(self._bytes(node)[2:]):
                self._hides_in(node, _CALCULATION)
        elif node.type == "regex" and node.parent.type not in _WITH_REGEX:
            # Behind `=~` or `==`, the parser takes the rest of a line for one, up to `]]`, whatever is in front.
            self._lose(_COMPARISON)
            self.runs_any |= _MAY_MAKE_NAMES.search(self._bytes(node).decode("utf-8", "replace")) is not None
        elif node.type in ("regex", "extglob_pattern") and _SUBSTITUTION.search(self._bytes(node)):
            self._hides_in(node, "a substitution")
        elif node.is_missing or (node.type in _MAY_BE_MISREAD and self._is_misread(node)):
            self._lose(_UNKNOWN_SYNTAX)
        elif node.type == "expansion" and re.search(rb"@|^\$\{!", self._bytes(node)):
            self.not_understood.append(_INDIRECT)
        elif node.type in ("expansion", "compound_statement") and _ARITHMETIC.match(self._bytes(node)):
            self.not_understood.append(_CALCULATION)

    def _evaluates(self) -> bool:
        """Whether the shell may evaluate the value of a variable, and run what `$(...)` in it names."""
        return (
            not {_INDIRECT, _CALCULATION}.isdisjoint(self.not_understood)
            or any(evaluates_values(one.words) for one in self.commands)
            or any(map(_EVALUATES_VALUES.search, self.texts))
        )

    def _suspect(self, found: InnerCommands, name: str) -> None:
        if found.by_name:
            self.hides_any = found.not_understood
        problem = found.suspect or (found.not_understood if found.hides else "")
        if problem:
            self._suspects.append((problem, name))

    def _lose(self, *problems: str) -> None:
        self.not_understood += problems
        self._lost += problems

    def _hides_in(self, node: Any, problem: str) -> None:
        """Notes a part in which the parser may not find all substitutions."""
        self.not_understood.append(problem)
        raw, nodes, found = self._bytes(node), [node], set()
        while nodes:
            one = nodes.pop()
            if one.type in ("command_substitution", "process_substitution", "arithmetic_expansion"):
                found.add(one.start_byte - node.start_byte)
            nodes += one.children
        begins = _IN_DOCUMENT if node.type == "heredoc_body" else _SUBSTITUTION
        if any(one.start(1) not in found for one in begins.finditer(raw)):
            self._hiding.append((problem, raw.decode("utf-8", "replace")))

    def _is_misread(self, node: Any) -> bool:
        """Whether the parser has read two lines as one, one word as two, or a word as a comment."""
        begin = node.start_byte
        if node.type == "compound_statement":  # of `{rm,x}`, it takes the brace for the beginning of a list
            return re.match(rb"\{\S", self._source[begin : begin + 2]) is not None
        if node.type == "comment":
            return _BEFORE_COMMENT.fullmatch(self._source[max(begin - 2, 0) : begin]) is None
        for before, after in pairwise(node.children):
            gap = self._source[before.end_byte : after.start_byte].replace(b"\\\n", b"")
            # Of `0<&-`, the parser takes the number for a word.
            is_number = (
                node.type == "redirected_statement" and not gap and _NUMBER.search(self._bytes(before))
            )
            is_one_word = node.type in _ONE_WORDS and gap.strip() != gap
            ends_line = b"\n" in gap and {before.type, after.type}.isdisjoint(("heredoc_body", "heredoc_end"))
            # Of `>$a\b rm`, it takes `$a` for the target, and of `>\  rm`, `rm`.
            is_joined = not gap or b"\\" in gap
            has_target = before.type in _REDIRECTIONS or (
                node.type in _REDIRECTIONS and before.type in _WORDS
            )
            is_cut = is_joined and (
                before.type == "variable_assignment"
                or (has_target and (after.type in _WORDS or after.type == "command_name"))
            )
            # `_read_command` joins the words of a command around it.
            is_escaped = b"\\" in gap and not (node.type == "command" and _ESCAPED.fullmatch(gap))
            if ends_line or is_one_word or is_number or is_cut or is_escaped:
                return True
        if node.type == "word":
            is_alone = node.parent.type in (*_OF_ONE_LINE, "command_name")
            return re.fullmatch(_ONE_WORD if is_alone else _ONE_LINE, self._bytes(node)) is None
        return node.type == "heredoc_redirect" and not _ends_where_it_says(node, self._source)

    def _read_expansion(self, node: Any) -> None:
        """Reads an expansion such as `${x:-word}`. Searches its text, because the parser does not find everything in the `word`."""
        raw = self._bytes(node)
        if _SUBSTITUTION.search(raw):
            self._hides_in(node, "a substitution")
        self.sets_variables |= re.match(rb"\$\{\w+(?:\[[^]]*\])?:?=", raw) is not None
        word = re.search(r":?[-=+?](.*)\}$", raw.decode("utf-8", "replace"), re.DOTALL)
        if word:
            self.other_words.append(plain(re.sub(r"[\"'\\]", "", word[1])))

    def _find_words_behind(self, node: Any) -> None:
        """Finds words of a command behind a redirection, such as `push` in `git >x push`. The parser takes them for more targets,
        and they belong to the last command before the redirection.
        """
        words = []
        for redirect in node.children_by_field_name("redirect"):
            if redirect.type == "file_redirect":
                found = [one for one in redirect.children_by_field_name("destination") if one.is_named]
                words += found[0 if _closes(redirect) else 1 :]
            else:
                words += redirect.children_by_field_name("argument")
        if not words:
            return
        read = [word_of(one, self._source) for one in words]
        last = _last_command(node.child_by_field_name("body"))
        if last is None:
            self._lose("a word behind a redirection")
            self._found.append(SimpleCommand(tuple(read)))
        else:
            self._behind.setdefault((last.start_byte, last.end_byte), []).extend(read)

    def _read_command(self, node: Any) -> None:
        words, assignments, end = [], [], -1
        for child in node.children:
            if child.type == "variable_assignment":
                assignments.append(self._assignment(child))
            elif not child.is_named:  # such as `==` and `$`
                words.append(self._whole(child))
            elif child.type == "command_name" or child.type in _WORDS:
                words.append(word_of(child, self._source))
            elif child.type == "subshell" and [word.text for word in words] == ["time"]:
                continue  # it is read as well, and is no argument: bash takes one behind no other word
            elif child.type not in (*_REDIRECTIONS, "comment"):
                words.append(UNKNOWN)
            else:
                continue
            gap = self._source[end : child.start_byte].replace(b"\\\n", b"")
            # The parser has read one word, such as `$a/$b.c` or `'a'\ 'b'`, as two.
            if end >= 0 and (not gap or b"\\" in gap):
                words[-2:] = [Word((ANY, *(part for word in words[-2:] for part in word.parts)))]
            end = child.end_byte
        words += self._behind.get((node.start_byte, node.end_byte), [])
        beside = node.parent.children if node.parent.type == "redirected_statement" else ()
        kinds = {one.type for one in (*node.children, *beside)}
        has_heredoc = not kinds.isdisjoint(("heredoc_redirect", "herestring_redirect"))
        document = _literal_document(node, self._source)
        self._found.append(SimpleCommand(tuple(words), tuple(assignments), has_heredoc, document))

    def _read_declaration(self, node: Any) -> None:
        first = node.children[0]
        name = self._bytes(first).decode("utf-8", "replace")
        rest = []
        for child in node.children[1:]:
            if child.type == "variable_assignment":
                rest.append(self._assignment(child))
            else:
                rest.append(word_of(child, self._source) if child.type in _WORDS else self._whole(child))
        rest += self._behind.get((node.start_byte, node.end_byte), [])
        self._found.append(SimpleCommand((plain(name), *rest)))

    def _read_redirection(self, node: Any) -> None:
        operators = [child.type for child in node.children if not child.is_named]
        targets = [child for child in node.children_by_field_name("destination") if child.is_named]
        operator = operators[0] if operators else "?"
        if _closes(node):
            return
        if not targets:
            self._lose("a redirection without a target")
        for target in targets[:1]:  # the others are words of the command, see `_find_words_behind`
            self.redirections.append(Redirection(operator, word_of(target, self._source)))

    def _assignment(self, node: Any) -> Word:
        value = node.child_by_field_name("value")
        raw = self._bytes(node).decode("utf-8", "replace")
        name = raw.partition("=")[0]
        if value is None:
            return plain(raw)
        word = word_of(value, self._source)
        return Word((f"{name}=", *word.parts), has_glob=word.has_glob)

    def _whole(self, node: Any) -> Word:
        return plain(self._bytes(node).decode("utf-8", "replace"))

    def _bytes(self, node: Any) -> bytes:
        found: bytes = self._source[node.start_byte : node.end_byte]
        return found
