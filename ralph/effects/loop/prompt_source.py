"""Where a loop's prompt comes from: one argument, one file, or standard input, once.

A file is looked at here and read anew for each iteration; what can be read only once is taken as text. Refuses two
sources at a time, so that nothing that was piped in is dropped unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.effects.loop.regular_file import read_regular_file
from ralph.effects.prompt_input import MOST_PROMPT_BYTES, PromptError, read_prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.core.loop_values import LoopPlan
    from ralph.effects.piped_input import SilentPipe
    from ralph.effects.prompt_input import InputWait

_NO_STDIN = -1


@dataclass(frozen=True)
class PromptSource:
    text: str | None
    """None: it stands in `file`."""
    file: str | None
    notices: tuple[str, ...] = ()
    """For people."""
    silent: SilentPipe | None = None
    """Standard input, where it was waited for in vain."""


def find_prompt(
    argument: str | None, file: str | None, *, wait: InputWait, stdin_fd: int = 0
) -> PromptSource:
    """Raises PromptError; `Interrupted` when a signal came or the time is up."""
    if "-" in (argument, file) or (argument is None and file is None):
        return PromptSource(read_prompt(argument, file, wait=wait, stdin_fd=stdin_fd).text, None)
    text = read_prompt(argument, file, wait=wait, stdin_fd=_NO_STDIN).text
    beside = read_prompt(None, None, wait=wait, stdin_fd=stdin_fd, is_required=False)
    if beside.text is not None:
        raise PromptError("a prompt was given and standard input holds data as well; use one of them")
    if file is None or not Path(file).is_file():
        return PromptSource(text, None, beside.notices, beside.silent)
    return PromptSource(None, file, beside.notices, beside.silent)


class PromptReader:
    """The prompt as each iteration gets it."""

    def __init__(self, plan: LoopPlan, *, warn: Callable[[str], None]) -> None:
        self._file = plan.prompt_file
        self._last = plan.prompt
        self._warn = warn

    def read(self) -> str:
        """A file that an agent removed or emptied says what it said before. Raises OSError where that is not known."""
        if self._file is None:
            return self._last or ""
        try:
            data = read_regular_file(self._file, MOST_PROMPT_BYTES, follows_links=True)
        except OSError as error:
            if self._last is None:
                raise
            self._warn(f"cannot read {self._file}: {error.strerror}; the iteration gets what it said before")
            return self._last
        text = data.decode("utf-8", "replace")
        if text.strip():
            self._last = text
        elif self._last is not None:
            self._warn(f"{self._file} is empty; the iteration gets what it said before")
        return self._last or text
