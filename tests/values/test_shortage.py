"""Every resource that a machine can lack, in all words that name it and at any depth below an error."""

from __future__ import annotations

import errno
import socket
import ssl

from ralph.values.outcome import ShortageError, shortage_of
from tests.rows import every_row

LACKING = [
    (OSError(errno.EMFILE, ""), "file descriptor"),
    (OSError(errno.ENFILE, ""), "file descriptor"),
    (OSError(errno.ENOMEM, ""), "memory"),
    (OSError(errno.ENOBUFS, ""), "memory"),
    (OSError(errno.ETOOMANYREFS, ""), "file descriptor"),
    (MemoryError(), "memory"),
    (RuntimeError("can't start new thread"), "thread"),
    (RuntimeError("can't allocate lock"), "memory"),
    (ImportError("x.so: cannot open shared object file: Too many open files"), "file descriptor"),
    (ImportError("x.so: failed to map segment from shared object"), "memory"),
    (ShortageError("process"), "process"),
]
NOT_LACKING = [
    OSError(errno.ENOSPC, ""),
    OSError(errno.EAGAIN, ""),  # this means a shortage only for code that starts a thread or a process
    RuntimeError("something else"),
    ImportError("no module named x"),
    socket.gaierror(errno.ENOMEM, "a number of its own"),
    ssl.SSLError(errno.ENOMEM, "and another one"),
    ValueError(),
]


@every_row(("error", "missing"), LACKING)
def test_what_is_missing_is_told_wherever_it_lies(error: Exception, missing: str) -> None:
    hidden, caused = ValueError("above"), ValueError("above")
    hidden.__context__, hidden.__suppress_context__ = error, True
    caused.__cause__ = error
    for each in (error, hidden, caused):
        found = shortage_of(each)
        assert found is not None
        assert str(found) == f"this machine has no {missing} left"


@every_row("error", NOT_LACKING)
def test_what_is_something_else_is_no_shortage(error: Exception) -> None:
    assert shortage_of(error) is None


def test_it_passes_for_an_error_of_the_system_where_one_is_expected() -> None:
    assert isinstance(ShortageError("thread"), OSError)
    assert ShortageError("thread").strerror == "this machine has no thread left"
