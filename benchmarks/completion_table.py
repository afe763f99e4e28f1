"""Makes `ralph/cli/shell/table.tsv`, from which a shell's completion is answered, out of the tables of commands,
options and settings. `make generated` writes the file; `tests/cli/shell/test_words.py` compares it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperOption

from benchmarks.commands import commands
from ralph.mock_api import example_names
from ralph.prompt.judged_file import ALL_SOURCES
from ralph.values.controls import PermissionMode
from ralph.values.servers import ALIASES
from ralph.values.tool_choice import TOOL_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TABLE = Path(__file__).parent.parent / "ralph" / "cli" / "shell" / "table.tsv"
_MOST_CHARS = 100

_SOURCES = {
    "PATH": "files",
    "FILE": "files",
    "DIR": "directories",
    "ID": "sessions",
    "SESSION": "sessions",
    "LOOP": "loops",
    "MODEL": "models",
    "MODELS": "models",
    "VARIABLE": "variables",
    "SCENARIO": "files",
}
"""The name of a value in the help, and the source that `ralph/cli/shell/answer.py` asks for such values."""
_CHOICES = {
    "MODEL": tuple(ALIASES),
    "MODELS": tuple(ALIASES),
    "TOOLS": TOOL_NAMES,
    "SOURCES": tuple(sorted(ALL_SOURCES)),
    "MODE": tuple(mode.value for mode in PermissionMode),
    "SCENARIO": tuple(example_names()),
}
"""The name of a value in the help, and the values that are the same for all users."""
_COMMA_SEPARATED = ("MODELS", "SOURCES", "FEATURES")


def table() -> str:
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    yield _row("", "option", ("--version",), says="Print the version and exit.")
    for command in commands():
        parent, _, word = command.name.rpartition(" ")
        yield _row(parent, "command", (word,), says=command.line)
    for command in commands():
        is_loop = command.name.startswith("loop ")
        for one in command.parameters:
            yield from _rows(command.name, one, is_loop=is_loop)


def _rows(command: str, one: Any, *, is_loop: bool) -> Iterator[str]:
    is_option = isinstance(one, TyperOption)
    if is_option and one.is_flag:
        yield _row(command, "option", one.opts, says=one.help)
        if one.secondary_opts:
            yield _row(command, "option", one.secondary_opts, says=f"Not {one.opts[0]}.")
        return
    metavar = one.metavar or ("" if is_option else one.name.upper())
    names = metavar.strip("[]").removesuffix("...").split("|")
    if is_loop:  # the id of a loop
        names = ["LOOP" if name == "ID" else name for name in names]
    sources = dict.fromkeys(_SOURCES[name] for name in names if name in _SOURCES)
    choices = getattr(one.type, "choices", ()) or tuple(
        choice for name in names for choice in (_CHOICES.get(name, ()) or ((name,) if name.islower() else ()))
    )
    is_list = is_option and (one.multiple or bool({*names} & {*_COMMA_SEPARATED}))
    many = "words" if is_option and metavar.endswith("...") else "commas" if is_list else ""
    yield _row(
        command,
        "option" if is_option else "argument",
        one.opts,
        says=one.help or "",
        sources=" ".join(sources) or ("choices" if choices else "any"),
        choices=choices,
        many=many,
    )


def _row(
    command: str,
    kind: str,
    spellings: Iterable[str],
    *,
    says: str,
    sources: str = "",
    choices: Iterable[str] = (),
    many: str = "",
) -> str:
    words = sorted(
        spellings, key=lambda word: not word.startswith("--")
    )  # stable: the usual spelling stays first
    shown = re.split(r"(?<=\w)[.;] ", says, maxsplit=1)[0].rstrip(".")
    shown = shown if len(shown) <= _MOST_CHARS else f"{shown[: _MOST_CHARS - 1].rstrip()}…"
    cells = (command, kind, " ".join(words), sources, ",".join(choices), many, shown)
    assert not [cell for cell in cells if not cell.isprintable()], cells
    return "\t".join(cells)


if __name__ == "__main__":
    TABLE.write_text(table())
