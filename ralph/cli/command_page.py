"""Makes the help page of a `LineCommand` from its parameters. No I/O happens here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import NODEFAULT
from msgspec.structs import fields

from ralph.cli.help_page import HELP_ROW, help_page

if TYPE_CHECKING:
    from ralph.cli.line_command import LineCommand
    from ralph.cli.parameters import Parameter


def command_page(command: LineCommand, columns: int) -> str:
    """The help page for a terminal that is `columns` wide. It lists the arguments first, then the sections with the
    options.
    """
    arguments: list[Parameter] = []
    options: dict[str, list[tuple[str, str]]] = {}
    for section, parameters in zip(command.sections, command.parameters(), strict=True):
        defaults = {one.name: one.default for one in fields(section.line) if one.default is not NODEFAULT}
        listed = [one for one in parameters if one.name not in section.unlisted and not one.is_hidden]
        arguments += [one for one in listed if not one.spellings]
        rows = [parameter_row(one, defaults.get(one.field)) for one in listed if one.spellings]
        options[section.title] = rows if options else [*rows, HELP_ROW]
    usage = " ".join([f"ralph {command.name} [OPTIONS]", *(f"[{one.name}]" for one in arguments)])
    return help_page(
        usage,
        command.call.__doc__ or "",
        {"Arguments": [(one.name, one.help) for one in arguments], **options},
        command.epilog or "",
        columns=columns,
    )


def parameter_row(option: Parameter, default: object) -> tuple[str, str]:
    """The name of an option with its value, and its meaning with its default."""
    # Short spellings come first.
    name = ", ".join(sorted(option.spellings, key=lambda spelling: spelling.startswith("--")))
    if option.kind is not bool or option.is_list:
        choices = f"<{'|'.join(option.choices)}>" if option.choices else "VALUE"
        name = f"{name} {option.metavar or choices}"
    elif option.negation is not None:
        name = f"{name} / {option.negation}"
    # A default of False, of an empty text or of an empty list says nothing.
    return name, f"{option.help}  [default: {default}]" if default else option.help
