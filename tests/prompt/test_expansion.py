"""Tests the placeholders in a command's text, and the texts that replace them."""

from __future__ import annotations

from ralph.prompt.commands import Command, CommandFile
from ralph.prompt.expansion import Expansion, ShellLine, expand
from ralph.prompt.imports import imported_paths
from ralph.prompt.judged_file import Place
from tests.rows import every_row

FILE = CommandFile("fix", "/r/.claude/commands/fix.md", Place("/r"))


def expanded(body: str, typed: str = "", **fields: str) -> Expansion:
    return expand(Command(FILE, dict(fields), body), typed, {"CLAUDE_SESSION_ID": "s1"})


def text(body: str, typed: str = "", **fields: str) -> str:
    (part,) = expanded(body, typed, **fields).parts
    assert isinstance(part, str)
    return part


PLACES = {
    "all": ("x $ARGUMENTS y", "a 'b c'", "x a 'b c' y"),
    "all in braces": ("${ARGUMENTS}!", "a", "a!"),
    "none given": ("x $ARGUMENTS y", "", "x  y"),
    "numbers count from 0": ("$0, $1", "a 'b c'", "a, b c"),
    "also without a 0": ("$1", "a b", "b"),
    "an index counts from 0": ("$ARGUMENTS[0], $1", "a b", "a, b"),
    "a missing number stays": ("$0 $1 $ARGUMENTS[2]", "a", "a $1 $ARGUMENTS[2]"),
    "missing numbers alone are no place": ("Fix $1.", "a", "Fix $1.\n\nARGUMENTS: a"),
    "ten is not one": ("$10 $1", "a b", "$10 b"),
    "no place": ("Fix.", "a b", "Fix.\n\nARGUMENTS: a b"),
    "no place and nothing": ("Fix $HOME for $5", "", "Fix $HOME for $5"),
    "an open quote": ("$0 $1", "don't stop", "don't stop"),
    "a place in an argument": ("$ARGUMENTS", "$1 ${CLAUDE_SESSION_ID}", "$1 ${CLAUDE_SESSION_ID}"),
    "a fact": ("${CLAUDE_SESSION_ID} ${CLAUDE_OTHER}", "", "s1 ${CLAUDE_OTHER}"),
}


@every_row("case", PLACES)
def test_places_are_filled(case: str) -> None:
    body, arguments, expected = PLACES[case]
    said = "".join(part for part in expanded(body, arguments).parts if isinstance(part, str))
    assert said == expected


def test_named_arguments_stand_where_the_head_declares_them() -> None:
    assert text("$issue on $branch, $other", "7 main", arguments="issue branch") == "7 on main, $other"
    assert text("$issue on $branch", "7", arguments="issue, branch") == "7 on "


SHELL = {
    "a line": ("x !`git log -1` y", ("x ", ShellLine("git log -1"), " y")),
    "at the beginning": ("!`a`", (ShellLine("a"),)),
    "not inside a word": ("x!`a`", ("x!`a`",)),
    "a block": ("```!\na\nb\n```\nz", (ShellLine("a\nb"), "\nz")),
    "a block of code": ("```sh\n!x\n```", ("```sh\n!x\n```",)),
    "two": ("!`a` !`b`", (ShellLine("a"), " ", ShellLine("b"))),
    "empty": ("!``", ("!``",)),
}


@every_row("case", SHELL)
def test_shell_lines_are_found(case: str) -> None:
    body, expected = SHELL[case]
    assert expanded(body).parts == expected


def test_arguments_stand_in_shell_lines_and_make_none() -> None:
    assert expanded("!`log $0` $0", "!`x`").parts == (ShellLine("log !`x`"), " !`x`")


def test_files_are_those_of_the_text_and_of_its_arguments() -> None:
    expansion = expanded("See @a.py, `@code.py`, @$0 and !`cat @b.py`", "dir/c.py")
    assert tuple(imported_paths(expansion.own_text)) == ("a.py", "dir/c.py")
