"""What all tests need to be true of the process they run in."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Whoever starts the tests in the background makes them ignore SIGINT, and ralph would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
