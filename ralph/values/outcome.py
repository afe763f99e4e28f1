"""The outcome of a run: one enum decides exit code, `result` event and the last line together."""

from __future__ import annotations

import enum
import signal


class UsageError(Exception):
    """The command line asks for something impossible: one line, exit 2, no result."""


class Outcome(enum.Enum):
    """The ways in which a run can end. The value is the name that users see as `terminal_reason`."""

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
        """The process exit code, 0-255. `signal_number` counts for INTERRUPTED only (128 + n)."""
        if self is Outcome.INTERRUPTED:
            return 128 + signal_number
        return _EXIT_CODES[self]

    @property
    def is_error(self) -> bool:
        return self is not Outcome.COMPLETED


class Delivery(enum.Enum):
    """How the written result was delivered. The value stands in the journal."""

    DELIVERED = "delivered"
    READER_LEFT = "reader_left"
    """The reader closed standard output before the whole result was written. The outcome of the work itself counts."""
    UNREAD = "unread"
    """The reader never read the result, and the wait for it ended."""
    FAILED = "failed"
    """The result could not be written, on a full disk for example: the process ended with `io_error`, whatever the
    work's own outcome.
    """


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
