"""Parses the command line, runs the command, and turns an error into one line and an exit code."""

import errno
import os
import sys
from contextlib import suppress

from ralph.cli.command_words import ROOT_HELP, LineError, with_command
from ralph.machine.loading import load_typer, load_without
from ralph.machine.process_start import why_too_few_descriptors
from ralph.values.outcome import (
    CannotError,
    Outcome,
    ShortageError,
    UsageError,
    line_with_advice,
    shortage_of,
)


def run_cli(arguments: list[str]) -> int:
    """Runs the command that the arguments name. Returns the exit code."""
    try:
        given, arguments = arguments, with_command(arguments)
        name, *words = arguments
        if name in ROOT_HELP:
            return _show_help()
        # msgspec takes what it needs from `typing` then. typing_extensions is larger than all of msgspec's own modules.
        with load_without("typing_extensions"):
            load_typer()
            from ralph.cli.typer_command import named_command, run_command  # noqa: PLC0415 - the help does without typer

            command = named_command(name)
        return run_command(name, command, words, is_command_inserted=len(arguments) > len(given))
    except LineError as error:
        command = error.command or arguments[0]
        hint = "see `ralph --help`" if command.startswith("-") else f"see `ralph {command} --help`"
        return _complain(f"{str(error).rstrip('.')} ({hint})", Outcome.USAGE.exit_code())
    except UsageError as error:
        return _complain(str(error), Outcome.USAGE.exit_code())
    except CannotError as error:
        return _complain(str(error), error.outcome.exit_code())
    except (OSError, MemoryError, ImportError, RuntimeError) as error:
        shortage = shortage_of(error)
        if shortage is not None:
            return _complain_of(shortage)
        if not isinstance(error, OSError):
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        why = "standard output is closed" if error.errno == errno.EBADF else error.strerror
        return _complain(f"cannot write: {where}{why}", Outcome.IO_ERROR.exit_code())


def _show_help() -> int:
    """`make generated` has made the page. Raises OSError if standard output cannot be written."""
    with open(os.path.join(os.path.dirname(__file__), "help.txt"), encoding="utf-8") as page:  # noqa: PTH118, PTH120, PTH123 - `pathlib` takes long to load
        text = page.read()
    with suppress(BrokenPipeError):  # the reader has seen enough
        sys.stdout.write(text)
        sys.stdout.flush()
    return Outcome.COMPLETED.exit_code()


def _complain(message: str, code: int) -> int:
    """Writes the message to standard error as one line, and returns `code`."""
    from ralph.values.redaction import line_without_secrets  # noqa: PLC0415 - not needed when all is well

    with suppress(BrokenPipeError):  # the reader has closed standard error
        sys.stderr.write(f"ralph: {line_without_secrets(message, os.environ)}\n")
    return code


def _complain_of(shortage: ShortageError) -> int:
    """Imports no module: an import may fail if the machine lacks memory or file descriptors."""
    too_few = why_too_few_descriptors()
    with suppress(OSError):
        os.write(2, f"ralph: {too_few or line_with_advice(shortage)}\n".encode())
    return (Outcome.API_UNAVAILABLE if too_few is None else Outcome.CONFIG).exit_code()
