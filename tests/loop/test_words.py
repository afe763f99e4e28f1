"""The lines about a loop's events and its status."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from ralph.loop import events as words
from ralph.loop import status
from ralph.loop.events import (
    BranchChanged,
    GitChanged,
    IterationBegan,
    IterationResumed,
    LoopWaits,
)
from ralph.loop.state import CurrentIteration, IterationRecord, LoopState, Phase
from ralph.loop.status import LoopStatus, _change_text, _is_current, local, status_lines
from ralph.loop.values import LoopEnd, LoopLimits, LoopPlan, Setback
from ralph.output.iteration_log import LiveIteration
from ralph.output.status_line import LiveRun, LiveWait, RunningTool
from ralph.values.events import Event, Heartbeat, Notice
from ralph.values.outcome import Outcome
from tests.rows import every_row

NOW = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)
PLAN = LoopPlan("/work", "/work", until="make", limits=LoopLimits(5))
RECORD = IterationRecord(
    1, "0123456789", Outcome.COMPLETED, 0, 12, 0.4231, 192.0, 2, ("a.py", "b.py"), 2, True, "failed (exit 1)"
)
CURRENT = CurrentIteration(2, "abcdef0123", "2026-11-22T01:50:00+00:00", 0.0, "", "")
STATE = LoopState(PLAN, "2026-11-22T01:00:00+00:00", 7, "2026-11-22T02:00:00+00:00", 3720.0, (RECORD,))


@every_row(
    ("record", "said"),
    [
        (replace(RECORD, files=(), file_count=0), "no file changed"),
        (replace(RECORD, outcome=Outcome.TIMED_OUT, exit_code=124), "timed_out (exit 124), "),
        (replace(RECORD, file_count=9, files=tuple("abcdef")), "9 files changed: a, b, c and 6 more"),
    ],
)
def test_and_what_is_special_about_it(record: IterationRecord, said: str) -> None:
    assert said in words.iteration_line(record, 5)


SOON = datetime(2026, 11, 22, 2, 0, 30, tzinfo=UTC)
WAIT = LoopWaits(Setback.OUTAGE, 2, 30.0, SOON, False, False, 2, "abcdef0123")
# The other lines are in the recorded scenes.
LINES: list[tuple[Event, str | None]] = [
    (Notice("as it is"), "as it is"),
    (Heartbeat("git push", 12.4), "waiting for git push, 12s so far"),
    (Heartbeat("iteration 3", 12.4), None),
    (IterationBegan(2, None, "abcdef0123", None, 600), "iteration 2, session abcdef01, 10m00s left"),
    (IterationBegan(2, 5, "abcdef0123", 2, 600), "iteration 2 of 5, session abcdef01, $2.00 and 10m00s left"),
    (
        IterationResumed(2, 5, "abcdef0123", True),
        "iteration 2 of 5, session abcdef01, starts over: its session cannot be resumed",
    ),
    (BranchChanged(2, None, "spare"), "iteration 2 went to branch spare; before it was on none"),
    (
        BranchChanged(2, "main", None),
        "iteration 2 left its branch (HEAD is detached); before it was main",
    ),
    (
        GitChanged(2, ("core.fsmonitor", "h" * 81)),
        (
            f"iteration 2 changed git's settings or hooks in this repository: core.fsmonitor, {'h' * 80}…; ralph's own git "
            "runs none of them, but yours may: check .git/config and .git/hooks first"
        ),
    ),
]


@every_row(("event", "line"), LINES)
def test_the_line_of_an_event(event: Event, line: str | None) -> None:
    assert words.line_of(event) == line


@every_row(
    ("event", "begins", "ends"),
    [
        (
            replace(WAIT, is_from_server=True),
            "the API is unavailable: waiting 30s (as the server asks), ",
            "",
        ),
        (
            replace(WAIT, setback=Setback.SHORTAGE, iteration=None, session_id=None),
            "this machine has no ",
            "then it is tried again",
        ),
    ],
)
def test_the_line_of_a_wait(event: LoopWaits, begins: str, ends: str) -> None:
    line = words.line_of(event)
    assert line is not None
    assert line.startswith(begins)
    assert line.endswith(ends)
    assert f"until {SOON.astimezone():%H:%M:%S}, " in line


@every_row(
    ("outcome", "limits", "hint"),
    [
        (Outcome.LIMIT_REACHED, LoopLimits(1, 2.5), " --max-iterations 2"),
        (Outcome.LIMIT_REACHED, LoopLimits(9, 2.5), " --max-budget-usd 5.0"),
        (Outcome.TIMED_OUT, LoopLimits(max_time_s=5400), " --max-time 3h"),
        (Outcome.TIMED_OUT, LoopLimits(1, None, 5400), " --max-iterations 2 --max-time 3h"),
        (Outcome.TIMED_OUT, LoopLimits(), ""),
        (Outcome.IO_ERROR, LoopLimits(1, 2.5), ""),
    ],
)
def test_the_way_on_after_a_limit_is_a_command_with_a_higher_one(
    outcome: Outcome, limits: LoopLimits, hint: str
) -> None:
    state = replace(STATE, plan=replace(PLAN, limits=limits))
    end = LoopEnd(outcome, outcome.exit_code(), "why")
    assert words.resume_hint(state, end) == f"continue with: ralph loop --continue{hint}"


def test_a_loop_whose_check_cannot_be_run_has_no_way_on() -> None:
    never_begun = replace(STATE, iterations=(), current=None)
    end = LoopEnd(Outcome.CONFIG, 78, "the check cannot be run")
    assert words.resume_hint(never_begun, end) is None
    assert words.resume_hint(replace(never_begun, current=CURRENT), end) is not None


def test_the_way_on_names_the_directory_where_it_is_not_the_shells() -> None:
    away = replace(STATE, plan=replace(PLAN, directory="/my work"))
    assert words.continue_command(away) == "ralph loop --continue --cd '/my work'"


def test_what_a_model_named_is_plain_text_in_the_summary() -> None:
    record = replace(
        RECORD, files=("a|b\n`c`<script>![x](y)**d**__e__~~f~~",), file_count=1, check="timed out | after 9 s"
    )
    text = words.step_summary(replace(STATE, iterations=(record,)), LoopEnd(Outcome.COMPLETED, 0, "done"))
    [row] = [line for line in text.splitlines() if line.startswith("- iteration 1")]
    assert r"\`c\`&lt;script>!\[x](y)\*\*d\*\*\_\_e\_\_\~\~f\~\~" in row


def test_a_running_loop_is_shown_as_it_is_now() -> None:
    moment = NOW.timestamp()
    run = LiveRun(moment - 9, model="opus", turn=5, answered=4, cost_usd=0.5, tokens_in=9000, tokens_out=70)
    wait = replace(run, wait=LiveWait("529", moment + 30))
    limits = LoopLimits(5, 2.0, 7200)
    state = replace(
        STATE, plan=replace(PLAN, limits=limits), current=replace(CURRENT, turns=1, cost_usd=0.25)
    )
    later = NOW + timedelta(seconds=60)

    def lines(live_run: LiveRun, now: datetime = NOW) -> list[str]:
        live = LiveIteration(9, 2, "abcdef0123", moment - 60, live_run, max_turns=40, max_budget_usd=1.0)
        return [*status.status_lines(status.LoopStatus(Path("/s"), state, True, live, now))][1:5]

    assert lines(run) == [
        "running as process 7: 1 iteration and 1 not finished, 17 turns, $1.17, 2 commits, 1h02m",
        "left: 3 of 5 iterations, $0.8269 of $2.00, 58m00s of 2h00m",
        "iteration 2 of 5, session abcdef01: turn 5 of 40, the model works (9.0s), started 10m00s ago",
        "opus: 4 turns, 9,000 tokens in, 70 out, $0.5000 of $1.00, 1m00s",
    ]
    assert lines(run, later)[:2] == [
        "running as process 7: 1 iteration and 1 not finished, 17 turns, $1.17, 2 commits, 1h03m",
        "left: 3 of 5 iterations, $0.8269 of $2.00, 57m00s of 2h00m",
    ]
    server = replace(run, background=(RunningTool("bash_1", "npm run dev " * 9, moment - 90),))
    assert lines(server)[3:] == [lines(run)[3]]
    live = LiveIteration(9, 2, "abcdef0123", moment - 60, server)
    shown = [*status.status_lines(status.LoopStatus(Path("/s"), state, True, live, NOW))]
    assert f"in the background: bash_1 for 1m30s: {('npm run dev ' * 9)[:77]}" in shown[5]
    until = f"{(NOW + timedelta(seconds=30)).astimezone():%H:%M:%S}"
    assert f": turn 5 of 40, waiting after 529 until {until} (30s left), " in lines(wait)[2]


OURS = CurrentIteration(2, "s-2", "2026-11-22T01:50:00+00:00", 0.0, "", "")
RUNNING = LoopState(LoopPlan("/work", "/work"), "2026-11-22T01:00:00+00:00", os.getppid(), current=OURS)
LIVE = LiveIteration(os.getpid(), 2, "s-2", 1.0, LiveRun(1.0))


def test_only_the_process_of_the_running_iteration_is_believed() -> None:
    assert _is_current(LIVE, RUNNING)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        assert not _is_current(replace(LIVE, pid=ended.pid), RUNNING), (
            "killed, and the loop has not seen it yet"
        )
    assert not _is_current(replace(LIVE, pid=os.getppid()), RUNNING), "its id belongs to another process now"
    assert not _is_current(replace(LIVE, number=1), RUNNING)
    assert not _is_current(replace(LIVE, session_id="s-1"), RUNNING)
    assert not _is_current(LIVE, replace(RUNNING, current=replace(OURS, phase=Phase.CHECKING)))
    assert not _is_current(LIVE, replace(RUNNING, current=None))


@every_row(
    ("current", "says"),
    [
        (replace(OURS, outages=2), "(2 outages)"),
        (replace(OURS, outages=2, kills=1), "(1 kill)"),
    ],
)
def test_the_line_of_a_change_says_of_a_wait_what_the_status_says(
    current: CurrentIteration, says: str
) -> None:
    until = "2026-11-22T03:00:00+00:00"
    state = replace(RUNNING, current=replace(current, phase=Phase.WAITING, waits_until=until))
    status = LoopStatus(Path("/s"), state, True, None, datetime(2026, 11, 22, 2, tzinfo=UTC))
    waiting = f"waiting until {local(until)} {says}"
    assert _change_text(status).startswith(f"iteration 2: {waiting}; ")
    assert f": {waiting}, started " in [*status_lines(status)][2]
