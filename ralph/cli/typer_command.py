"""Makes typer's commands, and runs the one that a command line names. Only this command's module is imported."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from ralph.cli.command_words import ROOT_HELP, LineError, instead_of_option, meant_before_prompt, wrong_value
from ralph.cli.shell.answer import table
from ralph.machine.loading import begin_garbage_collection
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULES = {
    "run": ("run", "COMMAND"),
    "loop": ("loop", "COMMAND"),
    "loop init": ("loop_records", "INIT"),
    "loop ls": ("loop_records", "LIST"),
    "loop show": ("loop_records", "SHOW"),
    "doctor": ("doctor", "COMMAND"),
    "demo": ("scripted", "DEMO"),
    "mock-api": ("scripted", "MOCK_API"),
    "sessions": ("sessions", "COMMAND"),
    "report": ("loop_records", "REPORT"),
    "fleet": ("fleet", "COMMAND"),
    "help": ("help_pages", "COMMAND"),
    "completion": ("help_pages", "COMPLETION"),
}
"""For each command, two names: the module in `ralph.cli`, and the command object in this module."""
HELP_OPTIONS = ["-h", "--help"]
_MOST_OWNERS = 2
_PLAIN = (("is not a valid int", "is not a whole number"), ("is not a valid float", "is not a number"))
_FIRST_WORD = {"run": "prompt", "loop": "prompt", "report": "what", "help": "topic"}
"""The argument that the first word of a prompt becomes that is not quoted, by command."""


def option(
    says: str,
    metavar: str | None = None,
    spelled: str = "",
    *,
    reads: Callable[[str], object] | None = None,
    default: object = ...,
    **more: Any,
) -> Any:
    """Annotates a parameter, or a field of a Struct, that is set by an option. If `metavar`, the name of the value in the
    help, ends with `...`, an option of a `SettingsCommand` takes all words up to the next option. `spelled` has further
    spellings of the option; if one of them is long, the parameter's name is none. `reads` makes the value of a word, and
    raises ValueError with what is wrong. An option whose value is a path refuses an empty one, which would mean the
    current directory. `more` is as for `typer.Option`.
    """
    info: Any = typer.Option(default, help=says, metavar=metavar, **more)
    info.param_decls = tuple(spelled.split())
    info.is_path = not {"PATH", "FILE", "DIR"}.isdisjoint((metavar or "").split("|"))
    info.reads = reads or (str if info.is_path else None)
    return info


def spell(info: Any, name: str) -> None:
    """Gives the annotation of an option what follows from the name of its parameter: its spelling, and a parser whose errors
    name it.
    """
    if not hasattr(info, "reads"):  # an argument
        return
    if not any(one.startswith("--") for one in info.param_decls):
        info.param_decls = (f"--{name.strip('_').replace('_', '-')}", *info.param_decls)
    spelling, reads = info.param_decls[0], info.reads

    def parser(text: str) -> Any:
        if info.is_path and not text.strip():
            raise wrong_value(spelling, "is empty: give it a value, or leave it out")
        try:
            return reads(text)
        except ValueError as error:
            raise UsageError(f"{spelling} {error}") from None

    info.parser = reads and parser


def command_names() -> tuple[str, ...]:
    return tuple(_MODULES)


def named_command(name: str) -> Any:
    module, attribute = _MODULES[name]
    return getattr(import_module(f"ralph.cli.{module}"), attribute)


def typer_command(name: str, function: Callable[..., int], *, epilog: str | None = None) -> Any:
    """Makes a command whose options are the parameters of `function`. `function` returns the exit code."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, epilog=epilog)(function)
    return made(app)


def command_group(name: str, says: str) -> typer.Typer:
    """A group of commands, which shows its help if it is called alone."""
    group = typer.Typer(name=name, help=says, add_completion=False, rich_markup_mode=None)

    @group.callback(invoke_without_command=True)
    def help_alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group


def made(app: typer.Typer) -> Any:
    """The command, or the group of commands, with the parameters of its functions as options."""
    for command in app.registered_commands:
        assert command.callback is not None  # noqa: S101 - every command has its function
        for name, parameter in inspect.signature(command.callback).parameters.items():
            for info in getattr(parameter.annotation, "__metadata__", ()):
                spell(info, name)
    return get_command(app)


def run_command(name: str, command: Any, words: list[str], *, is_command_inserted: bool) -> int:
    """Runs the command or shows its help, and returns the exit code. Raises UsageError if the words do not fit."""
    if name != "run":  # which still imports many modules, and begins garbage collection itself
        begin_garbage_collection()
    try:
        code = command.main(
            args=words,
            prog_name=f"ralph {name}",
            standalone_mode=False,
            help_option_names=HELP_OPTIONS,
            obj=is_command_inserted,
        )
    except TyperException as error:
        raise line_error(error, name) from None
    except SystemExit:
        return 0  # typer raises it if the reader of its help has closed the pipe
    return code if isinstance(code, int) else 0


def line_error(error: Any, command: str) -> UsageError:
    """The error about a command line that does not fit the parameters of `command`, made from typer's."""
    context = getattr(error, "ctx", None)
    path = command if context is None else context.command_path.removeprefix("ralph ")
    if hasattr(error, "possibilities"):  # an unknown option
        spelling = error.option_name
        instead = instead_of_option(spelling)
        owners = dict.fromkeys(row.command for row in table() if row.command and spelling in row.words)
        if instead is not None and (path in {"run", "loop"} or not owners):
            return UsageError(instead)
        if owners and spelling not in ROOT_HELP:
            nearest = sorted(owners, key=lambda owner: owner.split()[0] != path.split()[0])
            named = " and ".join(f"`ralph {owner}`" for owner in nearest[:_MOST_OWNERS])
            return LineError(f"{spelling} is an option of {named}, not of `ralph {path}`", nearest[0])
        hidden = {word for one in error.ctx.command.params if one.hidden for word in one.opts}
        error.possibilities = [word for word in error.possibilities or () if word not in hidden]
    message = error.format_message()
    first = None if context is None else context.params.get(_FIRST_WORD.get(path))
    if first is not None and (others := re.fullmatch(r"Got unexpected extra argument\S* \((.*)\)", message)):
        before, begins = {"loop": ("loop ", ""), "report": ("", "report "), "help": ("", "help ")}.get(
            path, ("", "")
        )
        meant = meant_before_prompt(first) if path == "run" else ""
        return LineError(
            f'put the prompt in quotes: ralph {before}"{begins}{first} {others[1]}"{meant}', path
        )
    for technical, plain in _PLAIN:
        message = message.replace(technical, plain)
    return LineError(message, path)
