"""The outcome of a run. It determines the exit code, the `result` event and the last line of output. Also the errors that lead
to an outcome, and those that mean that the machine has run out of threads, processes, memory or file descriptors. Ralph
treats such a shortage as temporary.
"""

from __future__ import annotations

import enum
import errno
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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


ADVICE = (
    "wait until other programs have ended, or raise the limit (ulimit -u, ulimit -n, the pids and memory limits of "
    "a container)"
)

_MISSING = {
    errno.EMFILE: "file descriptor",
    errno.ENFILE: "file descriptor",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "memory",
    # The kernel counts those that a user's programs have sent to each other and nobody has received (unix(7)).
    errno.ETOOMANYREFS: "file descriptor",
}
# Parts of the messages that the dynamic loader gives if an extension module cannot be loaded. Such an error has no
# error number.
_LOADER_SAYS = {
    "Too many open files": "file descriptor",
    "Cannot allocate memory": "memory",
    "failed to map segment": "memory",
}
_CPYTHON_SAYS = {"can't start new thread": "thread", "can't allocate lock": "memory"}
"""Messages of a RuntimeError with which CPython reports a shortage. Such a RuntimeError has no error number."""


def line_with_advice(error: ShortageError) -> str:
    """One line that names the missing resource and gives advice to the user."""
    return f"{error}: {ADVICE}"


class ShortageError(OSError):
    """The machine has no more of a resource. `missing` is "thread", "process", "memory" or "file descriptor"."""

    def __init__(self, missing: str) -> None:
        super().__init__(errno.EAGAIN, f"this machine has no {missing} left")
        self.missing = missing

    def __str__(self) -> str:
        return str(self.strerror)


def start_error(error: OSError) -> OSError:
    """The error for a process that could not be started: a ShortageError if this machine is short of a resource, else `error`."""
    if error.errno == errno.EAGAIN:
        return ShortageError("process")
    return shortage_of(error) or error


def shortage_of(error: BaseException) -> ShortageError | None:
    for cause in causes_of(error):
        if isinstance(cause, ShortageError):
            return cause
        missing = _missing(cause)
        if missing is not None:
            return ShortageError(missing)
    return None


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and its causes. Causes that a library has hidden with `from None` are included."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _missing(cause: BaseException) -> str | None:
    if isinstance(cause, MemoryError):
        return "memory"
    if isinstance(cause, RuntimeError):
        return _CPYTHON_SAYS.get(str(cause))
    if isinstance(cause, ImportError):
        return next((missing for words, missing in _LOADER_SAYS.items() if words in str(cause)), None)
    # Errors of name lookup and TLS are OSErrors too, but have error numbers of their own.
    if isinstance(cause, OSError) and type(cause).__module__ == "builtins":
        return _MISSING.get(cause.errno or 0)
    return None
