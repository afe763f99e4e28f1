"""Becomes a command that does not outlive its parent. It uses nothing else of ralph.

Run it by path, as a script of its own (`python -I -S tether.py PARENT_PID COMMAND...`). It asks the kernel to send
SIGTERM when the parent dies, checks that the parent is still there, and becomes the command. The pid stays the same,
and signals go straight to the command. It costs 14 ms. This works on Linux; elsewhere a command outlives a killed
parent. For the kernel, the parent is the *thread* that started this script: it must be the main thread.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

# The command is valid, but this machine lacks the resources to start it. EX_TEMPFAIL of sysexits.h.
_SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_TRY_AGAIN = 75
# linux/prctl.h. The constants of `launcher.py` cannot be imported: this script has no path to ralph.
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    parent_pid, *command = arguments
    _expect_the_defaults()
    _tie_to_parent()
    if os.getppid() != int(parent_pid):  # it died before the kernel was told
        return 128 + signal.SIGTERM
    try:
        os.execvp(command[0], command)  # noqa: S606 - what it is was decided by who asked
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        if error.errno in _SHORTAGES:
            return _TRY_AGAIN
        return 127 if isinstance(error, FileNotFoundError) else 126


def _expect_the_defaults() -> None:
    """Restores the default actions of signals that the interpreter ignores or handles, because the command inherits
    them.

    `nohup` is still respected.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _tie_to_parent() -> None:
    if sys.platform.startswith("linux"):
        import ctypes  # noqa: PLC0415 - 3 ms that other systems need not pay

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
