"""The open descriptors of this process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.patience import wait_until


def open_descriptors() -> set[tuple[str, str]]:
    """The number of each open descriptor, and the file, socket or pipe behind it. Empty if the system does not tell.

    A test compares what is new with nothing, and not two numbers: a descriptor of an earlier test may be closed in the
    meantime.
    """
    found = set()
    with suppress(FileNotFoundError):
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # the descriptor of the listing
                found.add((entry.name, str(entry.readlink())))
    return found


def wait_until_closed(before: set[tuple[str, str]]) -> None:
    """Returns when this process has no descriptor that it did not have `before`. A thread of an earlier test may have one
    for a moment; one that was forgotten stays, and the wait fails.
    """
    wait_until(lambda: not open_descriptors() - before)
