"""Where a loop's prompt comes from: one argument, one file, or standard input, once.

A file is looked at here and read anew for each iteration; what can be read only once is taken as text. Refuses two
sources at a time, so that nothing that was piped in is dropped unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from errno import EILSEQ
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.core.prompt_text import prompt_text
from ralph.effects.named_file import read_named_file
from ralph.effects.prompt_input import MOST_PROMPT_BYTES, PromptError, read_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.core.loop_values import LoopPlan
    from ralph.ports import Clock, Waiter

_NO_STDIN = -1


@dataclass(frozen=True)
class PromptSource:
    text: str | None
    """None: it stands in `file`."""
    file: str | None
    notices: tuple[str, ...] = ()
    """For people."""


def find_prompt(
    argument: str | None,
    file: str | None,
    *,
    directories: Sequence[str | Path],
    waiter: Waiter,
    clock: Clock,
    stdin_fd: int = 0,
) -> PromptSource:
    """Raises PromptError; `Interrupted` when a signal came. `directories`: as for `open_named_file`."""
    is_piped = "-" in (argument, file) or (argument is None and file is None)
    text, notices = read_prompt(
        argument,
        file,
        directories=directories,
        waiter=waiter,
        clock=clock,
        stdin_fd=stdin_fd if is_piped else _NO_STDIN,
    )
    if not is_piped:
        beside, notices = read_prompt(
            None,
            None,
            directories=directories,
            waiter=waiter,
            clock=clock,
            stdin_fd=stdin_fd,
            is_required=False,
        )
        if beside is not None:
            raise PromptError("a prompt was given and standard input holds data as well; use one of them")
    if is_piped or file is None or not Path(file).is_file():
        return PromptSource(text, None, notices)
    return PromptSource(None, file, notices)


class PromptReader:
    """The prompt as each iteration gets it."""

    def __init__(
        self, plan: LoopPlan, *, warn: Callable[[str], None], redact: Callable[[str], str] = str
    ) -> None:
        self._file = plan.prompt_file
        self._directories = (plan.launch_directory, plan.directory)
        self._last = plan.prompt
        self._warn = warn
        self._redact = redact

    def read(self) -> str:
        """A file that an agent removed, emptied, filled with no text or made a link out of the repository says what it
        said before.

        Raises OSError where that is not known.
        """
        return self._redact(self._read())

    def _read(self) -> str:
        if self._file is None:
            return self._last or ""
        try:
            data = read_named_file(self._file, self._directories, MOST_PROMPT_BYTES, takes_pipe=False)
        except OSError as error:
            if self._last is None:
                raise
            self._warn(f"cannot read {self._file}: {error.strerror}; the iteration gets what it said before")
            return self._last
        try:
            text = prompt_text(data)
        except ValueError as error:
            if self._last is None:
                raise OSError(EILSEQ, str(error), self._file) from None
            self._warn(f"{self._file} {error}. The iteration gets what it said before")
            return self._last
        if text.strip():
            self._last = text
        elif self._last is not None:
            self._warn(f"{self._file} is empty; the iteration gets what it said before")
        return self._last or text
