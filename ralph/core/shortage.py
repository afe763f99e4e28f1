"""A machine that has no thread, process, memory or open file left. That is weather: nobody is at fault, and it passes."""

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
    errno.EMFILE: "open file",
    errno.ENFILE: "open file",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "memory",
}
# What an extension module says that cannot be loaded; the error has no code.
_LOADER_SAYS = {"Too many open files": "open file", "Cannot allocate memory": "memory"}
_NO_THREAD = "can't start new thread"
"""All that CPython says of the system's EAGAIN."""


class ShortageError(OSError):
    """The machine has none left of what is `missing`: "thread", "process", "memory" or "open file"."""

    def __init__(self, missing: str) -> None:
        super().__init__(errno.EAGAIN, f"this machine has no {missing} left")
        self.missing = missing

    def __str__(self) -> str:
        return str(self.strerror)


def shortage_of(error: BaseException) -> ShortageError | None:
    """The shortage that lies below an error, None where something else does."""
    for cause in _chain(error):
        if isinstance(cause, ShortageError):
            return cause
        missing = _missing(cause)
        if missing is not None:
            return ShortageError(missing)
    return None


def _missing(cause: BaseException) -> str | None:
    if isinstance(cause, MemoryError):
        return "memory"
    if isinstance(cause, RuntimeError) and str(cause) == _NO_THREAD:
        return "thread"
    if isinstance(cause, ImportError):
        return next((missing for words, missing in _LOADER_SAYS.items() if words in str(cause)), None)
    # Those of name lookup and TLS are system errors too, with numbers of their own.
    if isinstance(cause, OSError) and type(cause).__module__ == "builtins":
        return _MISSING.get(cause.errno or 0)
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
