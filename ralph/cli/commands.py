"""The commands by name, each with its line in the help. A command's module is imported when that command is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

INIT = "loop init"
"""One command to typer: `loop` takes a prompt where a group would take the name of a command."""

_SHOWN = {
    "run": ("run", "COMMAND", "Do one task, from a prompt to an outcome (the default)."),
    "loop": ("loop", "COMMAND", "The outer loop: fresh runs until a check passes."),
    "doctor": ("doctor", "COMMAND", "What is set, where that comes from, and what works."),
    "demo": ("scripted", "DEMO", "Watch it work: no key, no network, a scripted model."),
    "mock-api": ("scripted", "MOCK_API", "Serve a scripted Messages API on 127.0.0.1."),
    "sessions": ("sessions", "COMMAND", "Look at what earlier runs did."),
}
"""Module beside this one, name in it, help. The order is that of the help."""
COMMANDS = tuple(_SHOWN)


class Commands(TyperGroup):
    def list_commands(self, ctx: Context) -> list[str]:
        del ctx
        return [*COMMANDS]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        del ctx
        module, name = ("loop", "INIT_COMMAND") if cmd_name == INIT else _SHOWN[cmd_name][:2]
        command: Command = getattr(import_module(f"ralph.cli.{module}"), name)
        return command

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _SHOWN.items()])
