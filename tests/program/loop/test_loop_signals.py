"""Signals to `ralph loop`: its iteration gets each of them once, the loop exits with 128+n, and nothing is left
running.
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import sys
import termios
from functools import partial
from pathlib import Path

import pytest

from ralph.mock_api import Fault, Step
from tests.patience import wait_until
from tests.processes.scripts import before_git
from tests.program.conftest import is_loop_waiting, iteration_of_loop, loop_lines, loop_record, processes_of
from tests.program.model_answers import bash

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
# tests/program/machine/test_signals.py tries them all with a run.
CODES = {signal.SIGTERM: 143, signal.SIGXCPU: 152}

# A second signal would not leave it the half second that it takes to clean up.
STUBBORN = (
    "trap 'sleep 0.5; echo cleaned up >> ended; exit' TERM; touch started; while :; do sleep 0.05; done"
)
GOES_ON = "continue with: ralph loop --continue"


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_reaches_the_iteration_once_and_ends_the_loop_with_128_n(ralph, iterations, number) -> None:
    iterations([bash(STUBBORN)])
    process = ralph.start("loop", "go", "--until", "false", "--output-format", "json")
    wait_until((ralph.cwd / "started").exists)
    ran = ralph.stopped_by(process, number, code=CODES[number])
    assert (ran.result["terminal_reason"], ran.result["exit_code"]) == ("interrupted", CODES[number])
    assert (ralph.cwd / "ended").read_text() == "cleaned up\n"
    assert loop_lines(ran)[-2] == GOES_ON
    assert loop_lines(ran)[-1].startswith(f"interrupted (exit {CODES[number]}): ")
    assert loop_record(ralph)["ended"]["exit_code"] == CODES[number]
    assert processes_of(ralph) == {}


def test_a_second_signal_reaches_the_iteration_too(ralph, iterations) -> None:
    """The second signal has another number, because the same number within a second would count as one signal. A run
    that is stopped can take neither.
    """
    iterations([bash(STUBBORN)])
    process = ralph.start("loop", "go")
    wait_until((ralph.cwd / "started").exists)
    iteration = iteration_of_loop(ralph)
    os.kill(iteration, signal.SIGSTOP)
    wait_until(lambda: status_of(iteration)["State"].startswith("T"))  # until then it takes signals
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
        wait_until(partial(is_pending, number, iteration))
    os.kill(iteration, signal.SIGCONT)
    assert ralph.finish(process).code == 143
    assert processes_of(ralph) == {}


def is_pending(number: int, process_id: int) -> bool:
    """Whether a process was sent this signal and has not taken it yet."""
    return bool(int(status_of(process_id)["ShdPnd"], 16) >> number - 1 & 1)


def status_of(process_id: int) -> dict[str, str]:
    """The fields of /proc/PID/status."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_a_signal_to_all_at_once_reaches_the_iteration_once(ralph, iterations) -> None:
    """A service manager signals all processes. So the loop and its run each get the signal, and the loop passes its
    own on.
    """
    iterations([bash(STUBBORN)])
    process = ralph.start("loop", "go")
    wait_until((ralph.cwd / "started").exists)
    os.kill(iteration_of_loop(ralph), signal.SIGTERM)
    ralph.stopped_by(process, signal.SIGTERM, code=143)
    assert (ralph.cwd / "ended").read_text() == "cleaned up\n"


def test_ctrl_c_at_a_terminal_reaches_the_iteration_once(ralph, iterations) -> None:
    iterations([bash(STUBBORN)])
    ours, theirs = pty.openpty()
    process = ralph.start(
        *("loop", "go", "--output-format", "json"),
        stdin=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    wait_until((ralph.cwd / "started").exists)
    os.write(ours, b"\x03")
    ran = ralph.finish(process)
    os.close(ours)
    os.close(theirs)
    assert (ran.code, ran.result["exit_code"]) == (130, 130)
    assert (ralph.cwd / "ended").read_text() == "cleaned up\n"
    assert processes_of(ralph) == {}


def test_a_signal_in_a_wait_for_the_api_ends_it_at_once_and_the_wait_is_recorded(ralph, iterations) -> None:
    ralph.user_file.write_text(
        "[retry]\npolicy = 'custom'\nbase_delay_s = 0.01\nmax_retries = 1\n[loop]\noutage_waits_s = [20000]\n"
    )
    iterations([Step(fault=Fault(status=529))] * 9)
    process = ralph.start("loop", "go")
    wait_until(lambda: is_loop_waiting(ralph))
    ralph.stopped_by(process, signal.SIGTERM, code=143)
    assert loop_record(ralph)["current"]["waits_until"] is not None


def test_a_signal_in_the_check_ends_it_and_the_iteration_before_it_is_counted_later(
    ralph, iterations
) -> None:
    server = iterations([bash("echo 1 >> done")])
    check = "test -e done || exit 1; test -e again && exit 0; touch started; sleep 1000000"
    process = ralph.start("loop", "go", "--until", check)
    wait_until((ralph.cwd / "started").exists)
    ralph.stopped_by(process, signal.SIGINT, code=130)
    assert processes_of(ralph) == {}
    (ralph.cwd / "again").touch()
    assert ralph("loop", "--continue").code == 0
    [counted] = loop_record(ralph)["iterations"]
    assert (counted["turns"], counted["check"], server.request_count) == (2, "passed", 2)


def test_a_signal_before_anything_has_begun_ends_it_in_one_line(ralph, checkout, tmp_path) -> None:
    """The first call of git hangs."""
    before_git(ralph.environment, tmp_path / "bin", f"touch '{tmp_path}/started'; sleep 1000000")
    process = ralph.start("loop", "go")
    wait_until((tmp_path / "started").exists)
    ran = ralph.stopped_by(process, signal.SIGTERM)
    assert (ran.code, ran.stderr.count("\n")) == (143, 1)
    assert loop_lines(ran)[0].startswith("interrupted (exit 143): ")
    assert processes_of(ralph) == {}
    assert not (ralph.cwd / ".ralph").exists()


def test_under_nohup_a_hangup_changes_nothing(ralph, iterations) -> None:
    iterations([bash("touch started; sleep 0.5")])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = ralph.start("loop", "go", "--max-iterations", "1")
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_until((ralph.cwd / "started").exists)
    process.send_signal(signal.SIGHUP)
    assert ralph.finish(process).code == 0
