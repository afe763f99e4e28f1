"""Finds a loop's prompt in an argument, a file or standard input. A regular file is read again for each iteration, any other
source once. Beside an argument or a file, data on standard input is an error, because it would be dropped without notice.
"""

from __future__ import annotations

from errno import EILSEQ
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.prompt.named_file import read_named_file
from ralph.prompt.prompt_input import MOST_PROMPT_BYTES, PromptError, prompt_text, read_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.loop.values import LoopPlan
    from ralph.prompt.piped_input import SilentPipe
    from ralph.prompt.prompt_input import InputWait

_NO_STDIN = -1


class PromptSource(Struct, frozen=True):
    text: str | None
    """The prompt, or None if `file` contains it."""
    file: str | None
    notices: tuple[str, ...] = ()
    silent: SilentPipe | None = None
    """Standard input if it is a pipe from which no data came in time."""


def find_prompt(
    argument: str | None,
    file: str | None,
    *,
    directories: Sequence[str | Path],
    wait: InputWait,
    stdin_fd: int = 0,
) -> PromptSource:
    """`directories` are as in `open_named_file`. Raises PromptError, and Interrupted after a signal or the time limit."""
    find = partial(read_prompt, directories=directories, wait=wait)
    if "-" in (argument, file) or (argument is None and file is None):
        return PromptSource(find(argument, file, stdin_fd=stdin_fd).text, None)
    text = find(argument, file, stdin_fd=_NO_STDIN).text
    beside = find(None, None, stdin_fd=stdin_fd, is_required=False)
    if beside.text is not None:
        raise PromptError("a prompt was given and standard input holds data as well; use one of them")
    if file is None or not Path(file).is_file():
        return PromptSource(text, None, beside.notices, beside.silent)
    return PromptSource(None, file, beside.notices, beside.silent)


class PromptReader:
    """Reads the prompt for each iteration."""

    def __init__(
        self, plan: LoopPlan, *, warn: Callable[[str], None], redact: Callable[[str], str] = str
    ) -> None:
        self._file = plan.prompt_file
        self._directories = (plan.launch_directory, plan.directory)
        self._last = plan.prompt
        self._warn = warn
        self._redact = redact

    def read(self) -> str:
        """The current prompt, without known credentials. If the file was removed or emptied, is not text, or has become a link
        out of the repository, warns and returns the last good prompt, or raises OSError if there was none.
        """
        return self._redact(self._read())

    def _read(self) -> str:
        if self._file is None:
            return self._last or ""
        text, before = "", "the iteration gets what it said before"
        try:
            data = read_named_file(self._file, self._directories, MOST_PROMPT_BYTES, takes_pipe=False)
            text = prompt_text(data)
            why = f"{self._file} is empty; {before}"
        except OSError as error:
            if self._last is None:
                raise
            why = f"cannot read {self._file}: {error.strerror}; {before}"
        except ValueError as error:
            if self._last is None:
                raise OSError(EILSEQ, str(error), self._file) from None
            why = f"{self._file} {error}. {before.capitalize()}"
        if text.strip():
            self._last = text
        elif self._last is not None:
            self._warn(why)
        return self._last or text
