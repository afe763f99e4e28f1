"""The commands `ralph loop ls` and `ralph loop show`, which look at recorded loops."""

# No `from __future__ import annotations` here: typer reads the annotations.

from typing import Annotated, Literal

import typer

from ralph.cli.typer_command import option, typer_command
from ralph.cli.values import working_directory

Directory = Annotated[str | None, option("Look at the loops of this directory.", "DIR", "--cd -C")]


def ls(
    *,
    all_: Annotated[
        bool, option("List the loops of all directories, with their directories.", spelled="-a")
    ] = False,
    format_: Annotated[Literal["text", "json"], option("text: one line per loop. json: one list.")] = "text",
    directory: Directory = None,
) -> int:
    """List the loops of this directory, the newest first: id, begin, outcome, iterations, cost, task.

    The outcome is running for a loop that runs, and stopped for a loop that was killed.
    """
    from ralph.loop.history import list_loops  # noqa: PLC0415 - not needed for --help

    return list_loops(working_directory(directory), of_all=all_, is_json=format_ == "json")


def show(
    number: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The number of the loop. Default: the newest.")
    ] = None,
    *,
    log: Annotated[bool, option("Print the loop's log instead.")] = False,
    directory: Directory = None,
) -> int:
    """Show the story of one loop of this directory: its state, iterations, checks, and where its log is."""
    from ralph.loop.history import show_loop  # noqa: PLC0415 - not needed for --help

    return show_loop(working_directory(directory), number, prints_log=log)


LIST = typer_command("loop ls", ls)
SHOW = typer_command("loop show", show)
