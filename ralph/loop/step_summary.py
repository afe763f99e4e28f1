"""Appends a loop's end, as a table, to the file that a CI system shows.

Refuses anything but a regular file, as it would wait for it; and a link of the repository that leads out of it: what
a model said must not land in a file of the user's.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from ralph.loop import words
from ralph.loop.events import LoopEnded
from ralph.machine.planted_link import is_beneath, planted_link, repositories
from ralph.values.events import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.values.events import Event
    from ralph.values.ports import Events


class StepSummary:
    """An `Events` sink."""

    def __init__(
        self, path: str, directories: Sequence[str], *, redact: Callable[[str], str], narration: Events
    ) -> None:
        """`directories`: as for `append_text`. `narration` is told where the file cannot be written."""
        self._path = path
        self._directories = directories
        self._redact = redact
        self._narration = narration

    def emit(self, event: Event) -> None:
        if not isinstance(event, LoopEnded):
            return
        try:
            text = self._redact(words.step_summary(event.state, event.end))
            append_text(self._path, text, self._directories)
        except OSError as error:
            problem = f"cannot write the summary {self._path}: {error.strerror}"
            self._narration.emit(Notice(problem, is_vital=True))


def append_text(path: str, text: str, directories: Sequence[str]) -> None:
    """Raises OSError. `directories`: where the loop was called and where it works."""
    tops = repositories(directories)
    link = planted_link(os.path.abspath(path), tops)  # noqa: PTH100 - links are to be seen
    if link is not None and not is_beneath(os.path.realpath(path), tops):
        raise OSError(errno.EPERM, f"{link} is a link that leads out of its repository", path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        file.write(text.encode("utf-8", "replace"))  # names of files may be no text
