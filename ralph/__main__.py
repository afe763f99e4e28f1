"""The way in: answers `--version` at once and hands everything else to `cli`."""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Run ralph on `sys.argv` and exit with its code."""
    arguments = sys.argv[1:]
    _open_standard_streams()
    if arguments == ["--version"]:
        from ralph import __version__  # noqa: PLC0415 - nothing else is needed for this

        with suppress(OSError):  # a reader that is gone does not want to know
            os.write(1, f"ralph {__version__}\n".encode())
        os._exit(0)
    _die_silently_of_ctrl_c()
    try:
        from ralph.cli import run_cli  # noqa: PLC0415 - costs the time that --version saves
    except (OSError, MemoryError, ImportError) as error:
        _end_if_too_short(error)
        raise

    code = run_cli(arguments)
    # Whoever still holds a thread (a name lookup, a reader that never reads) must not hold up the exit.
    with suppress(OSError):  # a reader that left
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _end_if_too_short(error: BaseException) -> None:
    """Exit 75 where not even the modules can be loaded for want of memory or file descriptors: that passes."""
    words = str(error)  # an extension module that cannot be loaded gives no number
    if (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
        or any(os.strerror(number) in words for number in (errno.EMFILE, errno.ENOMEM))
    ):
        with suppress(OSError):
            os.write(
                2, b"ralph: this machine has too little memory or too few file descriptors left to start\n"
            )
        os._exit(75)


def _open_standard_streams() -> None:
    """A closed descriptor 0, 1 or 2 becomes /dev/null, or the next file opened would land there."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def _die_silently_of_ctrl_c() -> None:
    """Until the run catches signals itself, Ctrl-C ends ralph as it ends any program: without a traceback."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` puts the working directory first: a file named httpx.py there would get the key.
        del sys.path[0]
    main()
