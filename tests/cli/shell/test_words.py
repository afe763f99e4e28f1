"""Tests what a shell may offer at the cursor, and how bash's lines are read and quoted."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from benchmarks.completion_table import TABLE, table
from ralph.cli.command_line import COMMANDS
from ralph.cli.shell.answer import BashLine, quoted, rows_of, wanted
from tests.rows import every_row

ROWS = rows_of(TABLE.read_text())


def test_the_table_is_the_one_that_the_tables_of_commands_and_options_make() -> None:
    assert TABLE.read_text() == table(), "make generated"


def offered(line: str) -> tuple[list[str], tuple[str, ...], str]:
    """The choices that begin as typed, the sources of further values, and the text before the value."""
    *words, current = line.split(" ")
    one = wanted(ROWS, words, current)
    choices = [word for word, _ in one.choices if word.startswith(one.typed)]
    return choices, one.sources, f"{one.option}{one.listed}"


def test_the_first_word_is_a_command() -> None:
    assert offered("")[0] == list(COMMANDS)


OFFERS: list[tuple[str, list[str], tuple[str, ...], str]] = [
    ("se", ["sessions"], (), ""),
    ("sessions ", ["ls", "show", "export", "search", "rm"], (), ""),
    ("loop ini", ["init"], ("any",), ""),
    ("loop init -C ", [], ("directories",), ""),
    ("--res", ["--result-file", "--resume", "--restricted"], (), ""),
    ("--vers", ["--version"], (), ""),  # only in place of a command
    ("run --vers", [], (), ""),
    ("--allowedT", ["--allowedTools"], (), ""),
    ("--resume ", [], ("sessions",), ""),
    ("-r ", [], ("sessions",), ""),
    ("-pr ", [], ("sessions",), ""),
    ("-rabc it", [], (), ""),
    ("sessions show ", [], ("sessions",), ""),
    ("sessions show x ", ["--session-dir", "--help"], (), ""),
    ("run -f ", [], ("files",), ""),
    ("--model o", ["opus"], ("models",), ""),
    ("--model=o", ["opus"], ("models",), "--model="),
    ("--fallback-model opus,so", ["sonnet"], ("models",), "opus,"),
    ("--fallback-model=opus,so", ["sonnet"], ("models",), "--fallback-model=opus,"),
    ("--permission-mode p", ["plan"], ("choices",), ""),
    ("loop --output-format=str", ["stream-json"], ("choices",), "--output-format="),
    ("--tools Read Gr", ["Grep"], ("choices",), ""),
    ("--tools Read,Gr", ["Grep"], ("choices",), "Read,"),
    ("--tools Read --qui", ["--quiet"], (), ""),
    ("--tools --qui", [], ("choices",), ""),
    ("--no-", ["--no-session-persistence"], (), ""),
    ("-- --res", [], (), ""),
    ("fix it", [], (), ""),
    ("completion z", ["zsh"], ("choices",), ""),
    ("--unknown-option=x", [], (), ""),
]


@every_row(("line", "choices", "sources", "before"), OFFERS)
def test_what_may_stand_at_the_cursor(line, choices, sources, before) -> None:
    found, from_where, begins = offered(line)
    assert (found, from_where, begins) == (choices, sources, before)


def test_no_option_that_the_help_hides_is_offered() -> None:
    assert not {"--iteration"} & set(offered("run --")[0])


@every_row(
    ("line", "words", "current", "quote"),
    [
        ("ralph ", ["ralph"], "", ""),
        ("ralph --model=qwen3:8", ["ralph"], "--model=qwen3:8", ""),
        ("A=1 ralph 'a b' \"c \\\" d", ["A=1", "ralph", "a b"], 'c " d', '"'),
        ("ralph it\\'s  $(x", ["ralph", "it's"], "$(x", ""),
        ("ralph 'a\\", ["ralph"], "a\\", "'"),
        ('ralph "a\\b', ["ralph"], "a\\b", '"'),
    ],
)
def test_a_line_of_bash_is_read_without_evaluating_anything(line, words, current, quote) -> None:
    read = BashLine(line)
    assert (read.words, read.current, read.quote) == (words, current, quote)


@given(strategies.text(strategies.characters(exclude_categories=["Cc", "Cs"]), min_size=1))
@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_a_quoted_text_is_one_word_with_that_text(quote: str, text: str) -> None:
    if quote == '"' and "!" in text:  # within double quotes, bash keeps the backslash before `!`
        text = text.replace("!", "")
    assert BashLine(f"ralph {quote}{quoted(text, quote)}").current == text
