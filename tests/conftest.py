"""What all tests need to be true of the process they run in, a limit for each of them, and no skip that nobody sees."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.known_skips import is_known
from tests.patience import TEST_S

if TYPE_CHECKING:
    from collections.abc import Iterator

# Each process of the tests rewrites the asserts of 270 files, for seven seconds unless it may keep them.
sys.dont_write_bytecode = False

_CAP_DAC_OVERRIDE = 1
"""Linux: the right to pass over the permissions of files."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.timeout is None:
        config.option.timeout = TEST_S
    # How fast examples are made is no fact about ralph.
    settings.register_profile("ralph", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("ralph")
    # Whoever starts the tests in the background makes them ignore SIGINT, and ralph would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if may_pass_over_permissions():
        for item in items:
            if item.get_closest_marker("ordinary_user"):
                item.add_marker(
                    pytest.mark.skip(reason="root passes over permissions: test_ordinary_user.py runs it")
                )


def may_pass_over_permissions() -> bool:
    """As root usually may."""
    status = Path("/proc/self/status")
    if not status.exists():
        return os.geteuid() == 0
    granted = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(granted.split()[1], 16) >> _CAP_DAC_OVERRIDE & 1)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where CI is set, a skip that `tests/known_skips.py` does not name fails the run."""
    terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or terminal is None or hasattr(session.config, "workerinput"):
        return
    for place, reason in sorted(set(_skips(terminal.stats.get("skipped", [])))):
        known = is_known(reason)
        terminal.write_line(
            f"{'skipped' if known else 'SKIPPED, AND NOBODY SAYS WHY'}: {place}: {reason}", red=not known
        )
        if not known:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skips(reports: list[Any]) -> Iterator[tuple[str, str]]:
    for report in reports:
        yield report.nodeid, str(report.longrepr[2]).removeprefix("Skipped: ")
