"""The small commands, whose command lines typer parses. All other commands do not need typer."""

from __future__ import annotations

import shutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from ralph.cli.commands import LineError
from ralph.machine.loading import begin_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer._click import Command

_MODULES = {
    "loop init": ("loop_init", "COMMAND"),
    "loop ls": ("loop_history", "LIST"),
    "loop show": ("loop_history", "SHOW"),
    "demo": ("scripted", "DEMO"),
    "mock-api": ("scripted", "MOCK_API"),
    "fleet": ("fleet", "COMMAND"),
    "report": ("report", "COMMAND"),
    "sessions": ("sessions", "COMMAND"),
}
"""For each small command, two names: the module in `ralph.cli`, and the command object in this module."""
HELP_OPTIONS = ["-h", "--help"]
_FEWEST_COLUMNS, _TYPER_FITS_FROM = 24, 52
"""Terminals with a width between these numbers of columns need a narrower help page than typer makes."""


def typer_command(name: str, function: Callable[..., int]) -> Command:
    """Makes a command whose options are the parameters of `function`. `function` returns the exit code."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(function)
    return get_command(app)


def small_commands() -> tuple[str, ...]:
    """The names of the commands whose command lines typer parses."""
    return tuple(_MODULES)


def named_command(name: str) -> Command:
    """The small command with this name."""
    module, attribute = _MODULES[name]
    command: Command = getattr(import_module(f"ralph.cli.{module}"), attribute)
    return command


def run_typer_command(name: str, words: list[str]) -> int:
    """Runs the small command with this name, or shows its help. Returns the exit code. Raises LineError if the words
    do not fit the command's parameters.
    """
    command = named_command(name)
    begin_garbage_collection()
    columns = shutil.get_terminal_size().columns
    narrow: dict[str, Any] = (
        {"terminal_width": columns - 2} if _FEWEST_COLUMNS <= columns < _TYPER_FITS_FROM else {}
    )
    try:
        code = command.main(
            args=words,
            prog_name=f"ralph {name}",
            standalone_mode=False,
            help_option_names=HELP_OPTIONS,
            **narrow,
        )
    except TyperException as error:
        context = getattr(error, "ctx", None)
        path = f"ralph {name}" if context is None else context.command_path
        raise LineError(error.format_message(), path.removeprefix("ralph ")) from None
    except SystemExit:
        return 0  # typer raises it if the reader of its help has closed the pipe
    return code if isinstance(code, int) else 0
