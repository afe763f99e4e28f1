"""Signals, time limits and remaining processes of an iteration, with a shell script in place of `ralph run`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.values.outcome import Outcome
from tests.processes.children import is_gone
from tests.rows import every_row

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")


PYTHON_IGNORES = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
"""The signals that every Python process ignores, as a bit mask. Its children get the default action back."""


def ignored_by_whoever_started_the_tests() -> int:
    """The signals that were ignored when the tests started, as a bit mask. `nohup` and some CI systems start
    programs like that, and children inherit it.
    """
    status = Path("/proc/self/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return int(ignored.split()[1], 16) & ~PYTHON_IGNORES


def test_a_signal_that_came_before_the_start_ends_it_at_once(iterating) -> None:
    iterating.waiter.inbox.note_signal(signal.SIGTERM)
    result = iterating.run_substitute("sleep 1000000")
    assert (result.exit_code, result.stopped_by) == (143, signal.SIGTERM)


def test_one_that_does_not_stop_is_killed_and_what_it_started_too(iterating) -> None:
    iterating.once_there("pid", lambda _line: iterating.waiter.inbox.note_signal(signal.SIGTERM))
    script = "trap '' TERM; (trap '' TERM; sleep 99; sleep 99) & echo $! >pid; sleep 99; sleep 99"
    result = iterating.run_substitute(script, stops_within_s=0.1)
    assert (result.exit_code, result.stopped_by) == (137, signal.SIGTERM)
    assert is_gone(int(iterating.noted("pid")))


@pytest.mark.parametrize(
    ("script", "exit_code", "outcome"),
    [
        pytest.param("exec sleep 99", 124, Outcome.TIMED_OUT, id="asked"),
        pytest.param("trap '' TERM; sleep 99; sleep 99", 124, Outcome.TIMED_OUT, id="killed"),
        pytest.param("trap 'exit 74' TERM; sleep 99 & wait", 74, Outcome.IO_ERROR, id="ends its own way"),
    ],
)
def test_one_that_outlasts_its_time_limit_is_stopped(iterating, script, exit_code, outcome) -> None:
    result = iterating.run_substitute(script, time_s=0.05, overtime_s=0.2, stops_within_s=0.1)
    assert (result.exit_code, result.outcome, result.stopped_by) == (exit_code, outcome, None)
    if outcome is Outcome.TIMED_OUT:
        assert result.reason == "it kept running for 0.2 s after its time limit, and was stopped"


def test_one_that_ends_within_its_overtime_is_left_to_it(iterating) -> None:
    script = 'sleep 0.2; echo \'{"exit_code": 124}\' >"$RESULT"; exit 124'
    result = iterating.run_substitute(script, time_s=0.05, overtime_s=10)
    assert (result.exit_code, result.outcome, result.reason) == (124, Outcome.TIMED_OUT, "")


@linux_only
def test_a_daemon_that_it_leaves_is_ended_and_children_from_before_are_not(iterating) -> None:
    with subprocess.Popen(["sleep", "99"]) as other:
        try:
            iterating.run_substitute(
                "setsid sh -c 'echo $$ >pid; sleep 99; sleep 99' & until [ -s pid ]; do :; done"
            )
            assert is_gone(int(iterating.noted("pid")))
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("exit_code", "outcome"), [(75, Outcome.API_UNAVAILABLE), (77, Outcome.AUTH), (137, Outcome.INTERRUPTED)]
)
def test_without_a_result_the_exit_code_of_a_failure_speaks(iterating, exit_code, outcome) -> None:
    result = iterating.run_substitute(f"exit {exit_code}")
    assert (result.exit_code, result.outcome) == (exit_code, outcome)
    assert "left no result" in result.reason


@every_row("exit_code", [0, 1, 3, 4, 124, 5, 63, 127, 128, 255])
def test_an_end_that_no_run_of_ralph_has_is_an_internal_error(iterating, exit_code) -> None:
    """If a success without a result were accepted, the loop would never end."""
    result = iterating.run_substitute(f"exit {exit_code}")
    assert (result.exit_code, result.outcome) == (70, Outcome.INTERNAL_ERROR)
    assert result.reason == f"it ended with exit {exit_code}, and left no result"


def test_a_program_that_is_not_there_says_so(iterating) -> None:
    with pytest.raises(FileNotFoundError, match="/no/such"):
        iterating.run(program=("/no/such",))


def test_the_result_of_an_earlier_process_is_not_taken_for_that_of_the_next(iterating) -> None:
    wrote = iterating.run_substitute('echo \'{"exit_code": 0, "result": "old"}\' >"$RESULT"')
    assert wrote.last_words == "old"
    assert iterating.run_substitute("exit 0").last_words == ""


@linux_only
def test_the_process_has_a_session_of_its_own_no_input_our_output_and_ignores_no_signal_on_its_own(
    iterating, capfd
) -> None:
    iterating.run_substitute(
        "echo e >&2; readlink /proc/$$/fd/0; cut -d' ' -f 1,6 /proc/$$/stat; echo $$; exec grep 'Sig[BI]' /proc/$$/status"
    )
    shown = capfd.readouterr()
    no_input, in_stat, pid, blocked, ignored = shown.out.splitlines()
    assert no_input == "/dev/null"
    assert in_stat == f"{pid} {pid}"  # the session is named by its first process
    assert int(blocked.split()[1], 16) == 0
    assert int(ignored.split()[1], 16) == ignored_by_whoever_started_the_tests()
    assert shown.err == "e\n"
    assert os.getsid(0) != int(pid)
