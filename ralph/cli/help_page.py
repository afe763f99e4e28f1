"""The help page of a `LineCommand`, in the form of a typer command. The page is made from the same parameters by
which the command line is read. typer does the layout.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal

import typer
from msgspec import NODEFAULT
from msgspec.structs import fields
from typer.core import TyperCommand
from typer.main import get_click_param
from typer.models import ParamMeta

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter
    from typer._click import Parameter as TyperParameter

    from ralph.cli.line_command import LineCommand
    from ralph.cli.parameters import Parameter


class HelpPage(TyperCommand):
    """A typer command that can only show its help. ralph itself reads the command line."""

    def __init__(self, command: LineCommand) -> None:
        super().__init__(
            command.name, help=inspect.getdoc(command.call), epilog=command.epilog, rich_markup_mode=None
        )
        self._options: dict[str, list[TyperParameter]] = {}
        """The options that the page lists, by the titles of their sections."""
        for section, parameters in zip(command.sections, command.parameters(), strict=True):
            defaults = {one.name: one.default for one in fields(section.line) if one.default is not NODEFAULT}
            made = [_typer_parameter(one, defaults.get(one.field)) for one in parameters]
            self.params += [one for one in made if one.name not in section.unlisted]
            self._options[section.title] = [one for one in made if one.name not in section.unlisted]

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Writes the arguments, and the options in sections. typer itself would write one section."""
        first, *_ = self._options
        help_option = self.get_help_option(ctx)
        for title, own in {"Arguments": self.params, **self._options}.items():
            kind = "argument" if title == "Arguments" else "option"
            listed = [one for one in own if one.param_type_name == kind]
            if title == first and help_option is not None:
                listed.append(help_option)
            rows = [row for one in listed if (row := one.get_help_record(ctx))]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _typer_parameter(parameter: Parameter, default: object) -> TyperParameter:
    kind: Any = parameter.kind
    if parameter.choices:
        kind = Literal[parameter.choices]
    elif parameter.is_list:
        kind = list[str]
    if parameter.spellings:
        spellings = [*parameter.spellings]
        if parameter.negation is not None:
            spellings[0] += f"/{parameter.negation}"
        row = typer.Option(
            None, *spellings, metavar=parameter.metavar, help=parameter.help, hidden=parameter.is_hidden
        )
    else:
        row = typer.Argument(None, help=parameter.help, show_default=False)
    row.default = default
    made, _ = get_click_param(ParamMeta(name=parameter.name, default=row, annotation=kind))
    return made
