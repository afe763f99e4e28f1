"""Converts words of the command line to values. An error names the option, and says so if a list option probably took
the prompt as one of its values, as in `ralph --tools Read "a task"`.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.cli.command_words import wrong_value
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.ports import WORKING_DIRECTORY_GONE
from ralph.values.setting import at_least

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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


def is_piped() -> bool:
    """Whether standard input is a pipe, a socket or a file. From a terminal or from /dev/null, ralph reads no prompt."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)
