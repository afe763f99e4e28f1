"""Parses the command line, hands over to a command, and turns errors into one line and an exit code."""

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from ralph.cli.commands import COMMANDS, INIT, Commands
from ralph.cli.values import CannotError
from ralph.values.outcome import Outcome, UsageError
from ralph.values.shortage import ShortageError, line_with_advice, shortage_of

app = typer.Typer(
    name="ralph",
    cls=Commands,
    help=(
        "Run a language-model agent in a directory, with nobody watching.\n\n"
        'ralph "fix the failing test" is short for ralph run "fix the failing test". '
        "ralph run --help lists the options; ralph demo shows how ralph works, without a key or a network."
    ),
    epilog=(
        "Exit codes: 0 completed, 1 task failed by its report, 2 usage, 3 limit reached, 4 no progress, 69 API rejected, 70 bug, "
        "74 input/output, 75 API unavailable (try later), 77 authentication, 78 configuration, 124 time limit, "
        "128+n signal n."
    ),
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def run_cli(arguments: list[str]) -> int:
    """Runs the command that the arguments name. Returns the exit code."""
    try:
        given, arguments = arguments, _with_command(arguments)
        is_command_inserted = len(arguments) > len(given)
        code = get_command(app).main(
            args=arguments, prog_name="ralph", standalone_mode=False, obj=is_command_inserted
        )
    except UsageError as error:
        return _complain(str(error), Outcome.USAGE.exit_code())
    except TyperException as error:
        command = arguments[0]
        hint = "see `ralph --help`" if command.startswith("-") else f"see `ralph {command} --help`"
        return _complain(f"{error.format_message().rstrip('.')} ({hint})", Outcome.USAGE.exit_code())
    except CannotError as error:
        return _complain(str(error), error.outcome.exit_code())
    except SystemExit:
        return 0  # typer raises it if the reader of its help has closed the pipe
    except (OSError, MemoryError, ImportError, RuntimeError) as error:
        shortage = shortage_of(error)
        if shortage is not None:
            return _complain_of(shortage)
        if not isinstance(error, OSError):
            raise
        return _complain(f"cannot write: {error.strerror}", Outcome.IO_ERROR.exit_code())
    return code if isinstance(code, int) else 0


def _with_command(arguments: list[str]) -> list[str]:
    """The arguments with a command in the first place. If the user named no command, it is `run`.

    Raises UsageError if the first argument is a mistyped command.
    """
    if arguments[:2] == INIT.split():
        return [INIT, *arguments[2:]]
    if arguments and arguments[0] in (*COMMANDS, "-h", "--help", "--version"):
        return arguments
    if arguments and not arguments[0].startswith("-"):
        from ralph.cli.command_words import refuse_command_word  # noqa: PLC0415 - most prompts follow `ralph run`

        refuse_command_word(arguments)
    return ["run", *arguments]


def _complain(message: str, code: int) -> int:
    """Writes the message to standard error as one line, and returns `code`.

    The message may quote an API key that the user typed in the wrong place, so known credentials are redacted.
    """
    from ralph.values.credentials import known_secrets  # noqa: PLC0415 - not needed when all is well
    from ralph.values.redaction import Redactor  # noqa: PLC0415 - not needed when all is well
    from ralph.values.screen_text import in_one_line  # noqa: PLC0415 - not needed when all is well

    line = " ".join(in_one_line(message).split())
    with suppress(BrokenPipeError):  # the reader has closed standard error
        sys.stderr.write(f"ralph: {Redactor(known_secrets(os.environ)).redact_all(line)}\n")
    return code


def _complain_of(shortage: ShortageError) -> int:
    """Writes one line about the shortage to standard error, and returns the exit code.

    It imports no module, because an import may fail while the machine is short of memory or descriptors.
    """
    with suppress(OSError):
        os.write(2, f"ralph: {line_with_advice(shortage)}\n".encode())
    return Outcome.API_UNAVAILABLE.exit_code()


@app.callback()
def _root(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from ralph import __version__  # noqa: PLC0415 - only --version needs it

        typer.echo(f"ralph {__version__}")
        raise typer.Exit
