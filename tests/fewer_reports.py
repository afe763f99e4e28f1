"""A plugin for the processes of pytest-xdist: for a test that passes, the main process gets one report.

pytest-xdist sends five messages for each test: its start, its end, and a report of its set-up, its call and its tear-down.
They took a fortieth of the CPU time of all tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    import pytest


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Runs a test as pytest does. Its reports are sent after the tear-down: all three, unless all passed. So
    `--durations` names only calls, and if a tear-down ends the process, only this is reported.
    """
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    have_passed = all(report.passed for report in reports)
    for report in reports:
        if report.when == "call" or not have_passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True
