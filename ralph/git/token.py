"""Gives git a token when it asks for a password, so that the token is neither in an environment nor in a command line nor
on the disk.

Git's own mechanism is a credential helper (gitcredentials(7)). The helper here is a line of shell that reads one record from
a pipe, which the processes of one git call inherit. Each record has the same size, so that two helpers at once do not
share one.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ralph.values.outcome import CannotError

if TYPE_CHECKING:
    from collections.abc import Iterator

PIPE = 90
"""The number of the descriptor in git's processes. So high that it is nobody's, and below the least usual limit."""
_RECORD_BYTES = 1024
_RECORDS = 32
"""How often the processes of one call may ask. Together the records fit into the smallest pipe of Linux with 64 KiB, and are
written at once."""
_USER = "x-access-token"


class GitToken:
    """A token for one host. Its `repr` does not show it."""

    def __init__(self, host: str, token: str) -> None:
        """Raises CannotError, without the token, if it cannot be one line of git's protocol."""
        self._record = f"username={_USER}\npassword={token}\n".encode()
        if len(self._record) > _RECORD_BYTES or not token.isprintable() or " " in token:
            raise CannotError("the git token is too long, or has spaces or control characters")
        if not host or not all(one.isalnum() or one in ".-:[]" for one in host):
            raise CannotError(f"{host!r} is not a host for a git token")
        reading = f"dd bs={_RECORD_BYTES} count=1 </dev/fd/{PIPE} 2>/dev/null"
        helper = f'!f() {{ test "$1" = get && {reading}; }}; f'
        name = f"credential.https://{host}.helper"
        self.options = ("-c", f"{name}=", "-c", f"{name}={helper}")
        """The options of git that name the helper, and no other one for the host: the user's might keep the token on the disk."""

    @contextmanager
    def pipe(self) -> Iterator[int]:
        """Yields the descriptor from which the helpers of one git call read. Raises OSError."""
        reading, writing = os.pipe2(os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        try:
            try:
                # An empty line ends a record for git.
                os.write(writing, self._record.ljust(_RECORD_BYTES, b"\n") * _RECORDS)
            finally:
                os.close(writing)
            yield reading
        finally:
            os.close(reading)
