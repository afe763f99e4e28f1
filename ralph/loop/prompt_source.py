"""Where a loop's prompt comes from: one argument, one file, or standard input, once.

A file is looked at here and read anew for each iteration; what can be read only once is taken as text. Refuses two
sources at a time, so that nothing that was piped in is dropped unseen.
"""

from __future__ import annotations

from errno import EILSEQ
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.prompt.named_file import read_named_file
from ralph.prompt.prompt_input import MOST_PROMPT_BYTES, PromptError, read_prompt
from ralph.prompt.prompt_text import prompt_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.loop.values import LoopPlan
    from ralph.prompt.piped_input import SilentPipe
    from ralph.prompt.prompt_input import InputWait

_NO_STDIN = -1


class PromptSource(Struct, frozen=True):
    text: str | None
    """The prompt itself; None: it stands in `file`."""
    file: str | None
    notices: tuple[str, ...] = ()
    """For people."""
    silent: SilentPipe | None = None
    """Standard input, where it was waited for in vain."""


def find_prompt(
    argument: str | None,
    file: str | None,
    *,
    directories: Sequence[str | Path],
    wait: InputWait,
    stdin_fd: int = 0,
) -> PromptSource:
    """Finds the prompt. Raises PromptError; `Interrupted` when a signal came or the time is up. `directories`: as for
    `open_named_file`.
    """
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
        """The prompt as it stands now; as it stood before, if an agent removed the file, emptied it, filled it with
        no text or made it a link out of the repository.

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
