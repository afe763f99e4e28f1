"""Starts threads and processes. Raises ShortageError if the machine has none left; other failures stay as they are.

Only `patiently` tries again.
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ralph.values.shortage import ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from subprocess import Popen

    from ralph.values.ports import Clock, Waiter

T = TypeVar("T")

PATIENCE_S = 2.0
"""Seconds that a starting run waits when the machine is short of something: most bursts of other programs are over by
then.
"""
_TRY_EVERY_S = 0.05


def start_thread(target: Callable[..., object], *args: object, name: str) -> threading.Thread:
    """Start a daemon thread. Raises ShortageError."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # raised for a new thread, it can mean nothing else
        raise ShortageError("thread") from None
    return thread


def start_process(arguments: Sequence[str], **options: Any) -> Popen[bytes]:
    """Start a `subprocess.Popen` with these options. Raises ShortageError if the machine lacks a resource, and OSError
    for any other failure.
    """
    import subprocess  # noqa: PLC0415 - 8 ms that only a run with processes pays

    try:
        return subprocess.Popen(arguments, **options)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise ShortageError("process") from error
        raise shortage_of(error) or error from None


def patiently(start: Callable[[], T], waiter: Waiter, clock: Clock, within_s: float = PATIENCE_S) -> T:
    """Call `start`, again and again while the machine is short of something. Raises the last ShortageError, and
    `Interrupted`.
    """
    until_s = clock.now_s() + within_s
    while True:
        try:
            return start()
        except ShortageError as error:
            if clock.now_s() >= until_s:
                raise
            waiter.wait(
                waiter.mailbox(),
                until_s=min(until_s, clock.now_s() + _TRY_EVERY_S),
                waiting_for=f"a {error.missing} of this machine",
            )
