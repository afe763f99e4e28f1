"""Lists ralph's commands with their parameters, in one form for all of them. The table of the shells' completion and
the man page are made from this list.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import NODEFAULT
from msgspec.structs import fields

from ralph.cli.commands import HELP_LINES, line_command
from ralph.cli.parameters import HELP, Parameter
from ralph.cli.typer_command import named_command, small_commands

if TYPE_CHECKING:
    from collections.abc import Iterator


class ShownCommand(NamedTuple):
    name: str
    """The words of the command, such as `sessions ls`."""
    line: str
    """The command's line in a list of commands."""
    text: str
    """The description in the command's help: paragraphs, separated by empty lines."""
    sections: list[tuple[str, list[Parameter]]]
    """Titles with parameters, without those that the help does not show."""
    defaults: dict[str, Any]
    """Defaults worth showing, by the name of the parameter."""
    is_group: bool = False

    @property
    def parameters(self) -> list[Parameter]:
        return [one for _, parameters in self.sections for one in parameters]


def commands() -> list[ShownCommand]:
    """All commands in the order of `ralph --help`. A subcommand follows its command."""
    found: list[ShownCommand] = []
    small = small_commands()
    for name, line in HELP_LINES.items():
        if name in small:
            found += _of_typer(name, line)
        else:
            found.append(_of_line_command(name, line))
        found += [one for other in small if other.startswith(f"{name} ") for one in _of_typer(other)]
    return found


def _of_line_command(name: str, line: str) -> ShownCommand:
    command = line_command(name)
    assert command is not None, name
    sections: list[tuple[str, list[Parameter]]] = []
    defaults: dict[str, Any] = {}
    for section, parameters in zip(command.sections, command.parameters(), strict=True):
        shown = [one for one in parameters if one.name not in section.unlisted and not one.is_hidden]
        sections.append((section.title, [*shown, *([] if sections else [HELP])]))
        of_fields = {one.name: one.default for one in fields(section.line) if one.default is not NODEFAULT}
        defaults |= {one.name: of_fields[one.field] for one in shown if of_fields.get(one.field)}
    return ShownCommand(name, line, inspect.cleandoc(command.call.__doc__ or ""), sections, defaults)


def _of_typer(name: str, line: str | None = None) -> Iterator[ShownCommand]:
    yield from _of_typer_command(name, named_command(name), line)


def _of_typer_command(name: str, command: Any, line: str | None = None) -> Iterator[ShownCommand]:
    parameters = [_parameter(one) for one in command.params if not getattr(one, "hidden", False)]
    defaults = {
        one.name: getattr(one.default, "value", one.default)
        for one in command.params
        if one.default and isinstance(one.default, str | int | float) and one.show_default
    }
    inner = getattr(command, "commands", {})
    yield ShownCommand(
        name,
        line or command.get_short_help_str(limit=200),
        inspect.cleandoc(command.help or "").replace("\f", ""),
        [("Options", [*parameters, HELP])],
        defaults,
        is_group=bool(inner),
    )
    for word, one in inner.items():
        yield from _of_typer_command(f"{name} {word}", one)


def _parameter(one: Any) -> Parameter:
    is_option = one.param_type_name == "option"
    return Parameter(
        name=one.name,
        field=one.name,
        spellings=tuple(one.opts) if is_option else (),
        negation=one.secondary_opts[0] if is_option and one.secondary_opts else None,
        kind=bool if is_option and one.is_flag else str,
        choices=tuple(getattr(one.type, "choices", ())),
        is_list=one.multiple if is_option else False,
        help=one.help or "",
        metavar=one.metavar or (None if is_option else one.name.upper()),
    )
