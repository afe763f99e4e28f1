"""Converts words to values as `values.py` does, for the commands that do a task: system prompts, files, and reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ralph.cli.command_words import wrong_value
from ralph.cli.values import absolute
from ralph.output.result_file import result_file_problem
from ralph.output.standard_streams import has_closed_output
from ralph.prompt.judged_file import argument_text, prompt_text, read_named_file
from ralph.run.options import RequestedReport
from ralph.values.outcome import CannotError, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_TEXT_BYTES = 16 * 1024 * 1024
"""The maximum size of a file with a system prompt. A text of this size exceeds any model's context window."""


def text_or_file(
    option: str, text: str | None, path: str | None, directories: Sequence[str], *, takes_pipe: bool = True
) -> str | None:
    """The text of `--OPTION`, or of the file of `--OPTION-file`, or None. `directories` are those of `run_directories`.
    Without `takes_pipe`, a pipe is refused, because the file will be read again.
    """
    if text is not None and path is not None:
        raise wrong_value(f"--{option}", f"give either --{option} or --{option}-file")
    if text is None and path is None:
        return None
    try:
        if path is None:
            return argument_text(text or "")
        where = str(absolute(path))
        return prompt_text(read_named_file(where, directories, _MOST_TEXT_BYTES, takes_pipe=takes_pipe))
    except ValueError as error:
        hint, subject = (f"--{option}", "the text") if path is None else (f"--{option}-file", path)
        raise wrong_value(hint, f"{subject} {error}") from None
    except OSError as error:
        raise wrong_value(f"--{option}-file", f"cannot read {path}: {error.strerror}") from None


def writable_file(option: str, path: str | None, directories: Sequence[str]) -> str | None:
    if path is None:
        return None
    if path == "-":
        raise wrong_value(option, "must be a file: standard output belongs to the result")
    where = str(absolute(path))
    problem = result_file_problem(where, directories)
    if problem is not None:
        raise wrong_value(option, problem)
    return where


def check_output_is_open(result_file: str | None = None) -> None:
    """Raises CannotError if standard output is closed (`>&-`) and there is no result file: the answer would be lost."""
    if result_file is None and has_closed_output():
        raise CannotError(
            "standard output is closed: if you do not need the answer, use >/dev/null", Outcome.IO_ERROR
        )


def requested_report(
    schema: str | None, directories: Sequence[str], *, is_required: bool, takes_pipe: bool = True
) -> RequestedReport | None:
    """None if the user requires none. `directories` and `takes_pipe` are as in `text_or_file`."""
    if schema is None:
        return RequestedReport() if is_required else None
    from ralph.run.report_schema import read_schema  # noqa: PLC0415 - a schema library is slow to load

    try:
        return RequestedReport(read_schema(schema, Path.cwd(), directories, takes_pipe=takes_pipe))
    except FileNotFoundError:
        raise wrong_value("--json-schema", "the working directory is gone") from None
    except ValueError as error:
        raise wrong_value("--json-schema", str(error)) from None
