"""Tests which first words count as no command. `tests/program/cli/test_mistyped_commands.py` checks the messages about the
others, and lone words.
"""

from __future__ import annotations

import pytest

from ralph.cli.command_line import (
    COMMANDS,
    LineError,
    instead_of,
    instead_of_in_loop,
    with_command,
    with_repeated_options,
)
from tests.rows import every_row

PROMPTS = [
    ("hi",),
    ("go",),
    ("test",),
    ("review", "--max-turns", "3"),
    ("fun",),  # a letter from `run`
    ("factor",),  # two letters from `doctor`
    ("status?",),
    ("help me",),
    ("d\u00f6ctor",),
    ("status", "-p"),
    ("doctr", "--print", "--max-turns", "3"),
    ("continue", "-c"),
    ("status", "--resume=0f3a"),
]


@every_row("words", PROMPTS)
def test_what_is_plainly_a_prompt_is_one(words) -> None:
    assert instead_of(words, COMMANDS) is None


@every_row("command", COMMANDS)
def test_one_slip_in_any_command_is_seen(command: str) -> None:
    middle = len(command) // 2
    slips = {
        "left out": command[:middle] + command[middle + 1 :],
        "doubled": command[:middle] + command[middle] + command[middle:],
        "swapped": command[:-2] + command[-1] + command[-2],
        "other letter": command[:-1] + "z",
    }
    if command == "run":  # of three letters, two alike are too few
        del slips["swapped"], slips["other letter"]
    seen = {slip: instead_of([word], COMMANDS) for slip, word in slips.items() if word not in COMMANDS}
    assert [slip for slip, said in seen.items() if said is None or f"`ralph {command}`" not in said] == []


def test_a_mistyped_loop_that_is_to_continue_is_no_prompt_for_a_session() -> None:
    assert instead_of(["lopo", "-c"], COMMANDS) is not None


@every_row(
    ("word", "meant"),
    [("intt", "loop init"), ("halp", "loop --help"), ("run", "loop -f PROMPT.md"), ("fun", None)],
)
def test_after_loop_a_replaced_letter_is_a_slip_in_four_letters(word: str, meant: str | None) -> None:
    said = instead_of_in_loop(word)
    assert (said and f"did you mean `ralph {meant}`?" in said) if meant else said is None


# --- Lists and inserted commands


VALUED = {
    "--tools": "TOOLS...",
    "--Tools": "TOOLS...",
    "--dir": "DIR...",
    "--model": "",
    "--file": "",
    "-f": "PATH",
}

# Typed, as typer reads it, the list that reaches to the end.
ROWS = {
    "no list": ("x --model y -q", "x --model y -q", None),
    "up to the next option": ("--tools A B -p x", "--tools=A --tools=B -p x", None),
    "to the end": ("x --tools A B", "x --tools=A --tools=B", "--tools"),
    "another spelling": ("--Tools A -q", "--Tools=A -q", None),
    "with =, one word": ("--tools=A x", "--tools=A x", None),
    "repeated": ("--tools A --tools B", "--tools=A --tools=B", "--tools"),
    "two lists": ("--tools A --dir b c", "--tools=A --dir=b --dir=c", "--dir"),
    "ended by --": ("--tools A -- x", "--tools=A -- x", None),
    "ended by standard input": ("--tools A -", "--tools=A -", None),
    "behind --": ("-- --tools", "-- --tools", None),
    "value of another option": ("--model --tools A", "--model --tools A", None),
    "value of a short option": ("-f --tools A", "-f --tools A", None),
    "value of a cluster": ("-qf --tools A", "-qf --tools A", None),
    "short option with its value": ("-fx --tools A", "-fx --tools=A", "--tools"),
    "flags before it": ("-qp --tools A -q", "-qp --tools=A -q", None),
    "a value too many": ("-d api -p x", "-d -p x", None),
    "in one word": ("--debug api,hooks x", "--debug x", None),
    "behind the prompt": ("x --debug api", "x --debug", None),
    "at the end of a cluster": ("-pd api x", "-pd x", None),
    "with = alone": ("--debug=api x", "--debug x", None),
    "suggestions": ("--prompt-suggestions=false x", "--prompt-suggestions x", None),
    "a prompt behind it": ("-d x", "-d x", None),
    "an option behind it": ("--debug -p x", "--debug -p x", None),
    "the last of two": ("-d a --prompt-suggestions b x", "-d --prompt-suggestions x", None),
    "the prompt behind one of two": ("-d x --prompt-suggestions b", "-d x --prompt-suggestions", None),
    "a prompt behind --": ("-d api -- x", "-d -- x", None),
    "standard input behind it": ("-d api -", "-d -", None),
    "value that is the option": ("--model --debug x", "--model --debug x", None),
}


@every_row(("typed", "read", "last"), ROWS.values())
def test_lists_are_repeated_options_and_optional_values_are_left_out(typed, read, last) -> None:
    assert with_repeated_options(typed.split(), VALUED) == (read.split(), last)


def test_an_empty_word_is_an_empty_list() -> None:
    assert with_repeated_options(["--tools", "", "-q"], VALUED) == (["--tools=", "-q"], None)


REFUSED = {
    "no word of a list of tools": (
        ["--tools"],
        '--tools needs at least one value; --tools "" is an empty list',
    ),
    "no word of another list": (["--dir"], "--dir needs at least one value; for none, leave it out"),
    "option instead of a word": (["--tools", "-q"], "--tools needs at least one value"),
    "-- instead of a word": (["--tools", "--", "x"], "--tools needs at least one value"),
    "standard input instead of a word": (["--tools", "-"], "--tools needs at least one value"),
}


@every_row(("words", "says"), REFUSED.values())
def test_a_list_without_words_is_refused(words, says) -> None:
    with pytest.raises(LineError) as refused:
        with_repeated_options(words, VALUED)
    assert str(refused.value).startswith(says)


@every_row(
    ("arguments", "read"),
    [
        ([], ["run"]),
        (["fix it"], ["run", "fix it"]),
        (["-p", "fix it"], ["run", "-p", "fix it"]),
        (["run", "x"], ["run", "x"]),
        (["--help", "x"], ["--help", "x"]),
        (["loop", "init", "-C", "x"], ["loop init", "-C", "x"]),
        (["loop", "-C", "x", "init"], ["loop", "-C", "x", "init"]),
    ],
)
def test_run_is_inserted_where_no_command_is_named(arguments, read) -> None:
    assert with_command(arguments) == read
