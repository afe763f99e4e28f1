"""Finds out whether the user meant the first word of a command line as a command. The word may be a mistyped command
of ralph, a command of a similar program, or a lone word that no option and no piped data makes a prompt. No I/O happens
here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ralph.cli.commands import COMMANDS
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_OTHER = "see `ralph --help`"
_ELSEWHERE = {
    "help": "`ralph --help`",
    "version": "`ralph --version`",
    "status": "`ralph loop --status` or `ralph sessions ls`",
    "init": "`ralph loop init`",
    "continue": "`ralph --continue`",
    "resume": "`ralph --resume ID`",
    "list": "`ralph sessions ls`",
    "ls": "`ralph sessions ls`",
    "config": "`ralph doctor`",
    "settings": "`ralph doctor`",
    "ps": "`ralph loop --status`",
    **dict.fromkeys(("log", "logs", "history"), "`ralph sessions show`"),
    **dict.fromkeys(("kill", "stop"), "`touch .ralph/stop` to end a loop"),
    **dict.fromkeys(("start", "daemon"), "`ralph loop -f PROMPT.md`"),
    "mock": "`ralph mock-api`",
    **dict.fromkeys(("auth", "login", "logout", "setup-token"), "set ANTHROPIC_API_KEY"),
    **dict.fromkeys(("agents", "mcp", "plugin", "plugins"), _NO_OTHER),
    **dict.fromkeys(("exec", "install", "update", "upgrade"), _NO_OTHER),
}
"""Commands of similar programs, mainly of `claude`. Each has the equivalent in ralph as its value."""

_IN_LOOP = {
    "init": "`ralph loop init`",
    "help": "`ralph loop --help`",
    "status": "`ralph loop --status`",
    "watch": "`ralph loop --status --watch`",
    "ls": "`ralph loop ls`",
    "list": "`ralph loop ls`",
    "show": "`ralph loop show`",
    "log": "`ralph loop show --log`",
    "logs": "`ralph loop show --log`",
    "history": "`ralph loop ls`",
    "continue": "`ralph loop --continue`",
    "resume": "`ralph loop --continue`",
    "stop": "`touch .ralph/stop`",
    "run": "`ralph loop -f PROMPT.md`",
    "start": "`ralph loop -f PROMPT.md`",
}
"""Words after `ralph loop` that a user may take for commands. Each has the correct form as its value."""

_SAYS_PROMPT = ("-p", "--print")
_NAMES_SESSION = ("-c", "--continue", "-r", "--resume")

_LONE_WORD = re.compile(r"[a-z][a-z-]*")

# In a command of fewer than 5 letters, a replaced letter makes another word: `look` is not a mistyped `loop`. In a
# command of 8 letters or more, two typing errors are allowed.
_LETTER_MATTERS_BELOW = 5
# After `ralph loop`, a replaced letter counts from 4 letters on, because a loop repeats a task and hardly a lone word.
_LETTER_MATTERS_IN_LOOP_BELOW = 4
_TWO_SLIPS_FROM = 8


def refuse_command_word(arguments: Sequence[str]) -> None:
    """Raises UsageError if the user meant the first argument as a command."""
    instead = None if " " in arguments[0] else instead_of(arguments, COMMANDS)
    if instead is not None:
        raise UsageError(instead)


def refuse_lone_word(prompt: str | None, of_what: str, says_prompt: str) -> None:
    """Raises UsageError if the prompt is a lone word, such as `deploy`. The command line `says_prompt` runs it as a
    prompt. To be asked only if neither an option nor piped data says that the word is one.
    """
    if prompt is not None and _LONE_WORD.fullmatch(prompt):
        raise UsageError(
            f"`{prompt}` is no command of {of_what} (`{says_prompt} {prompt}` runs it as a prompt)"
        )


def instead_of(arguments: Sequence[str], commands: Sequence[str]) -> str | None:
    """The error message if the user probably meant the first argument as a command, although it is not one of
    `commands`. None if the argument is a prompt.
    """
    word, *others = arguments
    if not re.fullmatch(r"[A-Za-z][A-Za-z_-]*", word) or any(one.startswith(_SAYS_PROMPT) for one in others):
        return None
    lower = word.lower()
    meant = _ELSEWHERE.get(lower)
    if meant is not None and any(one.startswith(_NAMES_SESSION) for one in others):
        return None  # in `ralph continue -c`, the word is the prompt for the session
    if lower == "help" and others and others[0] in commands:
        meant = f"`ralph {others[0]} --help`"
    if meant is None:
        near = next((command for command in commands if _is_slip(lower, command)), None)
        meant = None if near is None else f"`ralph {near}`"
    if meant is None:
        return None
    instead = meant if meant.startswith(("see", "set")) else f"did you mean {meant}?"
    return f"`{word}` is no command of ralph: {instead} (`ralph run {word}` runs it as a prompt)"


def instead_of_in_loop(word: str) -> str | None:
    """The error message if the user probably meant `word`, which follows `ralph loop`, as a command. None if the word
    is a prompt.
    """
    lower = word.lower()
    slips = (known for known in _IN_LOOP if _is_slip(lower, known, _LETTER_MATTERS_IN_LOOP_BELOW))
    meant = _IN_LOOP.get(lower) or next((_IN_LOOP[known] for known in slips), None)
    if meant is None:
        return None
    return f"`{word}` is no command of `ralph loop`: did you mean {meant}? (`ralph loop -p {word}` runs it as a prompt)"


def _is_slip(word: str, command: str, letter_matters_below: int = _LETTER_MATTERS_BELOW) -> bool:
    most = 2 if len(command) >= _TWO_SLIPS_FROM else 1
    if abs(len(word) - len(command)) > most:
        return False
    other_letter = 1 if len(command) >= letter_matters_below else most + 1
    return _slips(word, command, other_letter) <= most


def _slips(word: str, meant: str, other_letter: int) -> int:
    """The edit distance of two words (optimal string alignment). Its steps are to leave out a letter, to add a
    letter, and to swap two neighbours. Each adds 1 to the distance. A replaced letter adds `other_letter`.
    """
    rows = [list(range(len(meant) + 1))]
    for i, letter in enumerate(word, start=1):
        row = [i]
        for j, wanted in enumerate(meant, start=1):
            change = 0 if letter == wanted else other_letter
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + change)
            if i > 1 and j > 1 and (letter, word[i - 2]) == (meant[j - 2], wanted):
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]
