"""The outcome of a run. It determines the exit code, the `result` event and the last line of output."""

from __future__ import annotations

import enum
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class UsageError(Exception):
    """The command line cannot be carried out as it was given. The error's message is one line. The exit code is 2."""


def nearest(word: str, names: Iterable[str], least: float = 0.6) -> str | None:
    """The name that a user probably meant by `word`, for an error message. None if no name has a similarity of at
    least `least`, from 0 to 1 (equal).
    """
    from difflib import get_close_matches  # noqa: PLC0415 - few words are mistyped

    return next(iter(get_close_matches(word, names, 1, least)), None)


class Outcome(enum.Enum):
    """The ways in which a run can end. Users see the value of the enum as `terminal_reason`."""

    COMPLETED = "completed"
    TASK_FAILED = "task_failed"
    USAGE = "usage"
    LIMIT_REACHED = "limit_reached"
    NO_PROGRESS = "no_progress"
    API_REJECTED = "api_rejected"
    INTERNAL_ERROR = "internal_error"
    IO_ERROR = "io_error"
    API_UNAVAILABLE = "api_unavailable"
    AUTH = "auth"
    CONFIG = "config"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"

    def exit_code(self, signal_number: int = signal.SIGINT) -> int:
        """The exit code of the process, 0-255. For INTERRUPTED, it is 128 plus `signal_number`, which other
        outcomes ignore.
        """
        if self is Outcome.INTERRUPTED:
            return 128 + signal_number
        return _EXIT_CODES[self]

    @property
    def is_error(self) -> bool:
        return self is not Outcome.COMPLETED


class Delivery(enum.Enum):
    """Whether the result of a run was delivered to standard output. The enum's values are written into the journal."""

    DELIVERED = "delivered"
    READER_LEFT = "reader_left"
    """The reader closed standard output before the whole result was written. The outcome of the run does not change."""
    UNREAD = "unread"
    FAILED = "failed"
    """Ralph could not write the result, for example because the disk is full. The outcome `io_error` replaces that
    of the run."""


class CannotError(Exception):
    """A command, a run or a job cannot do its work. The message is one line with the reason."""

    def __init__(self, message: str, outcome: Outcome = Outcome.CONFIG) -> None:
        """`outcome` is the outcome of what cannot do its work because of this error."""
        super().__init__(message)
        self.outcome = outcome


# 64-78 are the BSD sysexits; 75 is EX_TEMPFAIL; 124 is what timeout(1) uses.
_EXIT_CODES = {
    Outcome.COMPLETED: 0,
    Outcome.TASK_FAILED: 1,
    Outcome.USAGE: 2,
    Outcome.LIMIT_REACHED: 3,
    Outcome.NO_PROGRESS: 4,
    Outcome.API_REJECTED: 69,
    Outcome.INTERNAL_ERROR: 70,
    Outcome.IO_ERROR: 74,
    Outcome.API_UNAVAILABLE: 75,
    Outcome.AUTH: 77,
    Outcome.CONFIG: 78,
    Outcome.TIMED_OUT: 124,
}
