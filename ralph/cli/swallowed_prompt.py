"""Advice for a user whose prompt was probably taken as a value of a list option, as in `ralph --tools Read "a task"`.
The reason is that a list option takes all words up to the next option.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def prompt_not_in_list(last_list: str | None, *, has_prompt: bool) -> Iterator[None]:
    """A context manager that adds advice to each UsageError raised inside it. The advice is to put the prompt
    elsewhere.

    `last_list` is the list option that takes all words up to the end of the line. If it is None or `has_prompt` is
    True, errors are not changed. Otherwise, if standard input cannot contain the prompt either, raises UsageError at
    once.
    """
    if has_prompt or last_list is None:
        yield
        return
    advice = f"{last_list} takes all words up to the next option: put the prompt before it, or behind --"
    if not _is_piped():
        raise UsageError(f"no prompt: {advice}")
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{error} ({advice})") from None


def _is_piped() -> bool:
    """Whether standard input is a pipe, a socket or a file. From a terminal or from /dev/null, ralph reads no prompt."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)
