"""Lists ralph's commands with typer's parameters. The table of the shells' completion and the man page are made from
this list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ralph.cli.command_line import HELP_LINES
from ralph.cli.settings_command import SettingsCommand
from ralph.cli.typer_command import HELP_OPTIONS, command_names, named_command

if TYPE_CHECKING:
    from collections.abc import Iterator


class ShownCommand(NamedTuple):
    name: str
    """The words of the command, such as `sessions ls`."""
    line: str
    """The command's line in a list of commands."""
    context: Any
    """typer's context of the command."""
    parameters: list[Any]
    """typer's parameters, without those that the help does not show."""

    @property
    def command(self) -> Any:
        return self.context.command

    @property
    def is_group(self) -> bool:
        return hasattr(self.command, "commands")

    @property
    def own_parameters(self) -> list[Any]:
        """The parameters without those that a loop passes to `ralph run`."""
        if not isinstance(self.command, SettingsCommand) or len(self.command.lines) == 1:
            return self.parameters
        own = (*self.command.lines[0].__struct_fields__, "help")
        return [one for one in self.parameters if one.name in own]


def commands() -> list[ShownCommand]:
    """All commands in the order of `ralph --help`. A subcommand follows its command."""
    names = sorted(command_names(), key=lambda name: [*HELP_LINES].index(name.partition(" ")[0]))
    return [one for name in names for one in _shown(name, named_command(name), HELP_LINES.get(name))]


def _shown(name: str, command: Any, line: str | None = None) -> Iterator[ShownCommand]:
    context = command.context_class(command, info_name=f"ralph {name}", help_option_names=HELP_OPTIONS)
    parameters = [one for one in command.get_params(context) if not one.hidden]
    yield ShownCommand(name, line or command.get_short_help_str(limit=200), context, parameters)
    for word, one in getattr(command, "commands", {}).items():
        yield from _shown(f"{name} {word}", one)
