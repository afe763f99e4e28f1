"""Tests which first words count as no command. `tests/program/cli/test_mistyped_commands.py` checks the messages about the
others, and lone words.
"""

from __future__ import annotations

from ralph.cli.command_words import COMMANDS, instead_of, instead_of_in_loop
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
