"""Makes a command of typer from a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from typer.main import get_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer._click import Command


def typer_command(name: str, function: Callable[..., int]) -> Command:
    """The command whose options are the parameters of the function. The function returns the exit code."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(function)
    return get_command(app)
