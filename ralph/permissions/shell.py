"""Parses a shell command into its simple commands and redirections, and says which part of it ralph cannot
understand.

The parser searches the whole syntax tree. A command may be anywhere in it: inside a substitution or a function, or
after the beginning of a here-document. tree-sitter is imported only when a rule needs a parsed command.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.permissions.shell_words import UNKNOWN, Word, plain, word_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_MOST_LEVELS = 200
"""The maximum depth of the syntax tree that is searched. Real commands are much less deep."""
_LONGEST_BYTES = 131_072

# Nodes whose effect on what follows, or whose content, is not known before the command runs.
_NOT_UNDERSTOOD = {
    "command_substitution": "a substitution",
    "process_substitution": "a substitution",
    "function_definition": "a function",
    "arithmetic_expansion": "arithmetic",
    "c_style_for_statement": "arithmetic",
    "ERROR": "something that is no valid shell",
}
_DECLARATIONS = frozenset({"declaration_command", "unset_command", "test_command"})
_WORDS = frozenset(
    {
        *("word", "number", "string", "raw_string", "ansi_c_string", "translated_string", "concatenation"),
        *(
            "simple_expansion",
            "expansion",
            "command_substitution",
            "arithmetic_expansion",
            "brace_expression",
        ),
        *(
            "process_substitution",
            "extglob_pattern",
            "regex",
            "variable_name",
            "special_variable_name",
            "array",
        ),
    }
)


class SimpleCommand(Struct, frozen=True):
    words: tuple[Word, ...]
    assignments: tuple[Word, ...] = ()
    """The assignments before the command, such as `PATH=.`."""
    has_heredoc: bool = False


class Redirection(Struct, frozen=True):
    operator: str
    """The operator, such as `>`, `>>`, `<` or `&>`."""
    target: Word

    @property
    def is_harmless(self) -> bool:
        """Whether the redirection only duplicates or closes a file descriptor, or leads to /dev/null."""
        text = self.target.text
        if text == "/dev/null":
            return True
        return "&" in self.operator and text is not None and re.fullmatch(r"[0-9]*-?", text) is not None

    @property
    def writes(self) -> bool:
        return self.operator not in ("<", "<&")


class ShellCall(Struct, frozen=True):
    """The result of parsing a shell command."""

    text: str
    commands: tuple[SimpleCommand, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    other_words: tuple[Word, ...] = ()
    """Words that are not part of a simple command, such as the values in a loop or an assignment."""
    not_understood: str = ""
    """A description of a part that cannot be understood. Empty if there is none."""
    hides_names: bool = False
    """True if the parser does not accept the text as valid shell and the text contains patterns or expansions. Such a
    text may run any command."""
    sets_variables: bool = False
    """True if the text sets variables for later commands."""
    everywhere: frozenset[str] = field(default_factory=frozenset)
    """All words of the text. Words inside quotes and substitutions are included."""


def parse_shell(text: str) -> ShellCall:
    """Parses a shell command. If the text is not valid shell, `not_understood` of the result says so, and no error is
    raised.
    """
    source = text.encode("utf-8", "surrogateescape")
    if len(source) > _LONGEST_BYTES:
        return ShellCall(text, not_understood="its length", everywhere=words_anywhere(text))
    tree = _parser().parse(source)
    reader = _TreeReader(source)
    reader.read(tree.root_node, 0)
    if tree.root_node.has_error:
        reader.say("something that is no valid shell")
    if re.search(r"<<-?\s*[\"'][^\"'\n]*\n", text):
        reader.say("a here-document")
    if re.search(r"\S\\\n\S", text):
        reader.say("a word that goes on in the next line")
    if re.search(r"[\0\r\x0b\x0c]", text) or "\udc80" <= max(text, default="") <= "\udfff":
        reader.say("a control character")
    return ShellCall(
        text,
        tuple(reader.commands),
        tuple(reader.redirections),
        tuple(reader.others),
        reader.problem,
        tree.root_node.has_error and re.search(r"[*?\[{$`]", text) is not None,
        reader.sets_variables,
        words_anywhere(text, reader.all_words()),
    )


def words_anywhere(text: str, words: Iterator[Word] | tuple[Word, ...] = ()) -> frozenset[str]:
    """All words in a text, without the quotes and operators around them."""
    without_quotes = re.sub(r"\\\n|\$(?=['\"])|[\"'\\]", "", text)
    without_escapes = re.sub(r"\\[abefnrtv]", " ", text)
    known = (word.known for word in words)
    return frozenset(
        piece
        for one in (text, without_quotes, without_escapes, *known)
        for piece in re.findall(r"[\w.+@%:-]+", one)
    )


@cache
def _parser() -> Any:
    from tree_sitter import Language, Parser  # noqa: PLC0415 - only a pattern for Bash needs it
    from tree_sitter_bash import language  # noqa: PLC0415 - only a pattern for Bash needs it

    return Parser(Language(language()))


def _last_command(node: Any) -> Any:
    """The last simple command inside a syntax node, or None."""
    if node is None:
        return None
    if node.type == "command" or node.type in _DECLARATIONS:
        return node
    for child in reversed(node.named_children):
        found = _last_command(child)
        if found is not None:
            return found
    return None


class _TreeReader:
    def __init__(self, source: bytes) -> None:
        self._source = source
        self.commands: list[SimpleCommand] = []
        self.redirections: list[Redirection] = []
        self.others: list[Word] = []
        self.problem = ""
        self.sets_variables = False
        self._behind: dict[tuple[int, int], list[Word]] = {}
        """The words that belong to a command although they come after a redirection. The key is the command's
        position in the text."""
        self.heredocs: list[Word] = []
        self._reads: Mapping[str, Callable[[Any], None]] = {
            "command": self._read_command,
            "redirected_statement": self._find_words_behind,
            "file_redirect": self._read_redirection,
            "heredoc_body": self._read_heredoc,
            "expansion": self._read_expansion,
            "variable_assignment": self._read_assignment,
            **dict.fromkeys(
                ("array", "for_statement", "case_statement", "herestring_redirect"), self._read_words
            ),
            **dict.fromkeys(_DECLARATIONS, self._read_declaration),
        }

    def say(self, problem: str) -> None:
        self.problem = self.problem or problem

    def all_words(self) -> Iterator[Word]:
        for command in self.commands:
            yield from (*command.words, *command.assignments)
        yield from (*self.others, *self.heredocs)
        yield from (one.target for one in self.redirections)

    def read(self, node: Any, level: int) -> None:
        if level > _MOST_LEVELS:
            self.say("its nesting")
            return
        self._note(node)
        reads = self._reads.get(node.type)
        if reads is not None:
            reads(node)
        for child in node.children:
            self.read(child, level + 1)

    def _read_heredoc(self, node: Any) -> None:
        self.heredocs.append(self._whole(node))
        if not self._is_quoted_heredoc(node) and re.search(rb"\$\(|`", self._bytes(node)):
            self.say("a substitution")

    def _read_assignment(self, node: Any) -> None:
        if node.parent.type != "command":
            self.sets_variables = self.sets_variables or node.parent.type not in _DECLARATIONS
            self.others.append(self._assignment(node))

    def _read_words(self, node: Any) -> None:
        self.others += [word_of(one, self._source) for one in node.named_children if one.type in _WORDS]

    def _note(self, node: Any) -> None:
        if node.type in _NOT_UNDERSTOOD:
            self.say(_NOT_UNDERSTOOD[node.type])
        elif node.is_missing:
            self.say("something that is no valid shell")
        elif node.type == "expansion" and re.search(rb"@|^\$\{!", self._bytes(node)):
            self.say("an indirect expansion")
        elif node.type == "compound_statement" and self._bytes(node).startswith(b"(("):
            self.say("arithmetic")

    def _read_expansion(self, node: Any) -> None:
        """Reads an expansion such as `${x:-word}`. Searches the text of the expansion, because the parser does not
        find everything in the `word`.
        """
        raw = self._bytes(node)
        if re.search(rb"\$\(|`", raw):
            self.say("a substitution")
        word = re.search(r":?[-=+?](.*)\}$", raw.decode("utf-8", "replace"), re.DOTALL)
        if word:
            self.others.append(plain(re.sub(r"[\"'\\]", "", word[1])))

    def _is_quoted_heredoc(self, body: Any) -> bool:
        starts = [one for one in body.parent.children if one.type == "heredoc_start"]
        return bool(starts) and re.search(rb"[\"'\\]", self._bytes(starts[0])) is not None

    def _find_words_behind(self, node: Any) -> None:
        """Finds words that belong to a command although they come after a redirection, such as `push` in `git >x
        push`. The parser takes such words for more redirection targets. They belong to the last command before the
        redirection.
        """
        words = []
        for redirect in node.children_by_field_name("redirect"):
            if redirect.type == "file_redirect":
                words += [one for one in redirect.children_by_field_name("destination") if one.is_named][1:]
            else:
                words += redirect.children_by_field_name("argument")
        if not words:
            return
        last = _last_command(node.child_by_field_name("body"))
        if last is None:
            self.say("a word behind a redirection")
        else:
            known = self._behind.setdefault((last.start_byte, last.end_byte), [])
            known += [word_of(one, self._source) for one in words]

    def _read_command(self, node: Any) -> None:
        words, assignments = [], []
        for child in node.named_children:
            if child.type == "variable_assignment":
                assignments.append(self._assignment(child))
            elif child.type == "command_name" or child.type in _WORDS:
                words.append(word_of(child, self._source))
            elif child.type not in ("file_redirect", "herestring_redirect", "heredoc_redirect", "comment"):
                words.append(UNKNOWN)
        words += self._behind.get((node.start_byte, node.end_byte), [])
        has_heredoc = self._has_heredoc(node)
        self.commands.append(SimpleCommand(tuple(words), tuple(assignments), has_heredoc))

    def _has_heredoc(self, node: Any) -> bool:
        beside = [
            *node.children,
            *(node.parent.children if node.parent.type == "redirected_statement" else ()),
        ]
        return any(one.type in ("heredoc_redirect", "herestring_redirect") for one in beside)

    def _read_declaration(self, node: Any) -> None:
        first = node.children[0]
        name = self._bytes(first).decode("utf-8", "replace")
        rest = [self._declared(child) for child in node.children[1:]]
        rest += self._behind.get((node.start_byte, node.end_byte), [])
        self.commands.append(SimpleCommand((plain(name), *rest)))

    def _declared(self, node: Any) -> Word:
        if node.type == "variable_assignment":
            return self._assignment(node)
        return word_of(node, self._source) if node.type in _WORDS else self._whole(node)

    def _read_redirection(self, node: Any) -> None:
        operators = [child.type for child in node.children if not child.is_named]
        targets = [child for child in node.children_by_field_name("destination") if child.is_named]
        operator = operators[0] if operators else "?"
        if operator.endswith("-"):  # `>&-` closes a descriptor
            return
        if not targets:
            self.say("a redirection without a target")
        for target in targets[:1]:  # the others are words of the command, see `_find_words_behind`
            self.redirections.append(Redirection(operator, word_of(target, self._source)))

    def _assignment(self, node: Any) -> Word:
        value = node.child_by_field_name("value")
        raw = self._bytes(node).decode("utf-8", "replace")
        name = raw.partition("=")[0]
        if value is None:
            return plain(raw)
        return Word((f"{name}=", *word_of(value, self._source).parts))

    def _whole(self, node: Any) -> Word:
        return plain(self._bytes(node).decode("utf-8", "replace"))

    def _bytes(self, node: Any) -> bytes:
        found: bytes = self._source[node.start_byte : node.end_byte]
        return found
