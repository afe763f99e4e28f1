"""`ralph loop` on a machine that has no free process for a while, which is handled like an outage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.patience import wait_until
from tests.program.conftest import Finished, loop_lines, loop_record
from tests.program.model_answers import write
from tests.program.scarcity import scarcity

if TYPE_CHECKING:
    import subprocess

    from tests.program.conftest import Ralph
    from tests.program.scarcity import Scarcity

__all__ = ["scarcity"]

QUICK = "[loop]\noutage_waits_s = [0.3]\n"
SHORT = "this machine has no process, thread, memory or file descriptor left: waiting 0.3s (shortage 1, "
CHECK = "test -e done && exit 0; test -e ready && exit 1; echo > ready; read x < gate; exit 1"


def short_after_the_first_check(ralph: Ralph, scarcity: Scarcity, *options: str) -> subprocess.Popen[bytes]:
    """A loop that can start no process from the end of its first check on. It is limited from its beginning, so that
    the process that starts its commands is limited too.
    """
    os.mkfifo(ralph.cwd / "gate")
    command = (
        "-m",
        "ralph",
        "loop",
        "-p",
        "go",
        "--sandbox",
        "off",
        "--until",
        CHECK,
        "--max-iterations",
        "1",
        *options,
    )
    with (ralph.cwd.parent / "stderr.txt").open("wb") as errors:
        process = scarcity.start_python(ralph, *command, stderr=errors)
    wait_until((ralph.cwd / "ready").exists)
    scarcity.begin()
    (ralph.cwd / "gate").write_text("go on\n")
    return process


def told(ralph: Ralph) -> str:
    """The text on standard error so far."""
    return (ralph.cwd.parent / "stderr.txt").read_text()


def finished(ralph: Ralph, process: subprocess.Popen[bytes]) -> Finished:
    ran = ralph.finish(process)
    return Finished(ran.code, ran.stdout, told(ralph))


def test_an_iteration_outside_of_git_that_finds_no_process_is_waited_for_exits_0(
    ralph, iterations, scarcity
) -> None:
    ralph.user_file.write_text(QUICK)
    iterations([write("done")])
    process = short_after_the_first_check(ralph, scarcity)
    wait_until(lambda: SHORT in told(ralph))
    scarcity.end()
    ran = finished(ralph, process).having(0)
    waits = [line for line in loop_lines(ran) if line.startswith(SHORT)]
    assert len(waits) == 1
    assert waits[0].endswith("then it is tried again"), "ripgrep was to look at the directory first"
    [record] = loop_record(ralph)["iterations"]
    assert (record["number"], record["exit_code"]) == (1, 0)
    assert loop_record(ralph)["current"] is None


def test_git_that_finds_no_process_is_tried_again_and_spends_nothing_exits_0(
    ralph, checkout, iterations, scarcity
) -> None:
    ralph.user_file.write_text(QUICK)
    server = iterations([write("done")])
    process = short_after_the_first_check(ralph, scarcity, "--commit")
    wait_until(lambda: SHORT in told(ralph))
    assert server.request_count == 0
    scarcity.end()
    ran = finished(ralph, process).having(0)
    [waited] = [line for line in loop_lines(ran) if line.startswith(SHORT)]
    assert waited.endswith("then it is tried again")
    assert checkout.git("log", "-1", "--format=%s") == "ralph loop: iteration 1"


def test_a_shortage_that_lasts_ends_the_loop_and_it_can_be_resumed_exits_75(
    ralph, iterations, scarcity
) -> None:
    ralph.user_file.write_text(QUICK + "outage_budget_s = 0.7\n")
    iterations([write("done")])
    ran = finished(ralph, short_after_the_first_check(ralph, scarcity)).having(75)
    assert loop_lines(ran)[-1].startswith("api_unavailable (exit 75): what this machine lacks (a process, ")
    assert "continue with: ralph loop --continue" in loop_lines(ran)
    assert "Traceback" not in ran.stderr
    scarcity.end()
    ralph("loop", "--continue", code=0)
    assert [record["number"] for record in loop_record(ralph)["iterations"]] == [1]


def test_a_loop_that_begins_without_a_process_left_says_so_in_a_line_exits_75(
    ralph, checkout, serve, scarcity
) -> None:
    server = serve()
    scarcity.begin()
    ran = ralph.finish(scarcity.start(ralph, "loop", "go", "--until", "false"))
    assert (ran.code, server.request_count) == (75, 0)
    [line] = loop_lines(ran)
    assert line.startswith("api_unavailable (exit 75): this machine has no ")
    assert "ulimit -u" in line
    assert "Traceback" not in ran.stderr


def test_a_loop_that_met_one_shortage_for_ten_minutes_ends_and_can_be_resumed_exits_74(
    ralph, iterations, scarcity
) -> None:
    ralph.run_first("from ralph.retry import backoff\nbackoff.LASTS_S = 1.0\n")
    ralph.user_file.write_text(QUICK)
    iterations([write("done")])
    ran = finished(ralph, short_after_the_first_check(ralph, scarcity)).having(74)
    assert loop_lines(ran)[-1].startswith("io_error (exit 74): the same shortage has lasted for ")
    assert "continue with: ralph loop --continue" in loop_lines(ran)
    scarcity.end()
    assert ralph("loop", "--continue").code == 0
