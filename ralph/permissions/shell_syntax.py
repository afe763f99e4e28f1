"""Reads a text as bash does, into all simple commands in it, wherever they are: inside a substitution or a function, or after
the beginning of a here-document. What bash would refuse may be read too; what it takes is read in the same way, or not at all.
"""

from __future__ import annotations

import re
import sys
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.permissions.patterns import ONE, SEVERAL, Word, decoded_escapes, hidden, name_of, plain, word_of

if TYPE_CHECKING:
    from collections.abc import Sequence

UNKNOWN_SYNTAX = "syntax that ralph does not understand"
NESTING = "its nesting"
INDIRECT, CALCULATION = "an indirect expansion", "arithmetic"
_SUBSTITUTION = "a substitution"
_CONTINUED = "a word that continues on the next line"
_LONGEST_BYTES = 131_072
_MOST_LEVELS = 50
"""The maximum depth of substitutions and compound commands. Real commands are much less deep."""
_MOST_TRIES = 20
"""The maximum number of `((` in a text that begin no arithmetic, for each of which a part is read twice."""

_BLANK = re.compile(r"(?:[ \t]|\\\n)*(?:(?<![^ \t\n;&|()<>])#[^\n]*)?")
_ENDS_WORD = r"(?:\\\n)*(?=[ \t\n;&|()<>]|\Z)"
_RESERVED = re.compile(
    rf"(if|then|elif|else|fi|for|select|while|until|do|done|case|esac|function|time|coproc|\{{|\}}|!|\[\[){_ENDS_WORD}"
)
_BETWEEN_WORDS = re.compile(r"(?:\\\n)*(?=[ \t\n;&|)]|\Z)")
_IN = re.compile(rf"in{_ENDS_WORD}")
_OPERATOR = re.compile(r"&&|\|\||\|&|;;&|;;|;&|;|&(?!>)|\|")
_PIPE = re.compile(r"\|(?!\|)")
_OPTIONS_OF_TIME = re.compile(rf"(?:(?:-p|--){_ENDS_WORD}[ \t]*)*")
_OF_FUNCTION = re.compile(r"\([ \t]*\)")
_BEGINS_BLOCK = re.compile(rf"\(|(?:\{{|\[\[|if|for|select|while|until|case){_ENDS_WORD}")
_NAME_OF_COPROCESS = re.compile(rf"\w+[ \t]+(?={_BEGINS_BLOCK.pattern})")
_OF_COMPARISON = re.compile(rf"\]\]{_ENDS_WORD}|&&|\|\||[<>](?!\()|[()]")
_ENDS_CASE = (";;", ";&", ";;&")
_REDIRECTION = re.compile(
    r"(\d+|\{[A-Za-z_]\w*(?:\[[^]]*\])?\})?(<<<|<<-?|<>|[<>]&|>>|>\||[<>](?!\())|(?P<both>&>>?)"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\+?=|(?=\[))", re.ASCII)
_SIGN = re.compile(r"\+?=")
_BARE = re.compile(r"[^ \t\n;&|()<>\\'\"$`]+")
_IN_DOUBLE_QUOTES = re.compile(r"[^\"\\$`]+")
_LOGICAL_LINE = re.compile(r"((?:[^\\\n]++|\\(?:.|\Z))*+)(?:\n|\Z)", re.DOTALL)
_LITERAL_LINE = re.compile(r"([^\n]*)(?:\n|\Z)")
_PLAIN_INSIDE = re.compile(r"[^()\[\]{}<>\\'\"$`]+")
_DELIMITER = re.compile(r"(?:\\[^\n]|'[^'\n]*'|\"[^\"\n\\$`]*\"|[^ \t\n;&|()<>\\'\"$`])+")
_ANSI = re.compile(r"\$'((?:\\.|[^'\\])*)'", re.DOTALL)
_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_PROCESS = re.compile(r"[<>]\(")
_PARAMETER = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])", re.ASCII)
# The name in `${...}`, and what follows it.
_EXPANSION = re.compile(r"\$\{([!#]?)(\w+|[@*#?$!-])", re.ASCII)
_VALUE = re.compile(r"(?:\[[^]]*\])?(:?[-=+?])(.*)", re.DOTALL)
# bash(1), Arithmetic Evaluation: the value of a variable in a subscript or an offset is evaluated, with its substitutions.
_EVALUATED = re.compile(r"\[(?!(?:\d+|[@*])\])|(?:\[[^]]*\])?:(?![-=+?]|\s*-?\d+(?::\s*-?\d+)?\Z)")
# A here-document with a quoted word, between double quotes: nothing in it is expanded, so it is a text.
_CONSTANT = re.compile(
    r"\$\([ \t\n]*cat[ \t]*<<[ \t]*(['\"])(\w+)\1[ \t]*\n((?:(?!\2(?:\n|[^\n]*\)))[^\n]*\n)*)\2\n[ \t\n]*\)"
)
# The bash 3.2 of macOS looks for the end of `$(...)` in the text of a here-document too.
_ENDS_EARLY = re.compile(r"[()'\"`\\#$]" if sys.platform == "darwin" else r"(?!)")
# bash(1), Command Substitution: in backquotes a backslash escapes these; within double quotes the quotes escape first.
_BACKQUOTED = re.compile(r"`((?:\\.|[^`\\])*)`", re.DOTALL)
_IN_BACKQUOTES = re.compile(r"\\([$`\\])")
_IN_QUOTED_BACKQUOTES = re.compile(r"\\([$`\\\"])")
# An operator that an escaped line end parts.
_PARTED = re.compile(r"[$<>](?:\\\n)+\S|[&|;(](?:\\\n)+[&|;(<>]")
# Variables that a loop or a redirection sets and that decide which program a name means, such as PATH, are in upper case.
_LOOP_VARIABLE = re.compile(r"(?!.*_proxy$)[a-z_][a-z0-9_]*")
DECLARATIONS = frozenset("declare typeset local export readonly".split())
_OUTPUTS = frozenset((">", ">>", ">|", "&>", "&>>", ">&"))


class Document:
    """A here-document, whose text is read after the line in which it begins."""

    def __init__(self, delimiter: str, *, is_literal: bool, is_indented: bool) -> None:
        self.delimiter, self.is_literal, self.is_indented = delimiter, is_literal, is_indented
        self.text: str | None = None


class SimpleCommand(Struct, frozen=True):
    words: tuple[Word, ...]
    assignments: tuple[Word, ...] = ()
    """The assignments before the command, such as `PATH=.`."""
    has_heredoc: bool = False
    input: Document | None = None
    """The here-document that the command reads, if there is no doubt about that."""
    output: str = ""
    """`$` if the command stands in a substitution, so that its output becomes words, `|` if it stands before a pipe."""
    is_needed: bool = False
    """True if the command must match an allowed pattern if only allowed commands may run. A command that another one
    runs needs no match of its own, unless the other one changes nothing about it, as `timeout` does.
    """

    @property
    def name(self) -> str | None:
        """The name without its directories. None if it is known only at run time."""
        return name_of(self.words)

    @property
    def document(self) -> str | None:
        """The text that the command reads. None if there is none, or if it is known only at run time."""
        text = self.input.text if self.input else None
        is_known = self.input and (self.input.is_literal or not re.search(r"[$`\\]", text or ""))
        return text if is_known else None


class Redirection(Struct, frozen=True):
    operator: str
    target: Word

    @property
    def is_harmless(self) -> bool:
        """Whether the redirection only duplicates a file descriptor, or leads to /dev/null."""
        text = self.target.text
        is_copy = self.operator in (">&", "<&") and re.fullmatch(r"[0-9]+-?", text or "") is not None
        return is_copy or text == "/dev/null"

    @property
    def writes(self) -> bool:
        return self.operator not in ("<", "<&")


class _SyntaxError(Exception):
    """The message describes what cannot be read."""


class Script:
    """All that has been read of texts that a shell runs."""

    def __init__(self) -> None:
        self.read_commands: list[SimpleCommand] = []
        self.redirections: list[Redirection] = []
        self.other_words: list[Word] = []
        """Words that are not part of a simple command, such as the values in a loop or an assignment."""
        self.heredocs: list[Word] = []
        self.loops: list[tuple[str, Word]] = []
        """The variables of loops, each with one of its values."""
        self.texts: list[str] = []
        """Each text that the shell runs, and the commands in backquotes with a backslash, as the shell reads them."""
        self.not_understood: list[str] = []
        """Descriptions of the parts whose effect on what follows, or whose content, is not known before the command runs."""
        self.lost: list[str] = []
        """Descriptions of why the rest of a text was not read, so that any word may be a command."""
        self.sets_variables = False
        """True if a text sets variables for later commands."""
        self.has_loop = False
        self.pipes_blocks = False
        """True if a compound command may stand before a pipe."""
        self.tries = _MOST_TRIES

    def read(self, text: str) -> None:
        """Reads a text. Of syntax that the reader does not know, `lost` says so, and no error is raised."""
        self.texts.append(text)
        if re.search(r"[\0\1\r\x0b\x0c\ud800-\udfff]", text):
            self.lost.append("a control character")
        if _PARTED.search(text):
            self.lost.append(_CONTINUED)
        try:
            _Reader(text.replace(ONE, "\ufffd").replace(SEVERAL, "\ufffd"), self, 0).read()
        except _SyntaxError as error:
            self.lost.append(str(error))

    def lists(self) -> tuple[list[Any], ...]:
        found = (self.read_commands, self.redirections, self.other_words, self.heredocs, self.loops)
        return (*found, self.texts, self.not_understood)


def _is_balanced(text: str) -> bool:
    """Whether bash surely reads the text as arithmetic: it counts parentheses outside quotes, also those of `case`, of which it leaves
    out the first, and in comments.
    """
    if "esac" in text:
        return False
    quoted = _QUOTED.findall(text)
    for one in (text, _QUOTED.sub("", text)):
        depths = [*accumulate(1 if char == "(" else -1 for char in re.findall(r"[()]", one))] or [0]
        if depths[-1] or min(depths) < 0:
            return False
    return not any(re.search(r"\$\(|`", one) for one in quoted if one[0] == '"')


class _Reader:
    """Reads one text, from `at` on. Methods that read a part of a word return what the word has of it (`word_of`)."""

    def __init__(self, text: str, script: Script, level: int) -> None:
        self._text, self._script, self._level = text, script, level
        if len(text.encode("utf-8", "replace")) > _LONGEST_BYTES:
            raise _SyntaxError("its length")
        self._at = 0
        self._documents: list[Document] = []
        """The here-documents that have begun in this line."""
        self._opened = 0
        """The number of substitutions around this place in the text."""

    def read_expansions(self) -> None:
        """Reads a text that is expanded, and is no command: that of a here-document, or of an expression in quotes."""
        self._opened = 1
        while self._next():
            if not self._take(_IN_DOUBLE_QUOTES) and self._quoted(in_quotes=self._next() != "`") is None:
                self._at += 1

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _is_at(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _blank(self, *, lines: bool = False) -> None:
        self._take(_BLANK)
        while lines and self._next() == "\n":
            self._at += 1
            for document in self._documents:
                self._read_document(document)
            self._documents.clear()
            self._take(_BLANK)

    def _deeper(self, levels: int) -> None:
        self._level += levels
        if self._level > _MOST_LEVELS:
            raise _SyntaxError(NESTING)

    # --- Commands

    def read(self, closing: str = "") -> None:
        """Reads commands up to this sign, or the end of the text. Of compound commands, only what a command stands behind counts."""
        self._deeper(1)
        around: list[str] = []
        is_block = False
        while True:
            self._blank(lines=True)
            char = self._next()
            self._script.pipes_blocks |= is_block and _PIPE.match(self._text, self._at) is not None
            is_block = char == ")"
            if found := self._take(_OPERATOR):
                if found[0] in _ENDS_CASE and around[-1:] == ["case"]:
                    self._patterns(around)
            elif reserved := self._take(_RESERVED):
                is_block = True
                self._behind(reserved[1], around)
            elif self._calculation("(("):
                continue
            elif char == "(":
                self._at += 1
                around.append(char)
            elif char == ")" and around[-1:] == ["("]:
                self._at += 1
                around.pop()
            elif char == closing and not around:
                break
            elif char in ("", ")"):
                raise _SyntaxError(UNKNOWN_SYNTAX)
            else:
                self._simple([])
        self._at += len(closing)
        self._deeper(-1)

    def _behind(self, word: str, around: list[str]) -> None:
        """Reads what stands behind a reserved word before the next command. `around` are the unfinished parts around it."""
        script = self._script
        script.has_loop |= word in ("while", "until", "for", "select")
        self._blank()
        if word == "!" and self._is_at("(") and "extglob" in self._text:  # it may be a pattern
            raise _SyntaxError(UNKNOWN_SYNTAX)
        if word in ("for", "select") and not self._calculation("(("):
            name = self._word().text or ""
            script.sets_variables |= _LOOP_VARIABLE.fullmatch(name) is None
            self._blank(lines=True)
            if self._take(_IN):
                words = self._words("\n;")
                script.other_words += words
                script.loops += [(name, word) for word in words]
        elif word == "case":
            script.other_words.append(self._word())
            self._blank(lines=True)
            if not self._take(_IN):
                raise _SyntaxError(UNKNOWN_SYNTAX)
            around.append(word)
            self._patterns(around)
        elif word == "esac" and around[-1:] == ["case"]:
            around.pop()
        elif word == "function":
            self._word()
            self._blank()
            self._take(_OF_FUNCTION)
            script.not_understood.append("a function")
        elif word == "coproc":
            script.not_understood.append("`coproc`")
            self._name_of_coprocess()
        elif word == "time":
            options = self._take(_OPTIONS_OF_TIME)
            self._simple(
                [
                    plain(word),
                    *(plain(one) for one in (options[0].replace("\\\n", "") if options else "").split()),
                ]
            )
        elif word == "[[":
            self._comparison()

    def _name_of_coprocess(self) -> None:
        """Reads a name, which any word before a compound command is."""
        at = self._at
        if self._take(_NAME_OF_COPROCESS) or _BEGINS_BLOCK.match(self._text, at):
            return
        if self._next() not in ("", *"\n;&|()<>"):
            self._word()
            self._blank()
            if _BEGINS_BLOCK.match(self._text, self._at):
                raise _SyntaxError(UNKNOWN_SYNTAX)
        self._at = at

    def _patterns(self, around: list[str]) -> None:
        """Reads the patterns of a case up to its commands, or the end of all cases."""
        self._blank(lines=True)
        if (end := _RESERVED.match(self._text, self._at)) and end[1] == "esac":
            self._at = end.end()
            around.pop()
            return
        self._at += self._next() == "("
        self._blank(lines=True)
        while self._next() != ")":
            self._word()
            self._blank(lines=True)
            self._at += self._next() == "|"
            self._blank(lines=True)
        self._at += 1

    def _words(self, closing: str) -> list[Word]:
        """The words up to one of these characters, which is not read."""
        words: list[Word] = []
        while True:
            self._blank(lines="\n" not in closing)
            if self._next() and self._next() in closing:
                return words
            words.append(self._word())

    def _comparison(self) -> None:
        words = [plain("[[")]
        operator = None
        while operator is None or operator[0][:2] != "]]":
            self._blank(lines=True)
            is_pattern = words[-1].text == "=~"  # parentheses in it are no operators
            operator = None if is_pattern else self._take(_OF_COMPARISON)
            word = plain(operator[0]) if operator else self._word(is_pattern=is_pattern)
            if is_pattern and word.text == "]]":
                raise _SyntaxError(UNKNOWN_SYNTAX)
            words.append(word)
        self._script.read_commands.append(SimpleCommand(tuple(words)))

    def _simple(self, before: Sequence[Word]) -> None:
        """Reads a simple command. `before` are words such as `time`, behind which assignments may stand."""
        words, assignments = list(before), list[Word]()
        redirected: list[tuple[str, str, Document | None]] = []
        is_begun = False
        while True:
            self._blank()
            if self._next() in ("", "\n", ";", "|", ")") or (self._next() == "&" and not self._is_at("&>")):
                break
            if self._redirect(redirected):
                continue
            if redirected and not is_begun and _RESERVED.match(self._text, self._at):
                raise _SyntaxError(
                    UNKNOWN_SYNTAX
                )  # in a substitution, bash moves redirections behind all words
            if before and not is_begun and (self._next() == "(" or _RESERVED.match(self._text, self._at)):
                break
            if len(words) == 1 and self._take(_OF_FUNCTION):
                self._script.not_understood.append("a function")
                return
            may_assign = not is_begun or words[0].text in DECLARATIONS
            found = _ASSIGNMENT.match(self._text, self._at) if may_assign else None
            # Only before a command, and before redirections, a subscript may have any text.
            is_assignment = found is not None and (found[0][-1] == "=" or not (is_begun or redirected))
            word = self._word(may_assign=is_assignment)
            is_assignment &= "=" in word.known
            if is_assignment and not is_begun:
                (words if before else assignments).append(word)
            else:
                words.append(word)
                is_begun = True
        if not words:
            self._script.other_words += assignments
            self._script.sets_variables |= bool(assignments)
            return
        documents = [one for number, _, one in redirected if one and not number]
        others = [(number, operator) for number, operator, one in redirected if one not in documents]
        is_sure = len(documents) == 1 and all(
            number != "0" and operator in _OUTPUTS for number, operator in others
        )
        has_heredoc = any(operator.startswith("<<") for _, operator, _ in redirected)
        given = documents[0] if is_sure else None
        output = "$" if self._opened else "|" if _PIPE.match(self._text, self._at) else ""
        self._script.read_commands.append(
            SimpleCommand(tuple(words), tuple(assignments), has_heredoc, given, output)
        )

    def _redirect(self, redirected: list[tuple[str, str, Document | None]]) -> bool:
        """Reads a redirection, if one is here."""
        found = self._take(_REDIRECTION)
        if found is None:
            return False
        number, operator = found[1] or "", found[2] or found["both"]
        if "[" in number:
            raise _SyntaxError(UNKNOWN_SYNTAX)
        if number.startswith("{"):
            self._script.not_understood.append("a redirection that sets a variable")
        self._take(_BLANK)
        document = None
        if operator in ("<<", "<<-"):
            word = self._take(_DELIMITER)
            is_longer = self._next() in tuple("\\'\"$`(") or _PROCESS.match(self._text, self._at)
            if word is None or is_longer:
                raise _SyntaxError(UNKNOWN_SYNTAX)
            delimiter = re.sub(r"\\(.)|'(.*?)'|\"(.*?)\"", r"\1\2\3", word[0])
            is_literal = re.search(r"[\\'\"]", word[0]) is not None
            document = Document(delimiter, is_literal=is_literal, is_indented=operator == "<<-")
            self._documents.append(document)
        elif operator[1:] == "&" and self._next() == "-":  # a word behind it belongs to the command
            self._at += 1
        else:
            target = self._word()
            if operator == "<<<":
                self._script.other_words.append(target)
            else:
                if operator == ">&" and number.lstrip("0") in ("", "1"):  # bash expands such a target twice
                    if re.search(r"[^\w./@%+=:,-]", target.known):
                        raise _SyntaxError(UNKNOWN_SYNTAX)
                    self._script.not_understood += [INDIRECT] * (target.text is None)
                self._script.redirections.append(Redirection(operator, target))
        redirected.append((number, operator, document))
        return True

    def _read_document(self, document: Document) -> None:
        lines = []
        while self._next():
            found = self._take(_LITERAL_LINE if document.is_literal else _LOGICAL_LINE)
            line = found[1] if found else ""
            if not document.is_literal:
                line = re.sub(r"\\(\n|.)", lambda one: "" if one[1] == "\n" else one[0], line)
            line = line.lstrip("\t") if document.is_indented else line
            if line == document.delimiter:
                break
            if self._opened and line.startswith(document.delimiter) and ")" in line:
                raise _SyntaxError(UNKNOWN_SYNTAX)  # the shells differ
            lines.append(f"{line}\n")
        document.text = "".join(lines)
        self._script.heredocs.append(plain(document.text))
        if not document.is_literal:
            _Reader(document.text, self._script, self._level + 1).read_expansions()

    # --- Words

    def _word(self, *, may_assign: bool = False, is_pattern: bool = False) -> Word:
        """Reads a word. `may_assign`: it is an assignment if it looks like one. `is_pattern`: it stands behind `=~`."""
        begin = self._at
        marked = [self._beginning_of_assignment()] if may_assign else []
        while True:
            char = self._next()
            if bare := self._take(_BARE):
                marked.append(bare[0])
            elif (quoted := self._quoted()) is not None:
                marked.append(quoted)
            elif self._take(_PROCESS):
                self._substitution()
                marked.append(ONE)
            elif char == "(" and (is_pattern or "".join(marked[-1:])[-1:] in tuple("?*+@!")):
                self._at += 1
                self._inside("(", ")")
                marked.append("*")
            elif char == "|" and is_pattern:
                self._at += 1
                marked.append(char)
            else:
                break
        if self._at == begin:
            raise _SyntaxError(UNKNOWN_SYNTAX)
        return word_of("".join(marked), self._text[begin : self._at], is_assigned=may_assign)

    def _beginning_of_assignment(self) -> str:
        """Reads the name, the subscript and the sign of an assignment, and the values of an array."""
        begin = self._at
        self._take(_ASSIGNMENT)
        if self._next() == "[" and self._text[self._at - 1] != "=":
            self._at += 1
            inside = self._inside("[", "]")
            self._script.not_understood += [] if inside.isdigit() else [CALCULATION]
            if not self._take(_SIGN):
                return f"{self._text[begin : self._text.index('[', begin)]}*"
        name = hidden(self._text[begin : self._at])
        if self._next() != "(":
            return name
        self._at += 1
        values = self._words(")")
        self._script.other_words += values
        has_subscript = re.search(r"[(\s]\[", self._text[begin : self._at]) is not None
        self._script.not_understood += [CALCULATION] * has_subscript
        self._at += 1
        return name + SEVERAL

    def _until(self, quote: str) -> str:
        """Reads a text in quotes in which nothing is expanded."""
        begin = self._at + 1
        end = self._text.find(quote, begin)
        if end < 0:
            raise _SyntaxError(UNKNOWN_SYNTAX)
        self._at = end + 1
        return self._text[begin:end]

    def _quoted(self, *, in_quotes: bool = False) -> str | None:
        """Reads an escaped character, a text in quotes or an expansion, if one is here."""
        char = self._next()
        if char == "\\":
            escaped = self._text[self._at + 1 : self._at + 2]
            self._at = min(self._at + 2, len(self._text))
            if escaped == "\n" and not in_quotes and not self._take(_BETWEEN_WORDS):
                self._script.lost.append(_CONTINUED)
            is_kept = not escaped or (in_quotes and escaped not in '$`"\\')
            return "" if escaped == "\n" else hidden(f"{char}{escaped}" if is_kept else escaped)
        if char == "$":
            return self._dollar(in_quotes=in_quotes)
        if char == "`":
            return self._backquoted(in_quotes=in_quotes)
        if in_quotes or char not in ("'", '"'):
            return None
        return hidden(self._until(char)) if char == "'" else self._double_quoted()

    def _double_quoted(self) -> str:
        self._at += 1
        marked = []
        while self._next() != '"':
            text = self._take(_IN_DOUBLE_QUOTES)
            piece = hidden(text[0]) if text else self._quoted(in_quotes=True)
            if piece is None:
                raise _SyntaxError(UNKNOWN_SYNTAX)
            marked.append(piece)
        self._at += 1
        return "".join(marked)

    def _dollar(self, *, in_quotes: bool) -> str:
        mark = ONE if in_quotes else SEVERAL
        if self._calculation("$(("):
            return mark
        if self._is_at("$("):
            constant = _CONSTANT.match(self._text, self._at) if in_quotes and not self._opened else None
            if constant and not (self._documents or _ENDS_EARLY.search(constant[3])):
                self._at = constant.end()
                self._script.read_commands.append(SimpleCommand((plain("cat"),), has_heredoc=True))
                return hidden(constant[3].rstrip("\n"))
            self._at += 2
            self._substitution()
            return mark
        if self._is_at("${"):
            return self._expansion(mark)
        if self._is_at("$["):
            self._at += 2
            self._script.not_understood.append(CALCULATION)
            self._inside("[", "]", in_quotes=True)
            return mark
        if not in_quotes and (ansi := self._take(_ANSI)):
            return hidden(decoded_escapes(ansi[1]))
        if not in_quotes and self._is_at('$"'):
            self._at += 1
            return self._double_quoted()
        if parameter := self._take(_PARAMETER):
            return SEVERAL if parameter[0] == "$@" else mark
        self._at += 1
        return "$"

    def _calculation(self, begins: str) -> bool:
        """Reads arithmetic, if what begins here is that and no subshell."""
        if not self._is_at(begins):
            return False
        lists, at, documents = self._script.lists(), self._at, [*self._documents]
        known = [len(one) for one in lists]
        self._at += len(begins)
        inside = self._inside("(", ")", in_quotes=True)
        if self._next() == ")":
            if not _is_balanced(inside):
                raise _SyntaxError(UNKNOWN_SYNTAX)
            self._at += 1
            self._script.not_understood.append(CALCULATION)
            return True
        skipped = self._text[at : self._at]
        # Bash looks for the here-document behind all that.
        if "\n" in skipped and (documents or "<<" in skipped):
            raise _SyntaxError(UNKNOWN_SYNTAX)
        self._script.tries -= 1
        if self._script.tries < 0:
            raise _SyntaxError(NESTING)
        for one, length in zip(lists, known, strict=True):
            del one[length:]
        self._at, self._documents = at, documents
        return False

    def _substitution(self) -> None:
        begin, outer, self._documents = self._at, self._documents, []
        self._script.not_understood.append(_SUBSTITUTION)
        self._opened += 1
        self.read(")")
        self._opened -= 1
        if self._documents or (outer and "\n" in self._text[begin : self._at]):
            raise _SyntaxError(
                UNKNOWN_SYNTAX
            )  # the shells differ in where the text of which here-document begins
        self._documents = outer

    def _backquoted(self, *, in_quotes: bool) -> str:
        found = self._take(_BACKQUOTED)
        if found is None or (self._documents and "\n" in found[0]):
            raise _SyntaxError(UNKNOWN_SYNTAX)
        inside = (_IN_QUOTED_BACKQUOTES if in_quotes else _IN_BACKQUOTES).sub(r"\1", found[1])
        self._script.not_understood.append(_SUBSTITUTION)
        self._script.texts += [inside] if inside != found[1] else []
        inner = _Reader(inside, self._script, self._level + 1)
        inner._opened = 1
        inner.read()
        return ONE if in_quotes else SEVERAL

    def _expansion(self, mark: str) -> str:
        """Reads an expansion such as `${x:-word}`."""
        name = self._take(_EXPANSION)
        if name is None:
            raise _SyntaxError(UNKNOWN_SYNTAX)
        self._opened += 1
        rest = self._inside("", "}", in_quotes=mark == ONE)
        self._opened -= 1
        if name[1] == "!" or "@" in name[2] + rest:
            self._script.not_understood.append(INDIRECT)
        if _EVALUATED.match(rest):
            self._script.not_understood.append(CALCULATION)
        value = _VALUE.match(rest)
        if value:
            self._script.other_words.append(plain(re.sub(r"[\"'\\]", "", value[2])))
            self._script.sets_variables |= "=" in value[1]
        return SEVERAL if name[2] == "@" or rest.startswith("[@") or (name[1] and rest[:1] == "@") else mark

    def _inside(self, opens: str, closes: str, *, in_quotes: bool = False) -> str:
        """Reads on until the closing sign of what has been opened, and returns the text as it is written. `in_quotes`: single quotes
        may not keep the shell from expanding what is between them.
        """
        self._deeper(1)
        begin, depth = self._at, 1
        while depth:
            char = self._next()
            if self._take(_PLAIN_INSIDE):
                continue
            ansi = self._take(_ANSI)
            if (
                ansi or char == "'"
            ):  # quotes do not keep the shell from evaluating a subscript, an offset or arithmetic
                text = ansi[1] if ansi else self._until(char)
                if in_quotes and closes == "}" and re.search(r"[}\"]", text):
                    raise _SyntaxError(UNKNOWN_SYNTAX)  # in a POSIX shell, such a quote is a letter
                text = decoded_escapes(text) if ansi else text
                _Reader(text, self._script, self._level + 1).read_expansions()
            elif char and char in "\\'\"`$":
                self._quoted(in_quotes=in_quotes and char == "$")
            elif closes == "}" and self._take(_PROCESS):
                self._substitution()
            elif not char:
                raise _SyntaxError(UNKNOWN_SYNTAX)
            else:
                depth += (char == opens) - (char == closes)
                self._at += 1
        self._deeper(-1)
        return self._text[begin : self._at - 1]
