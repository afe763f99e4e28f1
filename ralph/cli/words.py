"""Turns the words that a user typed into words that typer reads. Scripts for Claude Code name no command, give a list as
several words, and give values to some options that take none. No I/O happens here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.cli.commands import COMMANDS, IN_LOOP, ROOT_HELP, LineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAY_HAVE_VALUE = ("--debug", "-d", "--prompt-suggestions")
"""Options without a value that have one in Claude Code. The value is ignored."""


def with_command(arguments: list[str]) -> list[str]:
    """The arguments with a command at their beginning. If the user named no command, this is `run`. Raises UsageError
    if the first argument is a mistyped command.
    """
    if arguments[:1] == ["loop"] and arguments[1:2] and arguments[1] in IN_LOOP:
        return [f"loop {arguments[1]}", *arguments[2:]]
    if arguments and arguments[0] in (*COMMANDS, *ROOT_HELP):
        return arguments
    if arguments and not arguments[0].startswith("-"):
        from ralph.cli.command_words import refuse_command_word  # noqa: PLC0415 - most prompts follow `ralph run`

        refuse_command_word(arguments)
    return ["run", *arguments]


def with_repeated_options(words: Sequence[str], valued: Mapping[str, str]) -> tuple[list[str], str | None]:
    """Turns `--tools Read Bash` into `--tools=Read --tools=Bash`, and `--debug api` into `--debug`. `words` are the words
    behind the command. `valued` has the name of the value of each option that takes one, by the option's spelling. If
    this name ends with `...`, the option is a list and takes all words up to the next option, `--`, or a lone `-`.

    Also returns the list option that takes all words up to the end of the line, as typed. The user may have meant the
    last of these words as the prompt. None if there is no such option. Raises LineError if a list has no words.
    """
    coming, read, last_list = [*reversed(words)], list[str](), None
    others, maybe_values = (
        0,
        list[int](),
    )  # how many words belong to no option, and where such a word may be a value
    while coming:
        word = coming.pop()
        if word == "--":
            others += len(coming)
            read += [word, *reversed(coming)]
            break
        if valued.get(word, "").endswith("..."):
            listed = []
            while coming and not coming[-1].startswith("-"):
                listed.append(f"{word}={coming.pop()}")
            if not listed:
                takes_names = valued[word] == "TOOLS..."
                advice = f'{word} "" is an empty list' if takes_names else "leave it out to name none"
                raise LineError(f"{word} needs a word at least; {advice}")
            read += listed
            last_list = None if coming else word
            continue
        spelling, equals, _ = word.partition("=")
        read.append(spelling if spelling in _MAY_HAVE_VALUE and equals else word)
        option = _option_before_value(word, valued)
        if option in valued and coming:
            read.append(coming.pop())
        elif option in _MAY_HAVE_VALUE and coming and not coming[-1].startswith("-"):
            maybe_values.append(len(read))
        elif not word.startswith("-") or word == "-":
            others += 1
    # In `--debug api "the task"`, `api` is the value of the option, because a command takes only one word of its own.
    for at in reversed(maybe_values):
        if others > 1:
            del read[at]
            others -= 1
    return read, last_list


def _option_before_value(word: str, valued: Mapping[str, str]) -> str:
    """The option to which the next word may belong as its value: the word itself, or the last letter of a cluster such as
    `-qf`. Empty if there is none.
    """
    if word.startswith("--") or not word.startswith("-"):
        return word
    letters = [f"-{letter}" for letter in word[1:]]
    first_valued = next((at for at, letter in enumerate(letters) if letter in valued), len(letters) - 1)
    return letters[first_valued] if letters and first_valued == len(letters) - 1 else ""
