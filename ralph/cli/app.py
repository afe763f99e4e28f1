"""Parses the command line, runs the command, and turns an error into one line and an exit code."""

import errno
import os
import sys
from contextlib import suppress

from ralph import __version__
from ralph.cli.commands import COMMANDS, IN_LOOP, CannotError, LineError, line_command
from ralph.machine.loading import load_without
from ralph.values.outcome import Outcome, UsageError
from ralph.values.shortage import ShortageError, line_with_advice, shortage_of

_ROOT_OPTIONS = ("-h", "--help", "--version")
"""Options that may be given instead of a command. All words after such an option are ignored."""
_USUAL_COLUMNS = 80


def run_cli(arguments: list[str]) -> int:
    """Runs the command that the arguments name. Returns the exit code."""
    try:
        given, arguments = arguments, _with_command(arguments)
        return _run(arguments, is_command_inserted=len(arguments) > len(given))
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
        why = "standard output is closed" if error.errno == errno.EBADF else error.strerror
        return _complain(f"cannot write: {why}", Outcome.IO_ERROR.exit_code())


def _run(arguments: list[str], *, is_command_inserted: bool) -> int:
    name, *words = arguments
    if name in _ROOT_OPTIONS:
        return _answer(name)
    # msgspec takes what it needs from `typing` then. typing_extensions would load `inspect`, `ast` and `tokenize`.
    with load_without("typing_extensions"):
        command = line_command(name)
    if command is not None:
        read = command.read(words, is_command_inserted=is_command_inserted)
        if read is not None:
            return command.run(*read)
        from ralph.cli.command_page import command_page  # noqa: PLC0415 - only for the help

        return _show(command_page(command, _columns()))
    from ralph.cli.typer_command import run_typer_command  # noqa: PLC0415 - loads typer, which a run does not need

    return run_typer_command(name, words)


def _answer(option: str) -> int:
    """Prints the help or the version, as `option` requests. Returns the exit code."""
    if option == "--version":
        return _show(f"ralph {__version__}")
    from ralph.cli.root_page import root_page  # noqa: PLC0415 - only for the help

    return _show(root_page(_columns()))


def _columns() -> int:
    """The width of the terminal in columns, or a default without a terminal. Does not import `shutil`, to save time."""
    with suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", ""))) > 0:
            return columns
    with suppress(OSError):  # standard output is no terminal
        return os.get_terminal_size(1).columns or _USUAL_COLUMNS
    return _USUAL_COLUMNS


def _show(text: str) -> int:
    """Prints a text and a line break, and returns the exit code. Raises OSError if standard output cannot be written."""
    with suppress(BrokenPipeError):  # the reader has seen enough
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    return Outcome.COMPLETED.exit_code()


def _with_command(arguments: list[str]) -> list[str]:
    """The arguments with a command at their beginning. If the user named no command, this is `run`. Raises UsageError
    if the first argument is a mistyped command.
    """
    if arguments[:1] == ["loop"] and arguments[1:2] and arguments[1] in IN_LOOP:
        return [f"loop {arguments[1]}", *arguments[2:]]
    if arguments and arguments[0] in (*COMMANDS, *_ROOT_OPTIONS):
        return arguments
    if arguments and not arguments[0].startswith("-"):
        from ralph.cli.command_words import refuse_command_word  # noqa: PLC0415 - most prompts follow `ralph run`

        refuse_command_word(arguments)
    return ["run", *arguments]


def _complain(message: str, code: int) -> int:
    """Writes the message to standard error as one line, and returns `code`. The message may quote an API key that the
    user typed in the wrong place. So known credentials in the message are redacted.
    """
    from ralph.values.credentials import known_secrets  # noqa: PLC0415 - not needed when all is well
    from ralph.values.redaction import Redactor  # noqa: PLC0415 - not needed when all is well
    from ralph.values.screen_text import in_one_line  # noqa: PLC0415 - not needed when all is well

    line = " ".join(in_one_line(message).split())
    with suppress(BrokenPipeError):  # the reader has closed standard error
        sys.stderr.write(f"ralph: {Redactor(known_secrets(os.environ)).redact_all(line)}\n")
    return code


def _complain_of(shortage: ShortageError) -> int:
    """Writes one line about the shortage to standard error, and returns the exit code. It imports no module, because
    an import may fail if the machine lacks memory or file descriptors.
    """
    with suppress(OSError):
        os.write(2, f"ralph: {line_with_advice(shortage)}\n".encode())
    return Outcome.API_UNAVAILABLE.exit_code()
