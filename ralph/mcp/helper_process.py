"""Starts the MCP helper process (`helper.py`) and exchanges messages with it. The code runs on the main thread,
except for one thread that puts the helper's messages into a mailbox.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ralph.machine.own_programs import own_python
from ralph.machine.starting import start_process, start_thread
from ralph.mcp.wire import Lines, encoded, news_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from subprocess import Popen

    from ralph.mcp.wire import Order
    from ralph.values.ports import Mailbox, Waiter

_PROGRAM = "from ralph.mcp.helper import main; main()"
_CHUNK_BYTES = 65_536
# The helper reads at once, unless somebody has stopped it.
_SEND_WITHIN_S = 10.0
_ENDS_WITHIN_S = 1.0


class HelperGone:
    """The type of `HELPER_GONE`. This item is put into the mailbox when the helper process has ended."""


HELPER_GONE = HelperGone()


def is_package_installed() -> bool:
    """Whether the `mcp` package, which the helper process needs, is installed."""
    return find_spec("mcp") is not None


class HelperProcess:
    def __init__(self, environment: Mapping[str, str], waiter: Waiter) -> None:
        """Starts the helper process. Raises ShortageError or OSError."""
        self.mailbox = waiter.mailbox()
        """Receives each message of the helper process, and `HELPER_GONE` when the helper process has ended."""
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_SEND_WITHIN_S)
        with theirs:
            self._process = _started(theirs.fileno(), environment)
        try:
            start_thread(_read, self._control.dup(), self.mailbox, name="MCP news")
        except BaseException:
            self.close()
            raise

    def send(self, order: Order, descriptors: Sequence[int] = ()) -> None:
        """Sends an order to the helper process, together with descriptors. Raises OSError if the helper process has
        ended or does not read.
        """
        line = encoded(order)
        if descriptors:
            sent = socket.send_fds(self._control, [line], list(descriptors))
            line = line[sent:]
        self._control.sendall(line)

    def close(self) -> None:
        """Ends the helper process, and discards its unread messages."""
        self.mailbox.close()
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        self._process.kill()
        import subprocess  # noqa: PLC0415 - loaded with the process

        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_WITHIN_S)


def _started(control: int, environment: Mapping[str, str]) -> Popen[bytes]:
    import subprocess  # noqa: PLC0415 - 8 ms that only a run with servers pays

    from ralph.machine.processes import protect_this_process  # noqa: PLC0415 - only a run with servers needs it

    protect_this_process()
    return start_process(
        own_python(_PROGRAM, str(control), str(os.getpid())),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        pass_fds=[control],
        start_new_session=True,
    )


def _read(control: socket.socket, mailbox: Mailbox) -> None:
    lines = Lines()
    with control, suppress(OSError):
        control.settimeout(None)
        while chunk := control.recv(_CHUNK_BYTES):
            for line in lines.feed(chunk):
                mailbox.put(news_of(line))
    mailbox.put(HELPER_GONE)
