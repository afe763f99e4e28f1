"""Makes typer's commands, runs the one that a command line names, and converts its words to values. Only this command's module
is imported. An error names the option, and says so if a list option probably took the prompt as one of its values, as in
`ralph --tools Read "a task"`.
"""

from __future__ import annotations

import inspect
import re
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from ralph.cli.command_line import ROOT_HELP, LineError, instead_of_option, meant_before_prompt, wrong_value
from ralph.cli.shell.answer import table
from ralph.machine.loading import begin_garbage_collection
from ralph.machine.process_start import is_piped
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.ports import WORKING_DIRECTORY_GONE
from ralph.values.setting import at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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


# --- Words to values

COUNT = partial(at_least(1).decoded, is_text=True)


def absolute(path: str | None) -> str | None:
    """A relative path is relative to where ralph was called, not to `--cd`. `-` (standard input) is not changed."""
    if path is None or path == "-":
        return path
    try:
        return str(Path.cwd() / path)
    except FileNotFoundError:  # the working directory is gone; the run reports that
        return path


def json_or_path(text: str | None) -> str | None:
    """Makes a path absolute. JSON text is returned unchanged."""
    return text if text is None or text.lstrip().startswith("{") else absolute(text)


def working_directory(directory: str | None) -> Path:
    """The working directory, absolute and without links: the value of `--cd`, or for None where ralph was called.
    Raises LineError if `directory` does not exist, and CannotError if ralph was called in one that is gone.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise CannotError(WORKING_DIRECTORY_GONE, Outcome.IO_ERROR) from None
    if directory is not None:
        (directory,) = directories("--cd", (directory,))
    return (here / (directory or "")).resolve()


def directories(option: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The directories in the words, as absolute paths. A word may have several, separated by commas or spaces. Raises
    LineError for one that does not exist.
    """
    paths = [path for word in words for path in _directories_in(word)]
    for path in paths:
        if not path:  # `Path("")` would mean the current directory
            raise wrong_value(option, "is empty: name a directory, or for none, leave it out")
        if not Path(path).is_dir():
            problem = "is not a directory" if Path(path).exists() else "does not exist"
            raise wrong_value(option, f"{path} {problem}")
    return tuple(str(absolute(path)) for path in paths)


def _directories_in(word: str) -> list[str]:
    if Path(word).is_dir():
        return [word]
    for parts in (word.split(","), word.split()):
        if len(parts) > 1 and all(Path(part).is_dir() for part in parts if part):
            return [part for part in parts if part]
    return [word]


def existing_directory(text: str) -> str:
    """Reads the name of a directory that a command looks into. Raises ValueError if there is nothing of that name."""
    if not Path(text).exists():
        raise ValueError(f"{text} does not exist")
    return text


def run_directories(directory: str | None, writable: Sequence[str] = ()) -> tuple[str, ...]:
    """The directory where ralph was called, that of `--cd` and those of `--add-dir`, as absolute paths. Links in them
    are not trusted: they may come from the repository or a command.
    """
    here = str(absolute(""))
    return (here, str(absolute(directory or "")), *writable)


def refuse_file_as_prompt(prompt: str | None, command: str = "ralph") -> None:
    """Raises UsageError (advice: `COMMAND -f`) if the prompt is the name of a text file: its text was meant."""
    if prompt is None or not prompt.endswith((".md", ".txt")) or len(prompt.split()) != 1:
        return
    try:
        is_file = Path(prompt).is_file()
    except (OSError, ValueError):  # no name that a file can have
        return
    if is_file:
        raise UsageError(
            f"`{prompt}` is a file: did you mean `{command} -f {prompt}`? (`echo {prompt} | {command} -` uses the name as the prompt)"
        )


@contextmanager
def prompt_not_in_list(last_list: str | None, *, has_prompt: bool) -> Iterator[None]:
    """A context manager that adds to each UsageError the advice to put the prompt elsewhere.

    `last_list` is the list option that takes all words up to the end of the line. Without it, or with `has_prompt`,
    errors are unchanged. Otherwise, if standard input cannot contain the prompt either, raises UsageError at once.
    """
    if has_prompt or last_list is None:
        yield
        return
    advice = f"{last_list} takes all words up to the next option: put the prompt before it, or after --"
    if not is_piped():
        raise UsageError(f"no prompt: {advice}")
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{error} ({advice})") from None
