"""The open descriptors of this process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


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
