"""Whose live file `--status` believes, and that `--watch` says what `--status` says."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from ralph.loop.state import CurrentIteration, LoopState, Phase
from ralph.loop.status import LoopStatus, _change_text, _is_current, local, status_lines
from ralph.loop.values import LoopPlan
from ralph.output.iteration_log import LiveIteration
from ralph.output.live import LiveRun
from tests.rows import every_row

CURRENT = CurrentIteration(2, "s-2", "2026-11-22T01:50:00+00:00", 0.0, "", "")
STATE = LoopState(LoopPlan("/work", "/work"), "2026-11-22T01:00:00+00:00", os.getppid(), current=CURRENT)
LIVE = LiveIteration(os.getpid(), 2, "s-2", 1.0, LiveRun(1.0))


def test_only_the_process_of_the_running_iteration_is_believed() -> None:
    assert _is_current(LIVE, STATE)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        assert not _is_current(replace(LIVE, pid=ended.pid), STATE), (
            "killed, and the loop has not seen it yet"
        )
    assert not _is_current(replace(LIVE, pid=os.getppid()), STATE), "its id belongs to another process now"
    assert not _is_current(replace(LIVE, number=1), STATE)
    assert not _is_current(replace(LIVE, session_id="s-1"), STATE)
    assert not _is_current(LIVE, replace(STATE, current=replace(CURRENT, phase=Phase.CHECKING)))
    assert not _is_current(LIVE, replace(STATE, current=None))


@every_row(
    ("current", "says"),
    [
        (replace(CURRENT, outages=2), "(2 outages)"),
        (replace(CURRENT, outages=2, kills=1), "(1 kill)"),
    ],
)
def test_the_line_of_a_change_says_of_a_wait_what_the_status_says(
    current: CurrentIteration, says: str
) -> None:
    until = "2026-11-22T03:00:00+00:00"
    state = replace(STATE, current=replace(current, phase=Phase.WAITING, waits_until=until))
    status = LoopStatus(Path("/s"), state, True, None, datetime(2026, 11, 22, 2, tzinfo=UTC))
    waiting = f"waiting until {local(until)} {says}"
    assert _change_text(status).startswith(f"iteration 2: {waiting}; ")
    assert f": {waiting}, started " in [*status_lines(status)][2]
