"""Builds command lines for tests."""

# No `from __future__ import annotations` here: the options are read from the annotations.

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ralph.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from typing import Annotated
else:
    from ralph.values.setting import Declared as Annotated


class ExampleLine(Struct, frozen=True):
    word: Annotated[str | None, Argument("A word.")] = None
    tools: Annotated[tuple[str, ...], Option("--tools --Tools", "Tools.", metavar="TOOLS...")] = ()
    places: Annotated[tuple[str, ...], Option("--dir", "Directories.")] = ()
    model: Annotated[str, Option("--model", "A model.")] = ""
    file: Annotated[str, Option("--file -f", "A file.")] = ""
    turns: Annotated[int | None, Option("--turns -n", "A number.")] = None
    price: Annotated[float | None, Option("--price", "A number.")] = None
    form: Annotated[Literal["text", "json"], Option("--form", "A form.")] = "text"
    quiet: Annotated[bool, Option("--quiet -q", "Quiet.")] = False
    plain: Annotated[bool, Option("--plain -p", "Plain.")] = False
    debug: Annotated[bool, Option("--debug -d", "Debug.", is_hidden=True, may_have_value=True)] = False
