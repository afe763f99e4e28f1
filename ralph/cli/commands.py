"""Lists ralph's commands with their lines in the help, and finds the command object for a name.

The module of a command is imported only when the command is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

INIT = "loop init"
"""`ralph loop init` as a single command for typer. `loop` cannot be a typer group, because a group takes its first
argument as a command and `loop` takes a prompt."""

_HELP = {
    "run": "Do one task, from a prompt to an outcome (the default).",
    "loop": "Do one task in fresh runs until a check passes: the outer loop.",
    "doctor": "Show the settings, where each comes from, and what works.",
    "demo": "Watch ralph work with a scripted model: no key, no network.",
    "mock-api": "Serve a scripted Messages API on 127.0.0.1.",
    "sessions": "Look at what earlier runs did.",
}
COMMANDS = tuple(_HELP)
_MODULES = {
    "run": ("run", "COMMAND"),
    "loop": ("loop", "COMMAND"),
    INIT: ("loop", "INIT_COMMAND"),
    "doctor": ("doctor", "COMMAND"),
    "demo": ("scripted", "DEMO"),
    "mock-api": ("scripted", "MOCK_API"),
    "sessions": ("sessions", "COMMAND"),
}
"""For each command: the name of its module in `ralph.cli`, and the name of the command object in that module."""


class Commands(TyperGroup):
    def list_commands(self, ctx: Context) -> list[str]:
        del ctx
        return [*COMMANDS]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        del ctx
        if cmd_name not in _MODULES:
            return None
        module, name = _MODULES[cmd_name]
        command: Command = getattr(import_module(f"ralph.cli.{module}"), name)
        return command

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(_HELP.items()))
