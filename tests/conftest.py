"""What all tests need to be true of the process they run in."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("ralph", deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pytest_configure() -> None:
    """Whoever starts the tests in the background makes them ignore SIGINT, and ralph would inherit that."""
    settings.load_profile("ralph")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
