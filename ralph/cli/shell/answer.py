"""`ralph --complete SHELL ...` answers the scripts of `ralph completion`, while a person waits.

The first line of the answer is `words`, `files` or `directories`. With the latter two, the shell adds names of files.
Each further line is a value, for zsh and fish with a tab and a description. All texts are single lines without control
characters. In case of any error the answer is empty, so that no message gets into the user's prompt.
"""

from __future__ import annotations

import os

from ralph.cli.shell.words import BashLine, Completion, TableRow, one_line, quoted, rows_of, wanted

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
            from ralph.cli.shell.models import models  # noqa: PLC0415 - a shell asks for them

            yield from models(one)
        elif source == "variables":
            yield from ((name, "") for name in sorted(os.environ) if name.isidentifier())
