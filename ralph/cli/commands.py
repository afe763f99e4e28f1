"""The commands by name, each with its line in the help. A command's module is imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

INIT = "loop init"
"""One command for typer: `loop` takes a prompt where a group would take the name of a command."""

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
"""The module of each command in this room, and the command's name in it."""


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
