"""Recognises errors that mean that the machine has run out of threads, processes, memory or file descriptors. Ralph
treats such a shortage as temporary.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
