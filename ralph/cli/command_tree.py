"""The tree of ralph's commands for typer, which reads the command lines of the small commands and shows all help
pages.

`ralph run`, `ralph loop` and `ralph doctor` do not import this module, unless the user asks for their help:
`line_reader.py` reads their command lines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from ralph.cli.commands import COMMANDS, HELP_LINES, INIT, line_command
from ralph.cli.errors import LineError
from ralph.machine.garbage import begin_garbage_collection

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

_MODULES = {
    INIT: ("loop_init", "COMMAND"),
    "demo": ("scripted", "DEMO"),
    "mock-api": ("scripted", "MOCK_API"),
    "sessions": ("sessions", "COMMAND"),
}
"""For each command that typer reads: the name of its module in `ralph.cli`, and the name of the command object in that
module."""


class Commands(TyperGroup):
    def list_commands(self, ctx: Context) -> list[str]:
        del ctx
        return [*COMMANDS]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        del ctx
        own = line_command(cmd_name)
        if own is not None:
            from ralph.cli.help_page import HelpPage  # noqa: PLC0415 - only for the help of these commands

            return HelpPage(own)
        if cmd_name not in _MODULES:
            return None
        module, name = _MODULES[cmd_name]
        command: Command = getattr(import_module(f"ralph.cli.{module}"), name)
        return command

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(HELP_LINES.items()))


app = typer.Typer(
    name="ralph",
    cls=Commands,
    help=(
        "Run a language-model agent in a directory, with nobody watching.\n\n"
        'ralph "fix the failing test" is short for ralph run "fix the failing test". '
        "ralph run --help lists the options; ralph demo shows how ralph works, without a key or a network."
    ),
    epilog=(
        "Exit codes: 0 completed, 1 task failed by its report, 2 usage, 3 limit reached, 4 no progress, 69 API rejected, 70 bug, "
        "74 input/output, 75 API unavailable (try later), 77 authentication, 78 configuration, 124 time limit, "
        "128+n signal n."
    ),
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from ralph import __version__  # noqa: PLC0415 - only --version needs it

        typer.echo(f"ralph {__version__}")
        raise typer.Exit
    begin_garbage_collection()


def run_tree(arguments: list[str]) -> int:
    """Runs the command that the arguments name, or shows its help. Returns the exit code.

    Raises LineError if the arguments do not fit the command's parameters.
    """
    try:
        code = get_command(app).main(args=arguments, prog_name="ralph", standalone_mode=False)
    except TyperException as error:
        raise LineError(error.format_message()) from None
    except SystemExit:
        return 0  # typer raises it if the reader of its help has closed the pipe
    return code if isinstance(code, int) else 0
