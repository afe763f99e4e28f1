"""Recognises that the machine has no thread, process, memory or file descriptor left. Such a shortage passes."""

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
}
# The message for an extension module that cannot be loaded; the error has no code.
_LOADER_SAYS = {
    "Too many open files": "file descriptor",
    "Cannot allocate memory": "memory",
    "failed to map segment": "memory",
}
_CPYTHON_SAYS = {"can't start new thread": "thread", "can't allocate lock": "memory"}
"""CPython's messages for a shortage; CPython raises them without the system's error."""


def line_with_advice(error: ShortageError) -> str:
    """One line about the shortage, for the person whose run it ends."""
    return f"{error}: {ADVICE}"


class ShortageError(OSError):
    """The machine has none left of `missing`: "thread", "process", "memory" or "file descriptor"."""

    def __init__(self, missing: str) -> None:
        super().__init__(errno.EAGAIN, f"this machine has no {missing} left")
        self.missing = missing

    def __str__(self) -> str:
        return str(self.strerror)


def shortage_of(error: BaseException) -> ShortageError | None:
    """The shortage that caused an error; None: something else did."""
    for cause in causes_of(error):
        if isinstance(cause, ShortageError):
            return cause
        missing = _missing(cause)
        if missing is not None:
            return ShortageError(missing)
    return None


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, including those that a library has hidden by `from None`."""
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
    # Errors of name lookup and TLS are system errors too, with numbers of their own.
    if isinstance(cause, OSError) and type(cause).__module__ == "builtins":
        return _MISSING.get(cause.errno or 0)
    return None
