"""Lists ralph's commands, each with its line in the help.

The errors of the command line are defined here too. Each leads to one line on standard error and an exit code. The
most common error, `UsageError`, is defined elsewhere, because all packages use it.
"""

from __future__ import annotations

from ralph.values.outcome import UsageError

IN_LOOP = ("init", "ls", "show")
"""The commands after `ralph loop`. `ralph loop init` is treated as a single command. `loop` cannot be a group of
commands, because a group takes its first argument as the name of a command, while `loop` takes a prompt."""

HELP_LINES = {
    "run": "Do one task, from a prompt to an outcome (the default).",
    "loop": "Do one task in fresh runs until a check passes: the outer loop.",
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
    """The words of a command line do not fit the command's parameters. The help of the command lists these
    parameters.
    """

    def __init__(self, message: str, command: str | None = None) -> None:
        super().__init__(message)
        self.command = command
        """The command with this help, such as `fleet submit`. None if the first word names it."""


def wrong_value(option: str, problem: str) -> LineError:
    """Makes the error about a wrong value of an option. `problem` says what is wrong."""
    return LineError(f"Invalid value for {option}: {problem}")
