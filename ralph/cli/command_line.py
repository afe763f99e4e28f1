"""Reads a command line, runs the command, and turns an error into one line and an exit code. Knows ralph's commands, each with
its line in the help.

Turns the words that a user typed into words that typer reads. Scripts for Claude Code name no command, give a list as
several words, and give values to some options that take none. Finds out whether the user meant the first word as a
command: it may be a mistyped command of ralph, a command of a similar program, or a lone word that no option and no piped
data makes a prompt.

The errors of the command line are defined here too. Each leads to one line on standard error and an exit code. The
most common error, `UsageError`, is defined elsewhere, because all packages use it.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.machine.loading import load_typer, load_without
from ralph.machine.process_start import why_too_few_descriptors
from ralph.values.outcome import (
    CannotError,
    Outcome,
    ShortageError,
    UsageError,
    line_with_advice,
    nearest,
    shortage_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def run_cli(arguments: list[str]) -> int:
    """Runs the command that the arguments name. Returns the exit code."""
    try:
        given, arguments = arguments, with_command(arguments)
        name, *words = arguments
        if name in ROOT_HELP:
            return _show_help()
        # msgspec takes what it needs from `typing` then. typing_extensions is larger than all of msgspec's own modules.
        with load_without("typing_extensions"):
            load_typer()
            from ralph.cli.typer_command import named_command, run_command  # noqa: PLC0415 - the help does without typer

            command = named_command(name)
        return run_command(name, command, words, is_command_inserted=len(arguments) > len(given))
    except LineError as error:
        command = error.command or arguments[0]
        hint = "see `ralph --help`" if command.startswith("-") else f"see `ralph {command} --help`"
        return _complain(f"{str(error).rstrip('.')} ({hint})", Outcome.USAGE.exit_code())
    except UsageError as error:
        return _complain(str(error), Outcome.USAGE.exit_code())
    except CannotError as error:
        return _complain(str(error), error.outcome.exit_code())
    except (OSError, MemoryError, ImportError, RuntimeError) as error:
        shortage = shortage_of(error)
        if shortage is not None:
            return _complain_of(shortage)
        if not isinstance(error, OSError):
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        why = "standard output is closed" if error.errno == errno.EBADF else error.strerror
        return _complain(f"cannot write: {where}{why}", Outcome.IO_ERROR.exit_code())


def _show_help() -> int:
    """`make generated` has made the page. Raises OSError if standard output cannot be written."""
    with open(os.path.join(os.path.dirname(__file__), "help.txt"), encoding="utf-8") as page:  # noqa: PTH118, PTH120, PTH123 - `pathlib` takes long to load
        text = page.read()
    with suppress(BrokenPipeError):  # the reader has seen enough
        sys.stdout.write(text)
        sys.stdout.flush()
    return Outcome.COMPLETED.exit_code()


def _complain(message: str, code: int) -> int:
    """Writes the message to standard error as one line, and returns `code`."""
    from ralph.values.redaction import line_without_secrets  # noqa: PLC0415 - not needed when all is well

    with suppress(BrokenPipeError):  # the reader has closed standard error
        sys.stderr.write(f"ralph: {line_without_secrets(message, os.environ)}\n")
    return code


def _complain_of(shortage: ShortageError) -> int:
    """Imports no module: an import may fail if the machine lacks memory or file descriptors."""
    too_few = why_too_few_descriptors()
    with suppress(OSError):
        os.write(2, f"ralph: {too_few or line_with_advice(shortage)}\n".encode())
    return (Outcome.API_UNAVAILABLE if too_few is None else Outcome.CONFIG).exit_code()


IN_LOOP = ("init", "ls", "show")
"""`ralph loop init` is a single command: a group takes its first argument for a command, but `loop` takes a prompt."""

HELP_LINES = {
    "run": "Do one task, from a prompt to an outcome (the default).",
    "loop": "Repeat one task in fresh runs until a check passes: the outer loop.",
    "doctor": "Show the settings, where each comes from, and what works.",
    "demo": "Watch ralph work with a scripted model: no key, no network.",
    "mock-api": "Serve a scripted model on 127.0.0.1.",
    "sessions": "Look at what earlier runs did.",
    "report": "Write one HTML page that shows what a loop or a session did.",
    "fleet": "Spread many jobs over many machines.",
    "help": "Show a page of the documentation.",
    "completion": "Print the script that completes command lines in bash, zsh or fish.",
}
COMMANDS = tuple(HELP_LINES)
ROOT_HELP = ("-h", "--help")
"""Options that may be given instead of a command. All words after such an option are ignored."""


class LineError(UsageError):
    """The words do not fit the command's parameters, which its help lists."""

    def __init__(self, message: str, command: str | None = None) -> None:
        super().__init__(message)
        self.command = command
        """The command with this help, such as `fleet submit`. None if the first word names it."""


def wrong_value(option: str, problem: str) -> LineError:
    """Makes the error about a wrong value of an option. `problem` says what is wrong."""
    return LineError(f"Invalid value for {option}: {problem}")


_MAY_HAVE_VALUE = ("--debug", "-d", "--prompt-suggestions")
"""Options without a value that have one in Claude Code. The value is ignored."""


def with_command(arguments: list[str]) -> list[str]:
    """The arguments with a command first, by default `run`. Raises UsageError if the first is a mistyped command."""
    if arguments[:1] == ["loop"] and arguments[1:2] and arguments[1] in IN_LOOP:
        return [f"loop {arguments[1]}", *arguments[2:]]
    if arguments and arguments[0] in (*COMMANDS, *ROOT_HELP):
        return arguments
    if arguments and not arguments[0].startswith("-"):
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
    # How many words belong to no option, and where such a word may be a value.
    others, maybe_values = 0, list[int]()
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
                advice = f'{word} "" is an empty list' if takes_names else "for none, leave it out"
                raise LineError(f"{word} needs at least one value; {advice}")
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
    """The option that may take the next word: the word, or the last letter of a cluster such as `-qf`. "" if none."""
    if word.startswith("--") or not word.startswith("-"):
        return word
    letters = [f"-{letter}" for letter in word[1:]]
    first_valued = next((at for at, letter in enumerate(letters) if letter in valued), len(letters) - 1)
    return letters[first_valued] if letters and first_valued == len(letters) - 1 else ""


_NO_OTHER = "see `ralph --help`"
_ELSEWHERE = {
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
    **dict.fromkeys(
        ("kill", "stop"), "Ctrl-C or `kill PID` to stop a loop, whose pid is in `ralph loop --status --json`"
    ),
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
    "log": "`ralph loop show`",
    "logs": "`ralph loop show`",
    "history": "`ralph loop ls`",
    "continue": "`ralph loop --continue`",
    "resume": "`ralph loop --continue`",
    "stop": "`kill PID` or Ctrl-C; the pid is in `ralph loop --status --json`",
    "run": "`ralph loop -f PROMPT.md`",
    "start": "`ralph loop -f PROMPT.md`",
}
"""Words after `ralph loop` that a user may take for commands. Each has the correct form as its value."""

_SAYS_PROMPT = ("-p", "--print")
_NAMES_SESSION = ("-c", "--continue", "-r", "--resume")

_LONE_WORD = r"[a-z][a-z-]*"

LEAST_ALIKE = 0.75
"""Two words of four letters, of which two are swapped or one is another."""
_BEFORE_PROMPT = 0.66
"""Two words of three letters, of which two are swapped or one is another."""


def refuse_command_word(arguments: Sequence[str]) -> None:
    """Raises UsageError if the user meant the first argument as a command."""
    instead = None if " " in arguments[0] else instead_of(arguments, COMMANDS)
    if instead is not None:
        raise UsageError(instead)


def refuse_lone_word(prompt: str | None, of_what: str, says_prompt: str) -> None:
    """Raises UsageError if the prompt is a lone word such as `deploy`. The error names `says_prompt`, which takes it as
    a prompt. Not to be called if an option or piped data says that it is one.
    """
    if prompt is not None and re.fullmatch(_LONE_WORD, prompt):
        raise UsageError(
            f"`{prompt}` is not a {of_what} command (to use it as a prompt: `{says_prompt} {prompt}`)"
        )


def instead_of(arguments: Sequence[str], commands: Sequence[str]) -> str | None:
    """The error message if the user probably meant the first argument as a command, although `commands` lacks it. None
    for a prompt.
    """
    word, *others = arguments
    if not re.fullmatch(r"[A-Za-z][A-Za-z_-]*", word) or any(one.startswith(_SAYS_PROMPT) for one in others):
        return None
    lower = word.lower()
    meant = _ELSEWHERE.get(lower)
    if meant is not None and any(one.startswith(_NAMES_SESSION) for one in others):
        return None  # in `ralph continue -c`, the word is the prompt for the session
    if meant is None:
        near = nearest(lower, commands, LEAST_ALIKE)
        meant = None if near is None else f"`ralph {near}`"
    if meant is None:
        return None
    instead = meant if meant.startswith(("see", "set")) else f"did you mean {meant}?"
    return f"`{word}` is not a ralph command: {instead} (to use it as a prompt: `ralph run {word}`)"


def meant_before_prompt(word: str) -> str:
    """The end of a message about a prompt without quotes: the command that its first word may be. Empty if that is none."""
    near = nearest(word, COMMANDS, _BEFORE_PROMPT)
    return "" if near is None else f", or did you mean `ralph {near}`?"


def instead_of_in_loop(word: str) -> str | None:
    """As `instead_of`, for the word behind `ralph loop`."""
    known = nearest(word.lower(), _IN_LOOP, LEAST_ALIKE)
    if known is None:
        return None
    return f"`{word}` is not a `ralph loop` command: did you mean {_IN_LOOP[known]}? (to use it as a prompt: `ralph loop -p {word}`)"


# --- Options of Claude Code and of other agents

NO_EFFECT = {
    "--verbose": "",
    "--allow-dangerously-skip-permissions": "",
    "--no-chrome": "",
    "--ide": "",
    "--brief": "",
    "--ax-screen-reader": "",
    "--forward-subagent-text": "",
    "--prompt-suggestions": "",
    "--exclude-dynamic-system-prompt-sections": "",
    "--system-prompt-snapshot": "on|off",
    "--autocompact": "auto|N",
}
"""The options without effect, each with the name of its value. docs/from-claude.md has the reasons."""

_NO_SUBAGENTS = "ralph has no subagents: put the instructions in the prompt or in --append-system-prompt"
_NO_PLUGINS = (
    "ralph has no plugins: copy the plugin's commands and skills into .claude/commands and .claude/skills"
)
_NO_CLOUD = "ralph runs only on this machine: `ralph loop` works unattended"
_ONE_MACHINE = "sessions stay on this machine: `ralph sessions ls` lists them, --resume ID resumes one"
_NO_WINDOW = "ralph has no remote control: `ralph loop --status` shows what a loop is doing"
_BACKGROUND = "let the shell start ralph in the background: nohup ralph ... </dev/null >out.json 2>log &"
_WORKTREE = "create the worktree with git, then run ralph in it: git worktree add DIR && ralph -C DIR ..."
_EFFORT = (
    "--effort sets how hard the model thinks, `thinking` in a [[targets]] entry whether it thinks at all"
)
_RESUME = (
    "ralph resumes a session only at its end: --fork-session resumes a copy and leaves the original as it is"
)

INSTEAD = {
    **dict.fromkeys(("--agent", "--agents"), _NO_SUBAGENTS),
    **dict.fromkeys(("--plugin-dir", "--plugin-dir-no-mcp", "--plugin-url"), _NO_PLUGINS),
    **dict.fromkeys(("--cloud", "--environment"), _NO_CLOUD),
    **dict.fromkeys(("--remote-control", "--remote-control-session-name-prefix"), _NO_WINDOW),
    **dict.fromkeys(("--teleport", "--desktop"), _ONE_MACHINE),
    **dict.fromkeys(("--bg", "--background"), _BACKGROUND),
    **dict.fromkeys(("--worktree", "-w"), _WORKTREE),
    **dict.fromkeys(("--thinking", "--thinking-display", "--max-thinking-tokens"), _EFFORT),
    **dict.fromkeys(("--resume-session-at", "--resume-drops-turn"), _RESUME),
    "--tmux": "start ralph in tmux: tmux new-session -d 'ralph ...'",
    "--chrome": "ralph does not control a browser: the model can run a headless one with Bash",
    "--from-pr": "ralph does not link sessions to pull requests: gh pr diff N | ralph -p 'review this'",
    "--file": "ralph downloads no files: download it yourself, and name its path in the prompt",
    "--task-budget": "--max-budget-usd, --max-turns and --max-time limit a task",
    "--channels": "ralph has no channels: a driver sends messages over standard input",
    "--initialize-fields": "use the options for settings and tools: --settings, --disallowedTools",
    "--managed-settings": "use --settings FILE, whose rules and hooks apply in addition to all others",
    "--managed-settings-in-initialize": "use --settings FILE, whose rules and hooks apply in addition to all others",
    "--project-config-root": "ralph reads the project files of its working directory: set it with -C DIR",
    "--session-mirror": "`ralph sessions export ID` prints a session, even while it is running",
    "--await-initialize": "not needed: with --input-format stream-json, ralph waits for the first message anyway",
}
"""One line for each refused option. The line says what to use instead, or why there is no replacement."""


_NOBODY_ASKS = "ralph never asks for permission and allows all tools: --tools, --permission-mode and --sandbox restrict them"
_IMAGE = "name the file in the prompt: the model sees the image when it reads the file"
_SESSION = "--resume ID resumes a session, and --continue the last one of this directory"
_OF_PEERS = {
    **dict.fromkeys(
        ("--yolo", "-y", "--yes", "--yes-always", "--auto", "--force", "--full-auto", "--approval-mode"),
        _NOBODY_ASKS,
    ),
    **dict.fromkeys(("--ask-for-approval", "-a", "--allow-all-tools", "--trust-all-tools"), _NOBODY_ASKS),
    "--dangerously-bypass-approvals-and-sandbox": f"{_NOBODY_ASKS}; --sandbox off",
    **dict.fromkeys(("--image", "-i"), _IMAGE),
    "-m": "--model NAME sets the model; the prompt needs no option",
    **dict.fromkeys(("--message", "--prompt", "--text", "--query"), "the prompt needs no option"),
    **dict.fromkeys(("--message-file", "--instructions"), "-f FILE reads the prompt from a file"),
    **dict.fromkeys(("--session", "-s", "--last"), _SESSION),
    **dict.fromkeys(
        ("--no-session", "--ephemeral"), "--no-session-persistence runs without saving a session"
    ),
    **dict.fromkeys(("--reasoning-effort", "--variant", "--thinking-budget"), _EFFORT),
    **dict.fromkeys(
        ("--json", "--mode", "-o"), "use --output-format json or stream-json for output that programs read"
    ),
    **dict.fromkeys(("--output-last-message", "--output"), "standard output contains only the final answer"),
    "--output-schema": "--json-schema requires a final report that matches a schema",
    **dict.fromkeys(
        ("--include-directories", "--dir", "--cwd"),
        "-C DIR sets the working directory, --add-dir DIR adds another",
    ),
    **dict.fromkeys(("--provider", "--oss"), "--api and --base-url select another server"),
    "--api-key": "set the key in the environment: ANTHROPIC_API_KEY",
    **dict.fromkeys(("--profile", "--config-file"), "--config FILE reads a settings file"),
    "--skip-git-repo-check": "ralph works in any directory",
    "--share": "ralph does not upload sessions: `ralph report` writes a page",
}


def instead_of_option(spelling: str) -> str | None:
    """The line about an option of Claude Code or another agent that a run of ralph lacks. None for any other option."""
    for owner, table in (("Claude Code", INSTEAD), ("other agents", _OF_PEERS)):
        if spelling in table:
            return f"{spelling} is an option of {owner} that ralph does not have: {table[spelling]}"
    return None
