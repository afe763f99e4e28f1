"""`ralph --complete SHELL ...` answers the scripts of `ralph completion`, while a person waits.

The first line of the answer is `words`, `files` or `directories`. With the latter two, the shell adds names of files.
Each further line is a value, for zsh and fish with a tab and a description. All texts are single lines without control
characters. In case of any error the answer is empty, so that no message gets into the user's prompt.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` takes longer to load than this module

if TYPE_CHECKING:
    from collections.abc import Iterable

    Values = Iterable[tuple[str, str]]

_SHELLS = ("bash", "zsh", "fish")


def answer_shell(arguments: list[str]) -> int:
    """Prints what the shell may offer. Returns the exit code: 0, or 1 if there is no answer."""
    try:
        lines = _answer(arguments)
        os.write(1, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    except Exception:  # noqa: BLE001 - whatever it is, a message in the middle of a command line would not help
        return 1
    return 0


def _answer(arguments: list[str]) -> list[str]:
    shell, *words = arguments
    if shell not in _SHELLS:
        raise ValueError(shell)
    line = BashLine("")
    if shell == "bash":
        line = BashLine(words[0])
        words, current = _behind_program(line.words), line.current
    elif shell == "fish":  # it passes the word at the cursor as it was typed
        *words, raw = words
        current = BashLine(raw).current
    else:
        *words, current = words
    one = wanted(table(), words, current)
    found = [
        (word, says) for word, says in _found(one, with_titles=shell != "bash") if word.isprintable() and word
    ]
    kind = next((source for source in one.sources if source in {"files", "directories"}), "words")
    if shell == "bash":
        begins = f"{one.option}{one.listed}"
        known = len(BashLine(_before(line.raw, arguments[2])).current)
        found = [(f"{begins}{word}"[known:], "") for word, _ in found if word.startswith(one.typed)]
        return [kind, *(quoted(word, line.quote) for word, _ in found)]
    begins = one.listed if shell == "zsh" else f"{one.option}{one.listed}"
    return [kind, *(f"{begins}{word}\t{one_line(says)}" for word, says in found)]


def _before(raw: str, piece: str) -> str:
    """The beginning of the word that bash does not replace. bash replaces only `piece`, the part behind the last
    character that it takes for the end of a word (COMP_WORDBREAKS).
    """
    return raw[: len(raw) - len(piece)] if raw.endswith(piece) else raw[:0]


def table() -> list[TableRow]:
    path = os.path.join(os.path.dirname(__file__), "table.tsv")  # noqa: PTH118, PTH120 - `pathlib` takes longer to load than all of this
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - `pathlib` takes longer to load than all of this
        return rows_of(file.read())


def _behind_program(words: list[str]) -> list[str]:
    at = next((at for at, word in enumerate(words) if "=" not in word), len(words))
    return words[at + 1 :]


def _found(one: Completion, *, with_titles: bool) -> Values:
    yield from one.choices
    for source in one.sources:
        if source in {"sessions", "loops"}:
            from ralph.cli.shell.found import loops, sessions  # noqa: PLC0415 - a shell asks for them

            yield from sessions(one, with_titles=with_titles) if source == "sessions" else loops(one)
        elif source == "models":
            from ralph.settings.toml_file import named_targets  # noqa: PLC0415 - a shell asks for them

            yield from named_targets(one.given.get("--config"))
        elif source == "variables":
            yield from ((name, "") for name in sorted(os.environ) if name.isidentifier())


# --- What may be typed at the cursor. Commands and options come from `table.tsv`, which `benchmarks/completion_table.py` makes:
# importing the tables behind it takes longer than a person should wait.

_FIELDS = 7
_INSERTED = "run"
"""The command that ralph inserts if the user names none."""


class TableRow:
    """A line of `table.tsv`: a command, an option or an argument."""

    def __init__(self, line: str) -> None:
        command, kind, words, sources, choices, many, says = line.split("\t")
        self.command = command
        """The command to which the option or argument belongs. Empty for ralph itself."""
        self.kind = kind
        self.words = words.split(" ")
        """The name of the command, or the spellings of the option. The first one is offered."""
        self.sources = tuple(sources.split())
        """The sources of the values. Empty if the option takes no value."""
        self.choices = tuple(choices.split(",")) if choices else ()
        """The values that do not depend on the user's files."""
        self.many = many
        """"commas": the value may be a list separated by commas. "words": the option also takes all words up to the
        next option."""
        self.says = says


class Completion:
    """A text that may be typed at the cursor."""

    def __init__(
        self,
        typed: str,
        choices: tuple[tuple[str, str], ...] = (),
        *,
        sources: tuple[str, ...] = (),
        option: str = "",
        listed: str = "",
        given: dict[str, str] | None = None,
    ) -> None:
        self.typed = typed
        self.choices = choices
        self.sources = sources
        """The names of the sources that have further values."""
        self.option = option
        """The option and the equals sign if they are in the same word, such as `--model=`. Otherwise empty."""
        self.listed = listed
        """The earlier values in the same word, with the comma after the last of them. Otherwise empty."""
        self.given = given or {}
        """The values of the options before the cursor, by the first spelling of the option."""


def rows_of(table: str) -> list[TableRow]:
    return [TableRow(line) for line in table.split("\n") if line.count("\t") == _FIELDS - 1]


def one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def wanted(rows: list[TableRow], words: list[str], current: str) -> Completion:
    """The text that may replace `current`, the word at the cursor. `words` are those before it, without the program's name."""
    command, rest = _command(rows, words)
    if not words and not current.startswith("-"):
        return Completion(current, _commands(rows, ""))
    own = [row for row in rows if row.command == (command or _INSERTED)]
    if not words:
        own += [row for row in rows if not row.command]
    line = _Line([row for row in own if row.kind == "option"], rest)
    if line.is_over:
        return Completion(current)
    if line.awaits is not None and not (line.has_value and current.startswith("-")):
        return _values(line.awaits, current, given=line.given)
    if current.startswith("--") and "=" in current:
        spelling, _, typed = current.partition("=")
        row = line.by_spelling.get(spelling)
        return Completion(current) if row is None else _values(row, typed, f"{spelling}=", line.given)
    if current.startswith("-"):
        return Completion(current, _options(line.options, current))
    choices = _commands(rows, command) if not rest else ()
    arguments = [row for row in own if row.kind == "argument"]
    if line.others < len(arguments):
        one = _values(arguments[line.others], current, given=line.given)
        choices, sources = choices + one.choices, one.sources
        if choices or sources != ("any",):
            return Completion(current, choices, sources=sources, given=line.given)
    if choices or current:
        return Completion(current, choices)
    return Completion(current, _options(line.options, current))


class _Line:
    """The words between the command and the cursor, read as `ralph.cli.command_line` reads a command line."""

    def __init__(self, options: list[TableRow], words: list[str]) -> None:
        self.options = options
        self.by_spelling = {word: row for row in options for word in row.words}
        self.awaits: TableRow | None = None
        """The option to which a value at the cursor belongs."""
        self.has_value = False
        self.given: dict[str, str] = {}
        self.others = 0
        self.is_over = False
        """True behind `--`, where no word is an option."""
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        awaits, is_option = self.awaits, len(word) > 1 and word.startswith("-")
        if self.is_over:
            return
        if awaits is not None and not (self.has_value and is_option):
            self.given[awaits.words[0]] = word
            self.has_value = awaits.many == "words"
            self.awaits = awaits if self.has_value else None
            return
        self.awaits, self.has_value = None, False
        if word == "--":
            self.is_over = True
        elif word.startswith("--"):
            spelling, equals, value = word.partition("=")
            row = self.by_spelling.get(spelling)
            if row is not None and equals:
                self.given[row.words[0]] = value
            elif row is not None and row.sources:
                self.awaits = row
        elif is_option:
            self._take_cluster(word)
        else:
            self.others += 1

    def _take_cluster(self, word: str) -> None:
        for at, letter in enumerate(word[1:], start=2):
            row = self.by_spelling.get(f"-{letter}")
            if row is not None and row.sources:
                if word[at:]:
                    self.given[row.words[0]] = word[at:]
                else:
                    self.awaits = row
                return


def _command(rows: list[TableRow], words: list[str]) -> tuple[str, list[str]]:
    command, rest = "", words
    while rest and any(
        row.kind == "command" and row.command == command and row.words[0] == rest[0] for row in rows
    ):
        command, rest = f"{command} {rest[0]}".lstrip(), rest[1:]
    return command, rest


def _commands(rows: list[TableRow], command: str) -> tuple[tuple[str, str], ...]:
    return tuple((row.words[0], row.says) for row in rows if row.kind == "command" and row.command == command)


def _options(options: list[TableRow], current: str) -> tuple[tuple[str, str], ...]:
    first = tuple((row.words[0], row.says) for row in options)
    if any(word.startswith(current) for word, _ in first):
        return first
    return tuple((word, row.says) for row in options for word in row.words)


def _values(row: TableRow, typed: str, option: str = "", given: dict[str, str] | None = None) -> Completion:
    listed = typed[: typed.rfind(",") + 1] if row.many else ""
    choices = tuple((one, "") for one in row.choices)
    return Completion(
        typed[len(listed) :], choices, sources=row.sources, option=option, listed=listed, given=given
    )


# --- The words of a command line in bash, which splits them in other places than ralph


class BashLine:
    """A command line up to the cursor, in the words that bash would pass to a program. Nothing is expanded or
    evaluated.
    """

    def __init__(self, line: str) -> None:
        self.words: list[str] = []
        self.current = ""
        self.raw = ""
        self.quote = ""
        at, is_word = 0, False
        while at < len(line):
            char = line[at]
            if not self.quote and char in " \t":
                if is_word:
                    self.words.append(self.current)
                self.current, self.raw, is_word, at = "", "", False, at + 1
                continue
            taken = self._take(char, line[at + 1 : at + 2])
            self.raw += line[at : at + taken]
            at, is_word = at + taken, True

    def _take(self, char: str, following: str) -> int:
        if char == self.quote:
            self.quote = ""
        elif not self.quote and char in "'\"":
            self.quote = char
        elif char == "\\" and following and (not self.quote or (self.quote == '"' and following in '"\\$`')):
            self.current += following
            return 2
        else:
            self.current += char
        return 1


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./@%+,:=")


def quoted(text: str, quote: str) -> str:
    """The text as one types it in bash within the quotation mark `quote`, if there is one. bash inserts it as it is."""
    if quote == "'":
        return text.replace("'", "'\\''")
    if quote == '"':
        return "".join(f"\\{char}" if char in '"\\$`!' else char for char in text)
    return "".join(char if char in _PLAIN or char.isalnum() else f"\\{char}" for char in text)
