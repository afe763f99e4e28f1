"""Builds command lines for tests."""

# No `from __future__ import annotations` here: the options are read from the annotations.

from typing import Annotated

import typer
from msgspec import Struct


class ExampleLine(Struct, frozen=True):
    tools: Annotated[tuple[str, ...], typer.Option("--tools")] = ()
    places: Annotated[tuple[str, ...], typer.Option("--dir")] = ()
    model: Annotated[str, typer.Option("--model")] = ""
    file: Annotated[str, typer.Option("--file", "-f")] = ""
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False
    plain: Annotated[bool, typer.Option("--plain", "-p")] = False
