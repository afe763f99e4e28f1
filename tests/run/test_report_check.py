"""The check of a report in a process of its own: it gives the same result, and no schema can make the run wait for
ever.
"""

from __future__ import annotations

import pytest

from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.run.report_check import BROKEN, TOO_SLOW, ReportCheck, report_tool
from ralph.values.ports import SignalReceived
from tests.processes.children import children

CLOCK = SystemClock()
FILES = {"type": "object", "properties": {"files": {"type": "integer"}}, "required": ["files"]}
SLOW = {"type": "object", "properties": {"name": {"type": "string", "pattern": r"^(\w+\s?)*$"}}}
HOSTILE = {"status": "success", "summary": "s", "payload": {"name": "a" * 40 + "!"}}


def check_of(schema, *, within_s: float = 30.0, waiter: InboxWaiter | None = None) -> ReportCheck:
    tool = report_tool(schema)
    return ReportCheck(
        tool.input_schema, waiter=waiter or InboxWaiter(CLOCK), clock=CLOCK, environment={}, within_s=within_s
    )


def test_a_check_that_takes_too_long_is_a_problem_the_model_is_told_and_leaves_nothing_running() -> None:
    before = children()
    assert check_of(SLOW, within_s=0.3)(HOSTILE) == [TOO_SLOW.format(seconds=0.3)]
    assert children() <= before


def test_a_signal_ends_the_check_and_nothing_is_left_running() -> None:
    before, waiter = children(), InboxWaiter(CLOCK)
    waiter.inbox.note_signal(15)
    with pytest.raises(SignalReceived):
        check_of(SLOW, waiter=waiter)(HOSTILE)
    assert children() <= before


def test_a_process_that_dies_is_a_problem_too(monkeypatch) -> None:
    monkeypatch.setattr("ralph.run.report_check._WORKER", "import os; os._exit(9)")
    assert check_of(FILES)({"status": "success", "summary": "s", "payload": {"files": 1}}) == [BROKEN]
