"""Tests which words belong to an option with several values, which word may be a prompt, and how options are kept
to be passed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer
from typer.exceptions import TyperException

from ralph.cli.line_command import LineCommand, Typed
from tests.cli.lines import ExampleLine
from tests.rows import every_row

if TYPE_CHECKING:
    from msgspec import Struct

    from ralph.cli.line_command import LineParser


def call(_line: Struct, _typed: Typed) -> int:
    return 0


COMMAND = LineCommand("example", call, ExampleLine)
CONTEXT = typer.Context(COMMAND)

# Typed, options as they are handed on, words that belong to none, the list that reaches to the end.
ROWS = {
    "no list": ("x --model y -q", "--model y -q", "x", None),
    "up to the next option": ("--tools A B -p x", "--tools=A --tools=B -p", "x", None),
    "to the end": ("x --tools A B", "--tools=A --tools=B", "x", "--tools"),
    "with =, one word": ("--tools=A x", "--tools=A", "x", None),
    "repeated": ("--tools A --tools B", "--tools=A --tools=B", "", "--tools"),
    "two lists": ("--tools A --dir b c", "--tools=A --dir=b --dir=c", "", "--dir"),
    "ended by --": ("--tools A -- x y", "--tools=A", "x y", None),
    "ended by standard input": ("--tools A -", "--tools=A", "-", None),
    "behind --": ("-- --tools A B", "", "--tools A B", None),
    "value of another option": ("--model --tools A", "--model --tools", "A", None),
    "value of a short option": ("-f --tools A", "-f --tools", "A", None),
    "value of a cluster": ("-qf --tools A", "-qf --tools", "A", None),
    "short option with its value": ("-fx --tools A", "-fx --tools=A", "", "--tools"),
    "flags before it": ("-qp --tools A -q", "-qp --tools=A -q", "", None),
}


def parsed(words: list[str]) -> tuple[LineParser, list[str]]:
    parser = COMMAND.make_parser(CONTEXT)
    _, left, _ = parser.parse_args([*words])
    return parser, left


@every_row(("typed", "options", "left", "last"), ROWS.values())
def test_all_words_up_to_the_next_option_are_the_lists(typed, options, left, last) -> None:
    parser, rest = parsed(typed.split())
    words = [word for option in parser.typed for word in option.words]
    assert (" ".join(words), " ".join(rest), parser.last_list) == (options, left, last)


def test_an_empty_word_is_an_empty_list() -> None:
    parser, _ = parsed(["--tools", "", "-q"])
    assert [option.words for option in parser.typed] == [("--tools=",), ("-q",)]


@every_row("typed", ["--tools", "--tools -q", "--tools -- x", "--tools -"])
def test_a_list_without_a_word_is_refused_by_name(typed) -> None:
    with pytest.raises(TyperException, match="--tools"):
        parsed(typed.split())
